"""Compute costs of knowledge, as the paper's appendix A counts them (TFLOP, lower-order terms omitted).

Checked against the printed numbers: 0.308 to write a memory, 1.44e-4 to read it, 0.624 to read the same
reference as text (RAG), 2.24 to train it into the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from memory_model.config import ModelConfig
from memory_model.errors import InvalidInput

_TRAIN_TOKENS = 2048
_TERA = 1e12


def _attention_projections(config: ModelConfig) -> float:
    d = config.hidden
    return 2 * d * d + 2 * d * config.head_dim * config.kv_heads


def memory_write_tflop(config: ModelConfig) -> float:
    """Encode one full reference up to the last memory layer and select its sparse tokens (A.2)."""
    memory, d = config.memory, config.hidden
    tokens = memory.reference_tokens
    layers = memory.memory_layers[-1] + 1 if memory.heads else 0
    selecting = len(memory.memory_layers)
    attention = layers * (tokens * _attention_projections(config) + tokens**2 * d)
    mlp = max(0, layers - 1) * tokens * 3 * d * config.mlp_width
    return 2 * (attention + mlp + selecting * tokens**2 * d) / _TERA


def memory_read_tflop(config: ModelConfig) -> float:
    """Attention of one chunk to one memory's sparse tokens (A.2): every KV head serves a group of query heads."""
    memory = config.memory
    rows = memory.budget * config.group * config.head_dim
    return 2 * 2 * memory.chunk_tokens * rows / _TERA


def rag_read_tflop(config: ModelConfig) -> float:
    """Run one reference as text in the prompt, read by one chunk (A.3, the paper's lower bound)."""
    d, tokens, chunk = config.hidden, config.memory.reference_tokens, config.memory.chunk_tokens
    attention = config.layers * (
        tokens * _attention_projections(config) + 2 * tokens * (tokens / 2 + chunk) * d
    )
    return 2 * (attention + (config.layers - 1) * tokens * 3 * d * config.mlp_width) / _TERA


def implicit_write_tflop(config: ModelConfig) -> float:
    """Train one reference into the weights, once (A.1)."""
    d, tokens = config.hidden, config.memory.reference_tokens
    layer = (
        tokens * (_attention_projections(config) + 3 * d * config.mlp_width)
        + 2 * tokens * _TRAIN_TOKENS / 2 * d
    )
    return 6 * (config.layers * layer + tokens * config.vocabulary * d) / _TERA


@dataclass(frozen=True)
class KnowledgeCosts:
    """What one piece of knowledge (a reference) costs in each of the three formats, in TFLOP (appendix A).

    Trained into the weights it costs `implicit_write`, once; as explicit memory `memory_write` once and
    `memory_read` at each use; as text `text_read` at each use.
    """

    implicit_write: float
    memory_write: float
    memory_read: float
    text_read: float

    def implicit(self, uses: float) -> float:
        """Total after `uses` uses; reading weights is counted as free, as the paper does."""
        return self.implicit_write

    def explicit(self, uses: float) -> float:
        """Total after `uses` uses."""
        return self.memory_write + self.memory_read * uses

    def external(self, uses: float) -> float:
        """Total after `uses` uses; storing text is free."""
        return self.text_read * uses

    @property
    def interval(self) -> tuple[float, float] | None:
        """The uses between which explicit memory is the cheapest format; None when it never is."""
        if self.text_read <= self.memory_read or self.implicit_write <= self.memory_write:
            return None
        first = self.memory_write / (self.text_read - self.memory_read)
        last = (self.implicit_write - self.memory_write) / self.memory_read
        return (first, last) if first < last else None


def knowledge_costs(config: ModelConfig) -> KnowledgeCosts:
    """The costs of a model's shape and budget; raises InvalidInput for one without memory heads."""
    if not config.memory.heads:
        raise InvalidInput(f"{config.name} has no memory heads, so nothing can be read: give a memory budget")
    return KnowledgeCosts(
        implicit_write_tflop(config), memory_write_tflop(config), memory_read_tflop(config), rag_read_tflop(config)
    )  # fmt: skip
