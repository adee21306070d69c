"""An explicit memory as a value, and its bytes: what is stored, sent and put into the memory slots.

    magic b"M3EM" | version u16 | tokens u16 | model_id[:16] | codec_id[:16] | memory_format_id[:16] | codes

Little-endian. Codes are uint8 [codes, code_bytes], block after block of the codec, in each the codes of the block's
tokens; with blocks of one group: head by head in the order of the budget table, a head's keys, then its values. The
number of codes follows from `tokens` and the table (decision 0003).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memory_model.codec.codec import MemoryCodec
from memory_model.codec.tables import PlacedCodes
from memory_model.config import MEMORY_FORMAT_VERSION, MemoryConfig, ModelConfig
from memory_model.errors import CodecMismatch, CorruptFile, FormatMismatch, InvalidInput, ModelMismatch

MAGIC = b"M3EM"
HEADER = struct.Struct("<4sHH16s16s16s")
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

    keys, values: float32 [budget, head_dim], keys already rotated; head i of the budget table owns the
    rows from its offset, of which the first min(tokens, heads[i].tokens) are valid and the rest zero.
    tokens: length of the reference in tokens, without the prefix.
    """

    keys: np.ndarray
    values: np.ndarray
    tokens: int


def block_vectors(written: ExplicitMemory, memory: MemoryConfig, groups: Sequence[int]) -> np.ndarray:
    """The vectors of some groups side by side, float32 [tokens kept, len(groups) * d]."""
    count = min(written.tokens, memory.heads[groups[0] // 2].tokens)
    sides = (written.keys, written.values)
    return np.concatenate([sides[g % 2][memory.offsets[g // 2] :][:count] for g in groups], axis=1)


class MemoryFormat:
    """Memories to payloads and back, for one model and one codec. Thread-safe: holds tables only."""

    def __init__(self, config: ModelConfig, model_id: str, codec: MemoryCodec) -> None:
        if codec.head_dim != config.head_dim:
            raise InvalidInput(
                f"codec is for head dimension {codec.head_dim}, the model has {config.head_dim}"
            )
        if codec.groups not in (1, 2 * len(config.memory.heads)):
            raise InvalidInput(
                f"codec has {codec.groups} groups, a budget of {len(config.memory.heads)} heads needs 1 or two a head"
            )
        all_tokens = all(h.tokens == config.memory.reference_tokens for h in config.memory.heads)
        if codec.together > 2 and not all_tokens:
            raise InvalidInput(
                f"codec holds the vectors of {codec.together // 2} heads in a code, which needs heads that keep every"
                f" token of a reference ({config.memory.reference_tokens}): fit one for each head"
            )
        if codec.together > 1 and (codec.together % 2 or 2 * len(config.memory.heads) % codec.together):
            raise InvalidInput(
                f"codec holds {codec.together} vectors in a code, {len(config.memory.heads)} heads do not divide so"
            )
        self.config = config
        self.codec = codec
        self.identity = Identity(model_id, codec.codec_id, config.memory_format_id)
        self._ids = tuple(bytes.fromhex(i)[:16] for i in (model_id, codec.codec_id, config.memory_format_id))
        self._plans: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def payload_bytes(self, tokens: int) -> int:
        """Size in bytes of the payload of a reference of `tokens` tokens."""
        return HEADER.size + len(self._plan(tokens)[0]) * self.codec.code_bytes

    @property
    def full_bytes(self) -> int:
        """Bytes of codes in the memory of a reference of full length: what the size of a memory means."""
        return self.payload_bytes(self.config.memory.reference_tokens) - HEADER.size

    def encode(self, memories: Sequence[ExplicitMemory]) -> list[bytes]:
        """One payload for each memory; raises InvalidInput for wrong shapes or numbers that are not finite."""
        memory = self.config.memory
        shape = (memory.budget, self.config.head_dim)
        for m in memories:
            if m.keys.shape != shape or m.values.shape != shape:
                raise InvalidInput(
                    f"a memory has keys {m.keys.shape} and values {m.values.shape}, expected {shape}"
                )
            if not 1 <= m.tokens <= memory.reference_tokens:
                raise InvalidInput(f"a memory of {m.tokens} tokens, expected 1 to {memory.reference_tokens}")
            if not (np.isfinite(m.keys).all() and np.isfinite(m.values).all()):
                raise InvalidInput("a memory holds NaN or infinity; the model that wrote it is broken")
        if not memories:
            return []
        # Each block is encoded once for all memories: the codec's tables are loaded into cache once.
        parts: list[list[bytes]] = [[] for _ in memories]
        for number, groups in enumerate(self._blocks()):
            vectors = [block_vectors(m, memory, groups) for m in memories]
            codes = self.codec.encode(np.concatenate(vectors), number)
            ends = np.cumsum([len(v) for v in vectors])
            for part, end, own in zip(parts, ends, vectors, strict=True):
                part.append(codes[end - len(own) : end].tobytes())
        return [
            HEADER.pack(MAGIC, MEMORY_FORMAT_VERSION, m.tokens, *self._ids) + b"".join(part)
            for m, part in zip(memories, parts, strict=True)
        ]

    def decode(self, payloads: Sequence[bytes | memoryview]) -> list[ExplicitMemory]:
        """Memories of payloads, all decoded in one call of the codec.

        Raises CorruptFile for bytes that are no payload and ModelMismatch, CodecMismatch or FormatMismatch
        for a payload that something else wrote.
        """
        budget, d = self.config.memory.budget, self.config.head_dim
        memories, pieces = [], []
        for payload in payloads:
            tokens, codes, blocks, places = self.codes(payload)
            rows = (np.empty if len(places) == 2 * budget else np.zeros)((2 * budget, d), np.float32)
            pieces.append(PlacedCodes(codes, blocks, places, rows))
            memories.append(ExplicitMemory(rows[:budget], rows[budget:], tokens))
        self.codec.decode_into(pieces)
        return memories

    def codes(self, payload: bytes | memoryview) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        """A payload's tokens; its codes, uint8 [n, code_bytes]; the block of each; each vector's row in [keys; values].

        Raises what `decode` raises.
        """
        tokens = self.check(payload)
        codes = np.frombuffer(payload, np.uint8, offset=HEADER.size).reshape(-1, self.codec.code_bytes)
        return tokens, codes, *self._plan(tokens)

    def check(self, payload: bytes | memoryview) -> int:
        """The payload's number of tokens, after its header was found to be ours and its length right."""
        if len(payload) < HEADER.size:
            raise CorruptFile(
                f"a memory payload of {len(payload)} bytes is shorter than its header ({HEADER.size})"
            )
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
            raise CorruptFile(
                f"a memory payload claims {tokens} tokens, at most {self.config.memory.reference_tokens} fit"
            )
        if len(payload) != self.payload_bytes(tokens):
            raise CorruptFile(
                f"a memory payload has {len(payload)} bytes, {tokens} tokens need {self.payload_bytes(tokens)}"
            )
        return int(tokens)

    def _blocks(self) -> list[range]:
        """For each block of the codec its groups: 2i for the keys of head i, 2i + 1 for its values."""
        groups, together = 2 * len(self.config.memory.heads), self.codec.together
        return [range(first, first + together) for first in range(0, groups, together)]

    def _plan(self, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """For each code of a payload its block, for each vector its row in [keys; values]. Cached by length."""
        plan = self._plans.get(tokens)
        if plan is None:
            memory = self.config.memory
            blocks, places = [], []
            for number, groups in enumerate(self._blocks()):
                n = min(tokens, memory.heads[groups[0] // 2].tokens)
                firsts = [memory.offsets[g // 2] + g % 2 * memory.budget for g in groups]
                blocks.append(np.full(n, number, np.int64))
                places.append((np.arange(n)[:, None] + np.array(firsts)).ravel())
            plan = np.concatenate(blocks), np.concatenate(places)
            self._plans[tokens] = plan
        return plan
