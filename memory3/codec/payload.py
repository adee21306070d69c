"""An explicit memory as a value, and its bytes: what is stored, sent and put into the memory slots.

    magic b"M3EM" | version u16 | tokens u16 | model_id[:16] | codec_id[:16] | memory_format_id[:16] | codes

Little-endian. Codes are uint8 [codes, code_bytes]: one for each vector, head by head in the order of the budget table,
a head's keys, then its values; or one for each token, which holds the vectors of all heads in this order. The number
of codes follows from `tokens` and the table (decision 0003).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memory3.codec.codec import MemoryCodec
from memory3.config import MEMORY_FORMAT_VERSION, MemoryConfig, ModelConfig
from memory3.errors import CodecMismatch, CorruptFile, FormatMismatch, InvalidInput, ModelMismatch

MAGIC = b"M3EM"
HEADER = struct.Struct("<4sHH16s16s16s")
_FIT = "fit one with `memory-model fit-codec`"
_REMEDY = "re-ingest the documents with this model or load the bundle that matches the knowledge base"


@dataclass(frozen=True)
class Identity:
    """What wrote a memory: three hex SHA-256 strings."""

    model_id: str
    codec_id: str
    memory_format_id: str


@dataclass(frozen=True)
class ExplicitMemory:
    """One reference's sparse key-values.

    keys, values: float32 [budget, head_dim], keys already rotated; head i of the budget table owns the rows from its
    offset, of which the first min(tokens, heads[i].tokens) are valid and the rest zero. Arrays, read-only where they
    were decoded; tensors where a GPU decoded them for torch.
    tokens: length of the reference in tokens, without the prefix.
    """

    keys: np.ndarray
    values: np.ndarray
    tokens: int


def vector_rows(memory: MemoryConfig, tokens: int, together: int) -> np.ndarray:
    """For each vector of a memory in the order of its codes, its row in [keys; values] of 2 * budget rows, int64."""
    rows = []
    for first in range(0, 2 * len(memory.heads), together):
        groups = range(first, first + together)  # 2i: the keys of head i, 2i + 1: its values
        kept = min(tokens, memory.heads[first // 2].tokens)
        firsts = [memory.offsets[g // 2] + g % 2 * memory.budget for g in groups]
        rows.append((np.arange(kept)[:, None] + np.array(firsts)).ravel())
    return np.concatenate(rows) if rows else np.zeros(0, np.int64)


class MemoryFormat:
    """Memories to payloads and back, for one model and one codec. Thread-safe: holds tables only."""

    def __init__(self, config: ModelConfig, model_id: str, codec: MemoryCodec) -> None:
        if codec.head_dim != config.head_dim:
            raise InvalidInput(f"codec is for head dimension {codec.head_dim}, the model has {config.head_dim}: {_FIT}")
        heads, kept = len(config.memory.heads), {head.tokens for head in config.memory.heads}
        if codec.together > 1 and (codec.together % 2 or 2 * heads % codec.together):
            raise InvalidInput(
                f"codec holds {codec.together} vectors in a code, {heads} heads do not divide so: {_FIT}"
            )
        if codec.together > 2 and len(kept) > 1:
            raise InvalidInput(
                f"codec holds the vectors of {codec.together // 2} heads in a code, which needs heads that keep equally"
                f" many tokens, not {', '.join(map(str, sorted(kept)))}: fit a codec of single vectors"
            )
        self.config = config
        self.codec = codec
        self.identity = Identity(model_id, codec.codec_id, config.memory_format_id)
        self._ids = tuple(bytes.fromhex(i)[:16] for i in (model_id, codec.codec_id, config.memory_format_id))
        self._rows: dict[int, np.ndarray] = {}

    def payload_bytes(self, tokens: int) -> int:
        """Size in bytes of the payload of a reference of `tokens` tokens."""
        return HEADER.size + len(self._indices(tokens)) // self.codec.together * self.codec.code_bytes

    @property
    def full_bytes(self) -> int:
        """Bytes of codes in the memory of a reference of full length: what the size of a memory means."""
        return self.payload_bytes(self.config.memory.reference_tokens) - HEADER.size

    def encode(self, memories: Sequence[ExplicitMemory]) -> list[bytes]:
        """One payload for each memory; raises InvalidInput for wrong shapes or numbers that are not finite."""
        shape = (self.config.memory.budget, self.config.head_dim)
        for m in memories:
            if m.keys.shape != shape or m.values.shape != shape:
                raise InvalidInput(f"a memory has keys {m.keys.shape} and values {m.values.shape}, expected {shape}")
            if not (np.isfinite(m.keys).all() and np.isfinite(m.values).all()):
                raise InvalidInput("a memory holds NaN or infinity; the model that wrote it is broken")
        if not memories:
            return []
        vectors = [np.concatenate((m.keys, m.values))[self._indices(m.tokens)] for m in memories]
        width = self.codec.together * self.config.head_dim
        codes = self.codec.encode(np.concatenate(vectors).reshape(-1, width))
        ends = np.cumsum([len(own) // self.codec.together for own in vectors])[:-1]
        return [
            HEADER.pack(MAGIC, MEMORY_FORMAT_VERSION, m.tokens, *self._ids) + own.tobytes()
            for m, own in zip(memories, np.split(codes, ends), strict=True)
        ]

    def decode(self, payloads: Sequence[bytes | memoryview]) -> list[ExplicitMemory]:
        """Memories of payloads; raises what `check` raises."""
        return [self._decoded(payload) for payload in payloads]

    def _decoded(self, payload: bytes | memoryview) -> ExplicitMemory:
        tokens, budget = self.check(payload), self.config.memory.budget
        indices = self._indices(tokens)
        codes = np.frombuffer(payload, np.uint8, offset=HEADER.size).reshape(-1, self.codec.code_bytes)
        rows = self.codec.decode_rows(codes, indices, 2 * budget)
        return ExplicitMemory(rows[:budget], rows[budget:], tokens)

    def check(self, payload: bytes | memoryview) -> int:
        """The payload's number of tokens, if it is ours; raises CorruptFile, {Model,Codec,Format}Mismatch."""
        if len(payload) < HEADER.size:
            raise CorruptFile(f"a memory payload of {len(payload)} bytes is shorter than its header ({HEADER.size})")
        magic, version, tokens, model, codec, memory_format = HEADER.unpack_from(payload)
        if magic != MAGIC:
            raise CorruptFile(f"not a memory payload: it begins with {magic!r}, expected {MAGIC!r}")
        if version != MEMORY_FORMAT_VERSION:
            raise FormatMismatch(f"version {version}", f"version {MEMORY_FORMAT_VERSION}", _REMEDY)
        for kind, found, ours, full in (
            (ModelMismatch, model, self._ids[0], self.identity.model_id),
            (FormatMismatch, memory_format, self._ids[2], self.identity.memory_format_id),
            (CodecMismatch, codec, self._ids[1], self.identity.codec_id),
        ):
            if found != ours:
                raise kind(found.hex(), full, _REMEDY)
        if not 1 <= tokens <= self.config.memory.reference_tokens:
            raise CorruptFile(f"a payload claims {tokens} tokens, at most {self.config.memory.reference_tokens} fit")
        if len(payload) != self.payload_bytes(tokens):
            raise CorruptFile(f"a payload has {len(payload)} bytes, {tokens} tokens need {self.payload_bytes(tokens)}")
        return int(tokens)

    def _indices(self, tokens: int) -> np.ndarray:
        """See `vector_rows`; kept by length."""
        if tokens not in self._rows:
            self._rows[tokens] = vector_rows(self.config.memory, tokens, self.codec.together)
        return self._rows[tokens]
