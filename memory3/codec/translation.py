"""Memories of an earlier model as memories of a later one: `Translation` maps payloads without running a model.

    old codes -> keys, values -> keys turned back to position 0 -> a matrix -> turned again -> new codes

`memory-model translate-memories` fits the matrix, one for the vectors of all heads of a token. Where only the codec
changed there is none: vectors are coded again.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile

from memory3.codec.codec import save_codec
from memory3.codec.loading import load_codec
from memory3.codec.payload import HEADER, ExplicitMemory, Identity, MemoryFormat
from memory3.errors import CorruptFile, InvalidInput

FOLDER = "translations"
"""Of a model folder: one folder for each earlier model and codec."""
_MAPS, _CODEC = "maps.npz", "codec.npz"


@dataclass(frozen=True)
class TokenMap:
    """A token's new vectors from its old ones: of all memory heads, keys before values.

    matrix: float32 [2 * heads * d + 1, 2 * heads * d], the last row is added. cos, sin: of each head's tokens,
    [heads, tokens, d].
    """

    matrix: np.ndarray
    cos: np.ndarray
    sin: np.ndarray

    def __post_init__(self) -> None:
        """Raise InvalidInput for shapes that do not belong together or numbers that are not finite."""
        heads, _, d = self.cos.shape
        expected = [(2 * heads * d + 1, 2 * heads * d), self.cos.shape, self.cos.shape]
        arrays = (self.matrix, self.cos, self.sin)
        if [one.shape for one in arrays] != expected:
            raise InvalidInput(f"maps of shapes {[one.shape for one in arrays]} do not belong together")
        if not all(np.isfinite(one).all() for one in arrays):
            raise InvalidInput("maps hold NaN or infinity")

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """The new vectors [2, heads, tokens, d] of old ones, of the first tokens of a reference."""
        rows = at_zero(vectors, self.cos, self.sin)
        found = rows @ self.matrix[:-1] + self.matrix[-1]
        _, heads, tokens, d = vectors.shape
        keys, values = found.reshape(tokens, 2, heads, d).transpose(1, 2, 0, 3)
        return np.stack([turned(keys, self.cos[:, :tokens], self.sin[:, :tokens]), values])


def at_zero(vectors: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Vectors [2, heads, tokens, d] token by token, [tokens, 2 * heads * d], with the keys turned to position 0."""
    tokens = vectors.shape[2]
    keys = turned(vectors[0], cos[:, :tokens], -sin[:, :tokens])
    return np.stack([keys, vectors[1]]).transpose(2, 0, 1, 3).reshape(tokens, -1)


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Vectors [..., tokens, d] in rotary position, halves apart; with -sin they are turned back."""
    half = x.shape[-1] // 2
    return np.asarray(x * cos + np.concatenate((-x[..., half:], x[..., :half]), axis=-1) * sin)


class Translation:
    """From one earlier model and codec to one later. Thread-safe: holds tables only."""

    def __init__(self, old: MemoryFormat, new: MemoryFormat, maps: TokenMap | None = None) -> None:
        """maps: None where one model wrote both. Raises InvalidInput for memories of different shapes."""
        memory = new.config.memory
        if maps is not None:
            self.require_mappable(old, new)
        elif old.identity.memory_format_id != new.identity.memory_format_id:
            raise InvalidInput("memories of other heads, tokens or dimensions cannot be coded again")
        if maps is None and old.identity.model_id != new.identity.model_id:
            raise InvalidInput("different models need maps")
        expected = (len(memory.heads), memory.reference_tokens, new.config.head_dim)
        if maps is not None and maps.cos.shape != expected:
            raise InvalidInput(f"maps are of {maps.cos.shape} heads, tokens and numbers, expected {expected}")
        self.old, self.new, self.maps = old, new, maps

    @staticmethod
    def require_mappable(old: MemoryFormat, new: MemoryFormat) -> None:
        """Raises InvalidInput for memories of two models that no map turns into each other."""
        memory = new.config.memory
        if old.identity.memory_format_id != new.identity.memory_format_id:
            raise InvalidInput("the two models keep other heads, tokens or dimensions: their memories have no map")
        if any(head.tokens != memory.reference_tokens for head in memory.heads):
            raise InvalidInput("heads that keep some tokens do not store which: their keys have no map")

    def __call__(self, payloads: Sequence[bytes | memoryview]) -> list[bytes]:
        """Payloads of the old model as the new one's; raises what `MemoryFormat.check` raises."""
        return self.new.encode([self.memory(one) for one in self.old.decode(payloads)])

    def memory(self, old: ExplicitMemory) -> ExplicitMemory:
        """A memory of the old model as one of the new."""
        if self.maps is None:
            return old
        memory, d = self.new.config.memory, self.new.config.head_dim
        sides = np.stack([old.keys, old.values]).reshape(2, len(memory.heads), memory.reference_tokens, d)
        found = np.zeros_like(sides)
        found[:, :, : old.tokens] = self.maps.apply(sides[:, :, : old.tokens])
        keys, values = found.reshape(2, -1, d)
        return ExplicitMemory(keys, values, old.tokens)

    def save(self, folder: Path) -> Path:
        """Write it below a model folder's translations; returns where."""
        ids = asdict(self.old.identity)
        name = hashlib.sha256("".join(ids.values()).encode()).hexdigest()[:16]
        path = folder / name
        path.mkdir(parents=True, exist_ok=True)
        self.old.codec.save(path / _CODEC)
        arrays = {} if self.maps is None else {one: getattr(self.maps, one) for one in ("matrix", "cos", "sin")}
        save_codec(path / _MAPS, {"old": ids, "new": asdict(self.new.identity)}, arrays)
        return path

    @classmethod
    def load(cls, path: Path, new: MemoryFormat) -> Translation | None:
        """What `save` wrote; None for one to another model or codec. Raises CorruptFile."""
        try:
            with NpzFile(io.BytesIO((path / _MAPS).read_bytes())) as file:
                header = json.loads(bytes(file["header"]).decode())
                arrays = {name: file[name].astype(np.float32) for name in file.files if name != "header"}
            if Identity(**header["new"]) != new.identity:
                return None
            ids = Identity(**header["old"])
            codec = load_codec(path / _CODEC)
            old = MemoryFormat(new.config, ids.model_id, codec)
            if old.identity != ids:
                raise CorruptFile(f"{path} has another codec than its maps name: fit it again")
            return cls(old, new, TokenMap(**arrays) if arrays else None)
        except (BadZipFile, EOFError, ValueError, TypeError, LookupError, InvalidInput) as error:
            raise CorruptFile(f"{path} holds no translation ({error}): fit it again") from error


def ids_in(payload: bytes | memoryview) -> bytes:
    """The ids of a payload's header, which are its writer's."""
    return bytes(payload[HEADER.size - 48 : HEADER.size])


def header_ids(identity: Identity) -> bytes:
    """As `ids_in` of a payload of this identity."""
    ids = identity.model_id, identity.codec_id, identity.memory_format_id
    return b"".join(bytes.fromhex(one)[:16] for one in ids)


def load_translations(folder: Path, new: MemoryFormat) -> list[Translation]:
    """All translations of a model folder to its present model and codec."""
    found = (Translation.load(path.parent, new) for path in sorted((folder / FOLDER).glob(f"*/{_MAPS}")))
    return [one for one in found if one is not None]
