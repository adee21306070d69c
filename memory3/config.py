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
from math import prod
from typing import Any

import numpy as np

from memory3.errors import InvalidInput

MEMORY_FORMAT_VERSION = 1


@dataclass(frozen=True, order=True)
class MemoryHead:
    """One row of the memory budget: KV head `head` of layer `layer` keeps up to `tokens` sparse tokens."""

    layer: int
    head: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.layer}.{self.head}:{self.tokens}"


@dataclass(frozen=True)
class MemoryConfig:
    """How a reference becomes an explicit memory and how a chunk reads it (paper 3.2, 3.3).

    `heads` is the memory budget: a table (layer, KV head) -> tokens; a head not listed has no memory. Rows of memories,
    payloads and codes are in the order of this table, which is sorted by (layer, head).
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
        pairs = [(h.layer, h.head) for h in heads]
        if len(set(pairs)) != len(pairs):
            raise InvalidInput("the memory budget lists a (layer, head) twice")
        for head in heads:
            if head.layer < 0 or head.head < 0 or not 1 <= head.tokens <= self.reference_tokens:
                raise InvalidInput(f"memory head {head} is out of range: tokens must be 1..{self.reference_tokens}")
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
            heads = tuple(MemoryHead(*map(int, row)) for row in data.get("heads", ()))
            return cls(**{**data, "heads": heads})
        except TypeError as error:
            raise InvalidInput(f"not a memory config: {error}") from error


@dataclass(frozen=True)
class RopeScaling:
    """How a model's rotary frequencies were stretched for longer texts.

    `linear` divides every frequency by `factor`. `llama3` divides those of wavelengths above
    `original_positions / low` by `factor`, keeps those below `original_positions / high` and blends between.
    """

    kind: str
    factor: float
    low: float = 1.0
    high: float = 4.0
    original_positions: int = 8192

    def __post_init__(self) -> None:
        """Refuse what is not implemented."""
        if self.kind not in ("linear", "llama3"):
            raise InvalidInput(f"rope scaling {self.kind!r} is not supported, only linear and llama3")
        if self.factor <= 0 or not 0 < self.low < self.high or self.original_positions < 1:
            raise InvalidInput(f"rope scaling {self} is out of range")

    def stretched(self, frequency: np.ndarray) -> np.ndarray:
        """The scaled frequencies, float64 [d / 2], of the plain ones."""
        if self.kind == "linear":
            return frequency / self.factor
        turns = self.original_positions * frequency / (2 * np.pi)  # full turns within the original length
        keep = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return frequency * (keep + (1 - keep) / self.factor)


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's shape, with its memory budget: Llama and its relatives by configuration.

    hidden: width between layers, by default H d_h. attention_bias: biases of q, k and v (Qwen2). qk_norm: queries
    and keys pass an RMSNorm of each head before the rotation (Qwen3). plain_layers: layers without rotary
    embedding (SmolLM3). positions: the longest text that the model was trained for, 0 where unknown.
    """

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
    hidden: int = 0
    qk_norm: bool = False
    plain_layers: tuple[int, ...] = ()
    rope_scaling: RopeScaling | None = None
    positions: int = 0

    def __post_init__(self) -> None:
        """Refuse a shape that no decoder can have."""
        counts = self.layers, self.query_heads, self.kv_heads, self.head_dim, self.mlp_width, self.vocabulary
        if min(counts) < 1:
            raise InvalidInput(f"{self.name}: layers, heads, widths and vocabulary must be positive")
        if not (0 < self.rope_base < np.inf and 0 <= self.norm_epsilon < np.inf):
            numbers = f"rotary base {self.rope_base}, norm epsilon {self.norm_epsilon}"
            raise InvalidInput(f"{self.name}: {numbers}: both must be positive")
        if self.query_heads % self.kv_heads:
            raise InvalidInput(f"{self.query_heads} query heads do not share {self.kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            raise InvalidInput(f"a head dimension of {self.head_dim} cannot be rotated: it must be even")
        for head in self.memory.heads:
            if head.layer >= self.layers or head.head >= self.kv_heads:
                raise InvalidInput(f"memory head {head} is outside {self.layers} layers x {self.kv_heads} KV heads")
        object.__setattr__(self, "hidden", self.hidden or self.query_heads * self.head_dim)
        object.__setattr__(self, "plain_layers", tuple(sorted(self.plain_layers)))

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.query_heads // self.kv_heads

    @property
    def query_width(self) -> int:
        """Numbers that all query heads of a layer have together, H d_h."""
        return self.query_heads * self.head_dim

    @property
    def frequencies(self) -> np.ndarray:
        """Float64 [d / 2]: by what angle each pair of dimensions turns from one position to the next."""
        plain = 1.0 / self.rope_base ** (np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim)
        return self.rope_scaling.stretched(plain) if self.rope_scaling else plain

    def with_memory(self, memory: MemoryConfig) -> ModelConfig:
        """The same shape with another memory budget."""
        return replace(self, memory=memory)

    def parameters(self) -> int:
        """Number of weights."""
        return sum(prod(shape) for shape in weight_shapes(self).values())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; what has its default value and is younger than the first release is left out."""
        data = {**asdict(self), "memory": self.memory.to_dict(), "plain_layers": list(self.plain_layers)}
        if self.hidden == self.query_width:
            data["hidden"] = 0
        for name in ("hidden", "qk_norm", "plain_layers", "rope_scaling", "positions"):
            if not data[name]:
                del data[name]
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelConfig:
        """Inverse of `to_dict`; raises InvalidInput on unknown or missing fields."""
        try:
            memory, scaling = MemoryConfig.from_dict(data.get("memory", {})), data.get("rope_scaling")
            rope_scaling = RopeScaling(**scaling) if scaling else None
            plain = tuple(data.get("plain_layers", ()))
            return cls(**{**data, "memory": memory, "plain_layers": plain, "rope_scaling": rope_scaling})
        except TypeError as error:
            raise InvalidInput(f"not a model config: {error}") from error

    @property
    def memory_format_id(self) -> str:
        """SHA-256 (hex) over the format version and whatever fixes the meaning of a payload's rows."""
        shape: list[Any] = [MEMORY_FORMAT_VERSION, self.layers, self.kv_heads, self.head_dim, self.rope_base]
        if self.rope_scaling or self.plain_layers:
            shape += [asdict(self.rope_scaling) if self.rope_scaling else None, list(self.plain_layers)]
        text = json.dumps([shape, self.memory.to_dict()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of a decoder, by its Hugging Face name without `model.`."""
    d, q, kv = config.hidden, config.query_width, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocabulary, d), "norm.weight": (d,)}
    for layer in range(config.layers):
        at, width = f"layers.{layer}", config.mlp_width
        shapes |= {
            f"{at}.input_layernorm.weight": (d,),
            f"{at}.post_attention_layernorm.weight": (d,),
            f"{at}.self_attn.q_proj.weight": (q, d),
            f"{at}.self_attn.k_proj.weight": (kv, d),
            f"{at}.self_attn.v_proj.weight": (kv, d),
            f"{at}.self_attn.o_proj.weight": (d, q),
            f"{at}.mlp.gate_proj.weight": (width, d),
            f"{at}.mlp.up_proj.weight": (width, d),
            f"{at}.mlp.down_proj.weight": (d, width),
        }
        if config.attention_bias:
            shapes |= {f"{at}.self_attn.{p}_proj.bias": (n,) for p, n in (("q", q), ("k", kv), ("v", kv))}
        if config.qk_norm:
            shapes |= {f"{at}.self_attn.{p}_norm.weight": (config.head_dim,) for p in ("q", "k")}
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocabulary, d)
    return shapes


def uniform_budget(layers: int, kv_heads: int, tokens: int) -> tuple[MemoryHead, ...]:
    """The paper's budget: `tokens` for every head of the first `layers` layers."""
    return tuple(MemoryHead(layer, head, tokens) for layer in range(layers) for head in range(kv_heads))


def parse_budget(text: str, config: ModelConfig, reference_tokens: int | None = None) -> MemoryConfig:
    """The memory budget that a command line names; raises InvalidInput.

    `paper` or `paper:TOKENS`: as many tokens (8) in every head of the first half of the layers (paper 3.3). `all`:
    every token in every head. Or `LAYER.HEAD:TOKENS,…`. reference_tokens: by default, as all else, the config's.
    """
    kind, _, number = text.partition(":")
    longest = config.memory.reference_tokens if reference_tokens is None else reference_tokens
    try:
        if kind == "paper":
            heads = uniform_budget(config.layers // 2, config.kv_heads, int(number or 8))
        elif text == "all":
            heads = uniform_budget(config.layers, config.kv_heads, longest)
        else:
            entries = (entry.replace(":", ".").split(".") for entry in text.split(","))
            heads = tuple(MemoryHead(int(layer), int(head), int(tokens)) for layer, head, tokens in entries)
    except ValueError as error:
        raise InvalidInput(f"memory budget {text!r}: write paper[:TOKENS], all, or LAYER.HEAD:TOKENS,…") from error
    if not heads:
        raise InvalidInput(f"memory budget {text!r} has no head of {config.layers} layers: name some, or all")
    return config.with_memory(replace(config.memory, heads=heads, reference_tokens=longest)).memory
