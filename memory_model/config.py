"""The shape of a model and of its explicit memories, as plain values.

The paper's names: layers L, query heads H, key-value heads H_kv, head dimension d_h, MLP width W,
memory layers L_mem, sparse tokens l_mem, reference length l_ref, chunk length l_chunk (sections 3.1-3.4).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from memory_model.errors import InvalidInput

MEMORY_FORMAT_VERSION = 1


@dataclass(frozen=True, order=True)
class MemoryHead:
    """One row of the memory budget: KV head `head` of layer `layer` keeps up to `tokens` sparse tokens."""

    layer: int
    head: int
    tokens: int


@dataclass(frozen=True)
class MemoryConfig:
    """How a reference becomes an explicit memory and how a chunk reads it (paper 3.2, 3.3).

    `heads` is the memory budget: a table (layer, KV head) -> tokens; a head not listed has no memory.
    The paper's model lists every head of the first 22 layers with 8 tokens; a converted model lists
    the few heads that were measured to read. Row order of memories, payloads and codec groups is the
    order of this table, which is sorted by (layer, head).
    """

    heads: tuple[MemoryHead, ...] = ()
    reference_tokens: int = 128
    chunk_tokens: int = 64
    memories_per_chunk: int = 5
    prefix: str = "Reference:"

    def __post_init__(self) -> None:
        """Sort the table and refuse one that cannot be written."""
        heads = tuple(sorted(self.heads))
        object.__setattr__(self, "heads", heads)
        places = [(h.layer, h.head) for h in heads]
        if len(set(places)) != len(places):
            raise InvalidInput("the memory budget lists a (layer, head) twice")
        for head in heads:
            if head.layer < 0 or head.head < 0 or not 1 <= head.tokens <= self.reference_tokens:
                raise InvalidInput(
                    f"memory head {head} is out of range: tokens must be 1..{self.reference_tokens}"
                )
        if min(self.reference_tokens, self.chunk_tokens, self.memories_per_chunk) < 1:
            raise InvalidInput("reference_tokens, chunk_tokens and memories_per_chunk must be positive")

    @cached_property
    def budget(self) -> int:
        """Rows of keys (and as many of values) in one memory: the sum of tokens over heads."""
        return sum(h.tokens for h in self.heads)

    @property
    def vectors(self) -> int:
        """Key and value vectors of one full memory."""
        return 2 * self.budget

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First row of each head of the table."""
        return tuple(accumulate((h.tokens for h in self.heads), initial=0))[:-1]

    @cached_property
    def memory_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have at least one memory head."""
        return tuple(sorted({h.layer for h in self.heads}))

    def heads_of(self, layer: int) -> tuple[MemoryHead, ...]:
        """The memory heads of one layer, by head number."""
        return tuple(h for h in self.heads if h.layer == layer)

    def valid_rows(self, tokens: int) -> np.ndarray:
        """Row numbers (int64) that a reference of `tokens` tokens fills, in table order."""
        rows = [
            np.arange(start, start + min(tokens, h.tokens), dtype=np.int64)
            for start, h in zip(self.offsets, self.heads, strict=True)
        ]
        return np.concatenate(rows) if rows else np.zeros(0, np.int64)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        data = {k: v for k, v in asdict(self).items() if k != "heads"}
        data["heads"] = [[h.layer, h.head, h.tokens] for h in self.heads]
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MemoryConfig:
        """Inverse of `to_dict`; raises InvalidInput on unknown or malformed fields."""
        try:
            fields = dict(data)
            fields["heads"] = tuple(MemoryHead(*map(int, row)) for row in fields.get("heads", ()))
            return cls(**fields)
        except TypeError as error:
            raise InvalidInput(f"not a memory config: {error}") from error


@dataclass(frozen=True)
class ModelConfig:
    """A Llama-like decoder's shape, with its memory budget."""

    name: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocabulary: int
    rope_base: float
    norm_epsilon: float
    tied_embeddings: bool
    attention_bias: bool = False
    memory: MemoryConfig = field(default_factory=MemoryConfig)

    def __post_init__(self) -> None:
        """Refuse a shape that no decoder can have."""
        if self.query_heads % self.kv_heads:
            raise InvalidInput(
                f"{self.query_heads} query heads do not share {self.kv_heads} key-value heads evenly"
            )
        for head in self.memory.heads:
            if head.layer >= self.layers or head.head >= self.kv_heads:
                raise InvalidInput(
                    f"memory head {head} is outside {self.layers} layers x {self.kv_heads} KV heads"
                )

    @property
    def hidden(self) -> int:
        """Hidden dimension d = H d_h."""
        return self.query_heads * self.head_dim

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.query_heads // self.kv_heads

    def with_memory(self, memory: MemoryConfig) -> ModelConfig:
        """The same shape with another memory budget."""
        return replace(self, memory=memory)

    def parameters(self, *, embeddings: bool = True) -> int:
        """Number of weights; without `embeddings` neither the embedding table nor the head counts."""
        d, kv = self.hidden, self.kv_heads * self.head_dim
        bias = (d + 2 * kv) if self.attention_bias else 0
        layer = 2 * d * d + 2 * d * kv + 3 * d * self.mlp_width + 2 * d + bias
        table = self.vocabulary * d * (1 if self.tied_embeddings else 2)
        return self.layers * layer + d + (table if embeddings else 0)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "memory": self.memory.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelConfig:
        """Inverse of `to_dict`; raises InvalidInput on unknown or missing fields."""
        try:
            return cls(**{**data, "memory": MemoryConfig.from_dict(data.get("memory", {}))})
        except TypeError as error:
            raise InvalidInput(f"not a model config: {error}") from error

    @property
    def memory_format_id(self) -> str:
        """SHA-256 (hex) over the format version and whatever fixes the meaning of a payload's rows."""
        shape = [MEMORY_FORMAT_VERSION, self.layers, self.kv_heads, self.head_dim, self.rope_base]
        text = json.dumps([shape, self.memory.to_dict()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def uniform_budget(layers: int, kv_heads: int, tokens: int) -> tuple[MemoryHead, ...]:
    """The paper's budget: `tokens` for every head of the first `layers` layers."""
    return tuple(MemoryHead(layer, head, tokens) for layer in range(layers) for head in range(kv_heads))


def memory3_2b() -> ModelConfig:
    """The paper's model (3.4): 44 layers, 40/8 heads of 80, MLP 3200, 22 memory layers of 8 sparse tokens."""
    return ModelConfig(
        name="memory3-2b", layers=44, query_heads=40, kv_heads=8, head_dim=80, mlp_width=3200, vocabulary=60416,
        rope_base=10000.0, norm_epsilon=1e-5, tied_embeddings=False,
        memory=MemoryConfig(heads=uniform_budget(22, 8, 8)),
    )  # fmt: skip


def smollm2_135m(memory: MemoryConfig | None = None) -> ModelConfig:
    """SmolLM2-135M-Instruct; without `memory` its budget is empty (a plain LLM)."""
    return ModelConfig(
        name="smollm2-135m", layers=30, query_heads=9, kv_heads=3, head_dim=64, mlp_width=1536, vocabulary=49152,
        rope_base=100000.0, norm_epsilon=1e-5, tied_embeddings=True, memory=memory or MemoryConfig(),
    )  # fmt: skip


PRESETS = {"memory3-2b": memory3_2b, "smollm2-135m": smollm2_135m}
