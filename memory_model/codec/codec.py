"""Compress key-value vectors to a few bytes each and read them again, in numpy (paper 3.3, appendix B).

A group is one (memory head, key or value); group 2i holds the keys of head i of the budget table, 2i + 1 its values.
A codec has tables for every group, or one set for all (the paper's), or codes the vectors of consecutive groups
together, a block: of one group (`together` 1), of a head (2), or of a whole token (decision 0009).

The tables are those of a FAISS composite index `OPQ…[,Residual2x14],PQ…`:

    vector = mean + (coarse[c] + [codeword_1[i_1], …, codeword_M[i_M]]) @ basis

where `basis` is OPQ's rotation, or any other linear map that the codec was fitted in (see `fit_codec`).
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from memory_model.codec.blas import ON_ONE_THREAD
from memory_model.codec.encode import encoding_map, product_codes
from memory_model.codec.native.decoder import BfloatProduct, FoldedTables, native_decoder
from memory_model.codec.native.library import Library, installed
from memory_model.codec.tables import COARSE_SUBSPACES, PlacedCodes
from memory_model.codec.tables import ProductTables as ProductTables  # part of what a codec is to others
from memory_model.errors import CorruptFile, InvalidInput, Memory3Error, MissingFile

CODEC_FORMAT_VERSION = 2  # 2 added blocks of several groups; what needs none of it is still written as 1
_UNREADABLE = (
    BadZipFile, zlib.error, EOFError, OSError, ValueError, TypeError, LookupError, NotImplementedError,
)  # fmt: skip


class MemoryCodec:
    """Interface: vectors to codes and back. Implementations hold tables only and are thread-safe.

    code_bytes: bytes of one code; together: consecutive groups whose vectors share one code; groups: 1 if
    one set of tables serves all groups, else their number, a multiple of `together`.
    """

    head_dim: int
    code_bytes: int
    groups: int
    codec_id: str
    together: int = 1

    def encode(self, vectors: np.ndarray, block: int) -> np.ndarray:
        """Codes uint8 [n, code_bytes] of one block's float32 vectors [n, together * head_dim]."""
        raise Memory3Error("an abstract codec cannot encode")

    def decode(self, codes: np.ndarray, blocks: int | np.ndarray) -> np.ndarray:
        """float32 vectors [n, together * head_dim] of codes uint8 [n, code_bytes].

        blocks: the number of the codes' block, or int [n]; it is the group's number where `together` is 1.
        """
        raise Memory3Error("an abstract codec cannot decode")

    def decode_into(self, pieces: Sequence[PlacedCodes]) -> None:
        """Write the vectors of all codes to their rows, the codes decoded in one batch."""
        if not pieces:
            return
        codes = np.concatenate([piece.codes for piece in pieces])
        blocks = np.concatenate([piece.blocks for piece in pieces])
        vectors = self.decode(codes, blocks).reshape(-1, self.head_dim)
        first = 0
        for piece in pieces:
            end = first + len(piece.places)
            piece.rows[piece.places] = vectors[first:end]
            first = end

    def save(self, path: str | Path) -> None:
        """Write `codec.npz`."""
        raise Memory3Error("an abstract codec cannot be saved")

    @staticmethod
    def load(path: str | Path) -> MemoryCodec:
        """Read `codec.npz`; raises MissingFile, or CorruptFile for anything that is not one."""
        path = Path(path)
        if not path.is_file():
            raise MissingFile(f"no codec at {path}: make one with `memory-model fit-codec`")
        try:
            with np.load(path, allow_pickle=False) as file:
                header = json.loads(bytes(file["header"]).decode())
                arrays = {k: file[k] for k in file.files if k != "header"}
            version = header.get("version")
            if version not in range(1, CODEC_FORMAT_VERSION + 1):
                raise CorruptFile(
                    f"{path} has codec format {version}, this program reads 1 to {CODEC_FORMAT_VERSION}"
                )
            if header["kind"] == "exact":
                return ExactCodec(int(header["head_dim"]), int(header["groups"]), str(header["dtype"]))
            if header["kind"] == "product":
                tables = {k: v.astype(np.float32) for k, v in arrays.items()}
                together = int(header.get("together", 1))
                return ProductCodec(ProductTables(**tables, together=together), installed())
        except _UNREADABLE as error:
            raise CorruptFile(f"{path} is not a codec file: {error}") from error
        raise CorruptFile(f"{path} holds a codec of unknown kind {header['kind']!r}")


class ExactCodec(MemoryCodec):
    """Stores vectors as float32 or float16: no codec at all, the oracle for every other one."""

    def __init__(self, head_dim: int, groups: int = 1, dtype: str = "float32") -> None:
        if dtype not in ("float16", "float32"):
            raise InvalidInput(f"an exact codec stores float16 or float32, not {dtype}")
        self.head_dim, self.groups, self.dtype = head_dim, groups, np.dtype(dtype)
        self.code_bytes = head_dim * self.dtype.itemsize
        self.codec_id = hashlib.sha256(f"exact {dtype} {head_dim}".encode()).hexdigest()

    def encode(self, vectors: np.ndarray, block: int) -> np.ndarray:
        """The vectors' own bytes."""
        stored = np.ascontiguousarray(vectors, self.dtype.newbyteorder("<"))
        return stored.view(np.uint8).reshape(len(vectors), -1)

    def decode(self, codes: np.ndarray, blocks: int | np.ndarray) -> np.ndarray:
        """The bytes as vectors again."""
        flat = np.ascontiguousarray(codes).view(self.dtype.newbyteorder("<"))
        return flat.reshape(len(codes), self.head_dim).astype(np.float32)

    def save(self, path: str | Path) -> None:
        """Write `codec.npz`."""
        shape = {"head_dim": self.head_dim, "groups": self.groups}
        save_codec(path, {"kind": "exact", "dtype": self.dtype.name, **shape}, {})


class ProductCodec(MemoryCodec):
    """OPQ + optional two-part coarse quantizer + product quantizer codes.

    library: the compiled decoder, None for numpy. What it needs of the tables is made at the first decoding.
    """

    def __init__(self, tables: ProductTables, library: Library | None = None) -> None:
        tables.check()
        self.tables = tables
        self.library = library
        self._into: np.ndarray | None = None
        self._native: FoldedTables | BfloatProduct | None = None
        self._native_made = library is None
        self._making = threading.Lock()
        self.together = tables.together
        g, m, words, width = tables.codewords.shape
        self._blocks = g
        self.groups, self.head_dim = g * tables.together, tables.mean.shape[1] // tables.together
        self.code_bytes = tables.code_bytes
        self.codec_id = _tables_id(tables)
        self._flat = np.ascontiguousarray(tables.codewords.reshape(g * m * words, width))
        self._first = (np.arange(g)[:, None] * m + np.arange(m)) * words
        self._coarse_words: np.ndarray | None = None
        if tables.coarse is not None:
            _, halves, coarse_words, half = tables.coarse.shape
            self._coarse_words = np.ascontiguousarray(tables.coarse.reshape(-1, half))
            self._first_coarse = (np.arange(g)[:, None] * halves + np.arange(halves)) * coarse_words
        self._shifted = bool(tables.mean.any())
        # Subspaces are padded to one width: coordinates that are always zero are left out of the product.
        used = tables.codewords.any(axis=2).reshape(g, m * width)
        if tables.coarse is not None or used.all():
            self._used: list[np.ndarray | slice] = [slice(None)] * g
        else:
            self._used = [np.flatnonzero(row) for row in used]
        self._basis = [basis[used] for basis, used in zip(tables.basis, self._used, strict=True)]

    def encode(self, vectors: np.ndarray, block: int) -> np.ndarray:
        """The nearest codewords; two threads at once at most make the map twice."""
        width = self.tables.mean.shape[1]
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise InvalidInput(f"vectors have shape {vectors.shape}, expected [n, {width}]")
        if self._into is None:
            self._into = encoding_map(self.tables)
        return product_codes(self.tables, self._into, vectors, 0 if self.groups == 1 else block)

    def decode(self, codes: np.ndarray, blocks: int | np.ndarray) -> np.ndarray:
        """float32 [n, d]."""
        codes = np.ascontiguousarray(codes, np.uint8)
        if codes.ndim != 2 or codes.shape[1] != self.code_bytes:
            raise InvalidInput(f"codes have shape {codes.shape}, expected [n, {self.code_bytes}]")
        n = len(codes)
        if self._blocks == 1:
            which = np.zeros(n, np.int64)
        else:
            which = np.ascontiguousarray(np.broadcast_to(np.asarray(blocks, np.int64), (n,)))
            if n and (which.min() < 0 or which.max() >= self._blocks):
                raise InvalidInput(f"codec group {which.max()} does not exist, there are {self._blocks}")
        native = self.native()
        if native is None:
            return self._decode_by_numpy(codes, which)
        rows = np.empty((n * self.together, self.head_dim), np.float32)
        native.decode_into([PlacedCodes(codes, which, np.arange(len(rows)), rows)])
        return rows.reshape(n, self.together * self.head_dim)

    def decode_into(self, pieces: Sequence[PlacedCodes]) -> None:
        """Write the vectors of all codes to their rows."""
        native = self.native()
        if native is None or not pieces:
            super().decode_into(pieces)
        else:
            native.decode_into(pieces)

    def native(self) -> FoldedTables | BfloatProduct | None:
        """The compiled way of decoding these tables, made when it is first asked for; None where numpy decodes."""
        with self._making:
            if not self._native_made and self.library is not None:
                self._native = native_decoder(self.tables, self.library, self._decode_by_numpy)
                self._native_made = True
            return self._native

    def _decode_by_numpy(self, codes: np.ndarray, which: np.ndarray) -> np.ndarray:
        """float32 [n, d]: one gather over all codes, then one matrix product for each block met."""
        n, one = len(codes), self._blocks == 1
        index = unpack_bits(codes[:, self.tables.coarse_bytes :], self.tables.bits, self._first.shape[1])
        index += self._first if one else self._first[which]
        words = _rows(self._flat, index)
        if self._coarse_words is not None:
            halves = unpack_bits(
                codes[:, : self.tables.coarse_bytes], self.tables.coarse_bits, COARSE_SUBSPACES
            )
            halves += self._first_coarse if one else self._first_coarse[which]
            words += _rows(self._coarse_words, halves)
        if one:
            with ON_ONE_THREAD:
                found = np.matmul(words[:, self._used[0]], self._basis[0])
            if self._shifted:
                found += self.tables.mean[0]
            return found
        result = np.empty((n, self.tables.mean.shape[1]), np.float32)
        edges = np.flatnonzero(np.diff(which, prepend=-1, append=-1)) if n else np.zeros(0, int)
        for start, end in pairwise(edges.tolist()):
            g = which[start]
            with ON_ONE_THREAD:
                np.matmul(words[start:end, self._used[g]], self._basis[g], out=result[start:end])
            result[start:end] += self.tables.mean[g]
        return result

    def save(self, path: str | Path) -> None:
        """Write `codec.npz`, float16 tables where they lose nothing."""
        header = {"kind": "product", "groups": self.groups, "head_dim": self.head_dim}
        if self.together > 1 or self.tables.into is not None:
            header |= {"version": CODEC_FORMAT_VERSION, "together": self.together}
        save_codec(path, header, {k: _smallest(v) for k, v in self.tables.arrays().items()})


def unpack_bits(codes: np.ndarray, bits: int, count: int) -> np.ndarray:
    """`count` numbers of `bits` bits each, int64 [n, count], from little-endian bit strings uint8 [n, bytes]."""
    if bits == 8:
        return codes[:, :count].astype(np.int64)
    # Words of 64 bits that begin at a byte, as few as hold every number whole.
    n, size = codes.shape
    padded = np.zeros((n, size + 8), np.uint8)
    padded[:, :size] = codes
    result = np.empty((n, count), np.int64)
    word, first = np.empty(n, np.int64), -64
    for number in range(count):
        if (number + 1) * bits > first + 63:  # 63: a sign bit would be shifted in
            first = number * bits // 8 * 8
            word[:] = padded[:, first // 8 : first // 8 + 8].copy().view("<i8")[:, 0]
        np.right_shift(word, number * bits - first, out=result[:, number])
    result &= (1 << bits) - 1
    return result


def _rows(table: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Rows of a table [rows, width], float32 [n, count * width]. Index int64 [n, count] is known to be in range."""
    found = np.empty((*index.shape, table.shape[1]), np.float32)
    table.take(index, axis=0, out=found, mode="clip")  # any other mode buffers `out`
    return found.reshape(len(index), index.shape[1] * table.shape[1])


def save_codec(path: str | Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a codec file, to a temporary name first."""
    path = Path(path)
    text = json.dumps({"version": 1, **header}, sort_keys=True).encode()
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, header=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def _smallest(array: np.ndarray) -> np.ndarray:
    half = array.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), array) else array


def _tables_id(tables: ProductTables) -> str:
    """SHA-256 over what decodes; how a codec encodes does not change what its codes mean."""
    arrays = {name: array for name, array in tables.arrays().items() if name != "into"}
    digest = hashlib.sha256(f"together {tables.together}".encode() if tables.together > 1 else b"")
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name], "<f4").tobytes())
    return digest.hexdigest()
