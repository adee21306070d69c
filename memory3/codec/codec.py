"""Compress key-value vectors to a few bytes each and read them again (paper 3.3, appendix B).

A codec has one set of tables. A code holds one vector (the paper's codec), or all keys and values of a token side by
side (decision 0009). The tables are those of a FAISS composite index `OPQ…[,Residual2x14],PQ…`:

    vector = mean + (coarse[c] + [codeword_1[i_1], …, codeword_M[i_M]]) @ basis

where `basis` is OPQ's rotation, or any other linear map that the codec was fitted in (`memory_model.codec.fit`).
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from memory3.codec.blas import one_thread
from memory3.codec.native.library import Compiled, Library, compiled
from memory3.codec.tables import COARSE_SUBSPACES, ProductTables, pack_bits, unpack_bits
from memory3.errors import InvalidInput

CODEC_FORMAT_VERSION = 4  # 2 added codes of several vectors, 3 the kind "scalar", 4 a basis in bytes
_DISTANCES = 1 << 18  # computed at a time: what a processor's cache holds


class NativeDecoder(Protocol):
    """What the compiled library makes of a codec's tables."""

    def decode_into(self, codes: np.ndarray, indices: np.ndarray, rows: np.ndarray) -> None:
        """Write the vectors of codes uint8 [n, code_bytes] to rows `indices` of float32 `rows`."""


class MemoryCodec(ABC):
    """Interface: vectors to codes and back. Implementations hold tables only and are thread-safe.

    code_bytes: bytes of one code; together: vectors of head_dim numbers that share a code.
    """

    head_dim: int
    code_bytes: int
    codec_id: str
    together: int = 1

    @abstractmethod
    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """Codes uint8 [n, code_bytes] of float32 vectors [n, together * head_dim]."""

    @abstractmethod
    def decode(self, codes: np.ndarray) -> np.ndarray:
        """float32 vectors [n, together * head_dim] of codes uint8 [n, code_bytes]."""

    def decode_rows(self, codes: np.ndarray, indices: np.ndarray, count: int) -> Any:
        """Read-only float32 [count, head_dim], zero except rows `indices` int64 [n * together]: the vectors of n codes.

        An array, or a tensor where `memory_model.nn.decompression` decodes.
        """
        rows = (np.empty if len(indices) == count else np.zeros)((count, self.head_dim), np.float32)
        self._decode_into(codes, indices, rows)
        rows.flags.writeable = False
        return rows

    def _decode_into(self, codes: np.ndarray, indices: np.ndarray, rows: np.ndarray) -> None:
        rows[indices] = self.decode(codes).reshape(-1, self.head_dim)

    def prepare(self) -> None:  # noqa: B027  # most codecs have nothing to prepare
        """Make what decoding needs of the tables, so that no later call waits for it."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write `codec.npz`."""


class ExactCodec(MemoryCodec):
    """Stores vectors as float32 or float16: no codec at all, the oracle for every other one."""

    def __init__(self, head_dim: int, dtype: str = "float32") -> None:
        if dtype not in ("float16", "float32"):
            raise InvalidInput(f"an exact codec stores float16 or float32, not {dtype}")
        self.head_dim, self.dtype = head_dim, np.dtype(dtype).newbyteorder("<")
        self.code_bytes = head_dim * self.dtype.itemsize
        self.codec_id = hashlib.sha256(f"exact {dtype} {head_dim}".encode()).hexdigest()

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """The vectors' own bytes."""
        return np.ascontiguousarray(vectors, self.dtype).view(np.uint8).reshape(len(vectors), -1)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """The bytes as vectors again."""
        flat = np.ascontiguousarray(codes).view(self.dtype)
        return flat.reshape(len(codes), self.head_dim).astype(np.float32)

    def save(self, path: str | Path) -> None:
        """Write `codec.npz`."""
        header = {"kind": "exact", "dtype": self.dtype.name, "head_dim": self.head_dim, "groups": 1}
        save_codec(path, header, {})


class TableCodec(MemoryCodec):
    """A codec that decodes by tables: with the compiled library where it can, else with numpy."""

    @property
    @abstractmethod
    def native(self) -> NativeDecoder | None:
        """The compiled way of decoding these tables; None where numpy decodes."""

    @abstractmethod
    def _decode_by_numpy(self, codes: np.ndarray) -> np.ndarray:
        """float32 [n, together * head_dim]: the reference of the compiled way."""

    def prepare(self) -> None:
        """See MemoryCodec."""
        _ = self.native

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """float32 [n, together * head_dim]."""
        rows = np.empty((len(codes) * self.together, self.head_dim), np.float32)
        self._decode_into(codes, np.arange(len(rows)), rows)
        return rows.reshape(len(codes), self.together * self.head_dim)

    def _decode_into(self, codes: np.ndarray, indices: np.ndarray, rows: np.ndarray) -> None:
        codes = np.ascontiguousarray(codes, np.uint8)
        if codes.ndim != 2 or codes.shape[1] != self.code_bytes:
            raise InvalidInput(f"codes have shape {codes.shape}, expected [n, {self.code_bytes}]")
        if self.native is not None:
            self.native.decode_into(codes, indices, rows)
        else:
            rows[indices] = self._decode_by_numpy(codes).reshape(-1, self.head_dim)


class ProductCodec(TableCodec):
    """OPQ + optional two-part coarse quantizer + product quantizer codes.

    library: the compiled decoder, None for numpy. What it needs of the tables is made at the first decoding.
    """

    def __init__(self, tables: ProductTables, library: Library | None = None) -> None:
        self.tables, self.library, self.together = tables, library, tables.together
        self.head_dim = len(tables.mean) // tables.together
        self.code_bytes, self.codec_id = tables.code_bytes, tables.codec_id
        # Subspaces are padded to one width: coordinates that are always zero are left out of the product.
        used = tables.codewords.any(axis=1).reshape(-1)
        self._used = slice(None) if tables.coarse is not None or used.all() else np.flatnonzero(used)
        self._basis = tables.basis[self._used]

    @cached_property
    def _into(self) -> np.ndarray:
        """What vectors are projected with, float32 [d, d_out]."""
        return self.tables.projection()

    @cached_property
    def native(self) -> Compiled | None:
        """The compiled way of decoding these tables; None where numpy decodes."""
        return compiled(self.tables, self.library, self._decode_by_numpy) if self.library else None

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """The nearest codewords, in numpy: on the device as in the cloud, so that both write the same bytes."""
        tables, width = self.tables, len(self.tables.mean)
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise InvalidInput(f"vectors have shape {vectors.shape}, expected [n, {width}]")
        x = (vectors.astype(np.float32) - tables.mean) @ self._into
        parts = []
        if tables.coarse is not None:
            coarse = _nearest(x.reshape(len(x), COARSE_SUBSPACES, -1), tables.coarse)
            parts.append(pack_bits(coarse, tables.coarse_bits))
            x = x - _words(tables.coarse, coarse)
        fine = _nearest(x.reshape(len(x), len(tables.codewords), -1), tables.codewords)
        return np.concatenate([*parts, pack_bits(fine, tables.bits)], axis=1)

    def _decode_by_numpy(self, codes: np.ndarray) -> np.ndarray:
        """float32 [n, d]: one gather over all codes, then one matrix product."""
        tables = self.tables
        fine = unpack_bits(codes[:, tables.coarse_bytes :], tables.bits, len(tables.codewords))
        words = _words(tables.codewords, fine)
        if tables.coarse is not None:
            coarse = unpack_bits(codes[:, : tables.coarse_bytes], tables.coarse_bits, COARSE_SUBSPACES)
            words += _words(tables.coarse, coarse)
        with one_thread():
            found = words[:, self._used] @ self._basis
        found += tables.mean
        return np.asarray(found)

    def save(self, path: str | Path) -> None:
        """Write `codec.npz`, tables in float16 and the basis in bytes where they lose nothing."""
        header = {"kind": "product", "groups": self.together, "head_dim": self.head_dim, "together": self.together}
        arrays = self.tables.arrays()
        numbers, steps, product = in_bytes(self.tables.basis, self.together)
        if np.array_equal(product, self.tables.basis):
            arrays |= {"basis": numbers, "basis_step": steps}
        save_codec(path, header, {name: _smallest(array[None]) for name, array in arrays.items()})


def _words(codewords: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The codewords [parts, words, width] that index int64 [n, parts] names, side by side: [n, parts * width]."""
    parts, words, width = codewords.shape
    rows = index + np.arange(parts) * words
    found = codewords.reshape(-1, width).take(rows, axis=0, mode="clip")  # known to be in range
    return found.reshape(len(index), parts * width)


def _nearest(x: np.ndarray, codewords: np.ndarray) -> np.ndarray:
    """Number of the nearest codeword [parts, words, width] of each part of x [n, parts, width], int64 [n, parts]."""
    found = np.empty(x.shape[:2], np.int64)
    step = max(1, _DISTANCES // codewords.shape[1])
    for part, words in enumerate(codewords):
        lengths, opposite = np.square(words).sum(1), np.ascontiguousarray(-2 * words.T)
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            # The squared distance, less the vector's own length, which is the same for all codewords.
            found[rows, part] = (x[rows, part] @ opposite + lengths).argmin(axis=1)
    return found


def save_codec(path: str | Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a codec file, to a temporary name first."""
    path = Path(path)
    text = json.dumps({"version": CODEC_FORMAT_VERSION, **header}, sort_keys=True).encode()
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, header=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def in_bytes(matrix: np.ndarray, together: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(numbers int8 [n, d], steps float32 [n, together], their product): near the matrix [n, d], and it if it is one.

    Each of `together` parts of a row has a step. It has eleven bits, so that 127 steps are a float32 number, from which
    the step can be computed again.
    """
    parts = matrix.reshape(len(matrix), together, -1)
    size, exponent = np.frexp(np.abs(parts).max(axis=2) / 127)
    steps = np.ldexp(np.ceil(size * 2048) / 2048, exponent).astype(np.float32)
    steps[steps == 0] = 1
    numbers = np.rint(parts / steps[..., None]).astype(np.int8)
    return numbers.reshape(matrix.shape), steps, (numbers * steps[..., None]).reshape(matrix.shape)


def _smallest(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.int8:
        return array
    half = array.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), array) else array
