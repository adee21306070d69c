"""TensorRT's optimization profiles: least, typical and largest shape of every dynamic input of our graphs.

A shape outside its profile costs a rebuild of minutes or an error, so no dynamic input may be without a
range: a dimension that is not known here is refused by name. Dimensions are known by the names that
`memory_model.export` gives them:

    S tokens of a run, N rows of logits, R_0 text rows, R_k rows of slot layout k - 1   decoder
    texts, tokens                                                                       embedder
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edge_client.decoder.kv import BUCKET
from memory_model.cache_layout import cache_layout
from memory_model.config import ModelConfig
from memory_model.errors import InvalidInput

TYPICAL_ROWS = 512
"""Cache rows that kernels are chosen for, slots not counted: a few turns of a conversation."""
TYPICAL_EMBEDDER_TOKENS = 64
"""A query is a chunk of the conversation, 64 tokens (paper 3.1)."""
QUERIES = 8
"""Chunks of a prompt that are embedded together at most."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Range:
    """What a dimension may be; kernels are chosen for `typical`."""

    least: int
    typical: int
    most: int

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        if not 1 <= self.least <= self.typical <= self.most:
            raise InvalidInput(f"{self.least}, {self.typical}, {self.most} is no range of a dimension")


@dataclass(frozen=True)
class GraphInput:
    """An input as the file declares it: fixed dimensions are numbers, dynamic ones names."""

    name: str
    shape: tuple[int | str, ...]

    @property
    def dynamic(self) -> bool:
        """Whether any dimension is free."""
        return any(isinstance(n, str) for n in self.shape)


@dataclass(frozen=True)
class Profile:
    """Least, typical and largest shape of every dynamic input, for one use of a graph."""

    name: str
    shapes: Mapping[str, tuple[Shape, Shape, Shape]]

    def text(self, which: int) -> str:
        """The least (0), typical (1) or largest (2) shapes, as ONNX Runtime takes them: `a:1x2,b:3`."""
        return ",".join(f"{name}:{'x'.join(map(str, s[which]))}" for name, s in self.shapes.items())


def profile_id(profiles: Sequence[Profile]) -> str:
    """Eight hex digits that change whenever a shape does."""
    data = [[p.name, sorted((k, v) for k, v in p.shapes.items())] for p in profiles]
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:8]


def graph_profile(name: str, inputs: Sequence[GraphInput], ranges: Mapping[str, Range]) -> Profile:
    """A profile from the ranges of the dimensions; raises InvalidInput for a dimension without one."""
    shapes: dict[str, tuple[Shape, Shape, Shape]] = {}
    for given in inputs:
        if not given.dynamic:
            continue
        found = [Range(n, n, n) if isinstance(n, int) else _range(n, given.name, ranges) for n in given.shape]
        shapes[given.name] = (
            tuple(r.least for r in found),
            tuple(r.typical for r in found),
            tuple(r.most for r in found),
        )
    return Profile(name, shapes)


def _range(dimension: str, name: str, ranges: Mapping[str, Range]) -> Range:
    if dimension not in ranges:
        raise InvalidInput(f"input {name} has a dimension {dimension!r} that has no range for TensorRT")
    return ranges[dimension]


def decoder_profiles(
    config: ModelConfig, capacity: int, inputs: Sequence[GraphInput]
) -> tuple[Profile, Profile]:
    """A profile for single steps, and one for chunks of a prompt (which takes single steps too)."""
    chunk = config.memory.chunk_tokens
    rows = decoder_rows(config, capacity)
    one = Range(1, 1, 1)
    steps = graph_profile("step", inputs, {"S": one, "N": one, **rows})
    several = {"S": Range(1, chunk, chunk), "N": Range(1, 1, chunk)}
    return steps, graph_profile("chunk", inputs, {**several, **rows})


def decoder_rows(config: ModelConfig, capacity: int) -> dict[str, Range]:
    """Ranges of the cache's rows: text rows come in buckets, memory slots stand in front while in use."""
    most = -(-capacity // BUCKET) * BUCKET
    typical = min(TYPICAL_ROWS, most)
    rows = {"R_0": Range(BUCKET, typical, most)}
    for number, tokens in enumerate(cache_layout(config).layouts):
        slots = config.memory.memories_per_chunk * max(tokens)
        rows[f"R_{number + 1}"] = Range(BUCKET, typical + slots, most + slots)
    return rows


def embedder_profile(max_tokens: int, inputs: Sequence[GraphInput]) -> Profile:
    """For queries; a reference is written in the cloud and never embedded here."""
    ranges = {
        "texts": Range(1, 1, QUERIES),
        "tokens": Range(1, min(TYPICAL_EMBEDDER_TOKENS, max_tokens), max_tokens),
    }
    return graph_profile("queries", inputs, ranges)
