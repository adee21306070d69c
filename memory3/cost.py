"""Compute costs of knowledge, as the paper's appendix A counts them (TFLOP, lower-order terms omitted).

Checked against the printed numbers: 0.308 to write a memory, 1.44e-4 to read it, 0.624 to read the same
reference as text (RAG), 2.24 to train it into the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from memory3.config import ModelConfig
from memory3.errors import InvalidInput

_TRAIN_TOKENS = 2048


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
    memory, d, width = config.memory, config.hidden, config.query_width
    if not memory.heads:
        raise InvalidInput(f"{config.name} has no memory heads, so nothing can be read: give a memory budget")
    tokens, chunk, layers = memory.reference_tokens, memory.chunk_tokens, config.layers
    projections = 2 * d * width + 2 * d * config.head_dim * config.kv_heads
    mlp = 3 * d * config.mlp_width
    # A.1: the reference is trained on once, in sequences of 2048 tokens.
    layer = tokens * (projections + mlp) + tokens * _TRAIN_TOKENS * width
    implicit_write = 6 * (layers * layer + tokens * config.vocabulary * d)
    # A.2: the reference is encoded up to the last memory layer; each memory layer selects its sparse tokens.
    encoded, selecting = memory.memory_layers[-1] + 1, len(memory.memory_layers)
    writing = encoded * (tokens * projections + tokens**2 * width)
    memory_write = 2 * (writing + (encoded - 1) * tokens * mlp + selecting * tokens**2 * width)
    # A.2: a chunk attends to one memory's sparse tokens; every KV head serves a group of query heads.
    memory_read = 2 * 2 * chunk * memory.budget * config.group * config.head_dim
    # A.3, a lower bound: the reference runs as text in the prompt, and one chunk reads it.
    reading = layers * (tokens * projections + 2 * tokens * (tokens / 2 + chunk) * width)
    text_read = 2 * (reading + (layers - 1) * tokens * mlp)
    return KnowledgeCosts(*(flop / 1e12 for flop in (implicit_write, memory_write, memory_read, text_read)))
