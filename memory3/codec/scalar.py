"""`ScalarCodec`: every number of a token's vectors rounded by itself, to 4 or 8 bits, as KV caches are quantised.

    vector = offset + step * i        i: the number's code, one step and one offset for each number of a token

Steps come from a few memories of a model (`ScalarTables.of`): nothing is fitted. A code takes
four times the bytes of a fitted product code.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from memory3.codec.codec import TableCodec, save_codec
from memory3.codec.native.library import Library, ScaledCodes
from memory3.codec.tables import pack_bits, unpack_bits
from memory3.errors import InvalidInput

SCALAR_BITS = (4, 8)
_NUMBERS_AT_ONCE = 2048
_SHARES = np.linspace(0.3, 1.0, 15, dtype=np.float32)
"""Reaches that are tried, of the farthest value seen: the few beyond get the last code."""
_SMALLEST = 1e-6  # of a reach, so that a number that never changes has a step


@dataclass(frozen=True)
class ScalarTables:
    """offset, step: float32 [together * head_dim], step above 0; bits of a number's code: 4 or 8."""

    offset: np.ndarray
    step: np.ndarray
    bits: int
    together: int = 1

    def __post_init__(self) -> None:
        """Raise InvalidInput where the arrays do not belong together or a step is none."""
        if self.offset.ndim != 1 or self.offset.shape != self.step.shape or len(self.offset) % max(self.together, 1):
            raise InvalidInput(f"offsets {self.offset.shape} and steps {self.step.shape} do not fit {self.together}")
        if self.together < 1 or self.bits not in SCALAR_BITS or len(self.offset) * self.bits % 8:
            raise InvalidInput(f"a scalar codec has 4 or 8 bits a number, in whole bytes, not {self.bits}")
        if not (np.isfinite(self.offset).all() and np.isfinite(self.step).all() and (self.step > 0).all()):
            raise InvalidInput("a scalar codec's offsets must be finite, its steps finite and above 0")

    @classmethod
    def of(cls, vectors: np.ndarray, bits: int, together: int = 1) -> ScalarTables:
        """For vectors like these, float32 [n, together * head_dim]: of each number the step that loses least."""
        offsets, steps, last = [], [], (1 << bits) - 1
        for first in range(0, vectors.shape[1], _NUMBERS_AT_ONCE):
            own = np.asarray(vectors[:, first : first + _NUMBERS_AT_ONCE], np.float32)
            mean, reach = own.mean(0), np.maximum(np.abs(own - own.mean(0)).max(0), _SMALLEST)
            best, least = reach, np.full(reach.shape, np.inf, np.float32)
            for share in _SHARES:
                step = 2 * share * reach / last
                found = np.clip(np.rint((own - mean) / step + last / 2), 0, last)
                lost = np.square(mean + step * (found - last / 2) - own).sum(0)
                best, least = np.where(lost < least, step, best), np.minimum(lost, least)
            offsets.append(mean - best * last / 2)
            steps.append(best)
        offset, step = (np.concatenate(part).astype(np.float32) for part in (offsets, steps))
        return cls(offset, step, bits, together)

    @property
    def codec_id(self) -> str:
        """SHA-256 over what decodes."""
        digest = hashlib.sha256(f"scalar {self.bits} together {self.together}".encode())
        for array in (self.offset, self.step):
            digest.update(np.ascontiguousarray(array, "<f4").tobytes())
        return digest.hexdigest()


class ScalarCodec(TableCodec):
    """Codes of ScalarTables. library: the compiled decoder, None for numpy."""

    def __init__(self, tables: ScalarTables, library: Library | None = None) -> None:
        self.tables, self.library, self.together = tables, library, tables.together
        self.head_dim = len(tables.offset) // tables.together
        self.code_bytes, self.codec_id = len(tables.offset) * tables.bits // 8, tables.codec_id

    @cached_property
    def native(self) -> ScaledCodes | None:
        """The compiled loop; None where numpy decodes."""
        tables = self.tables
        if self.library is None or not ScaledCodes.suits(self.head_dim, tables.bits):
            return None
        return ScaledCodes(tables.offset, tables.step, tables.bits, tables.together, self.library)

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """The nearest codes; numbers beyond the first or last step get that one's code."""
        tables, width = self.tables, len(self.tables.offset)
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise InvalidInput(f"vectors have shape {vectors.shape}, expected [n, {width}]")
        numbers = np.rint((vectors.astype(np.float32) - tables.offset) / tables.step)
        return pack_bits(np.clip(numbers, 0, (1 << tables.bits) - 1).astype(np.int64), tables.bits)

    def _decode_by_numpy(self, codes: np.ndarray) -> np.ndarray:
        tables = self.tables
        numbers = unpack_bits(codes, tables.bits, len(tables.offset)).astype(np.float32)
        return np.asarray(tables.offset + tables.step * numbers)

    def save(self, path: str | Path) -> None:
        """Write `codec.npz`."""
        tables = self.tables
        header = {"kind": "scalar", "groups": self.together, "head_dim": self.head_dim, "together": self.together}
        save_codec(path, {**header, "bits": tables.bits}, {"offset": tables.offset, "step": tables.step})
