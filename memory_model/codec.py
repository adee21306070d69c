"""Compress key-value vectors to a few bytes each; decoding here is numpy only (paper 3.4, appendix B).

A group is one (memory head, key or value); group 2i holds the keys of head i of the budget table, 2i + 1
its values. A codec has tables for every group, or one set of tables for all (the paper's). The tables
are those of a FAISS composite index `OPQ…[,Residual2x14],PQ…`; FAISS trains and encodes
(`memory_model.training.faiss_codec`), this module only decodes:

    vector = mean + (coarse[c] + [codeword_1[i_1], …, codeword_M[i_M]]) @ basis

where `basis` is OPQ's rotation, or any other linear map that the codec was fitted in (see `fit_codec`).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from memory_model.errors import CorruptFile, InvalidInput, Memory3Error, MissingFile

CODEC_FORMAT_VERSION = 1
_COARSE_SUBSPACES = 2


class MemoryCodec:
    """Interface: vectors to codes and back. Implementations hold tables only and are thread-safe."""

    head_dim: int
    code_bytes: int
    groups: int
    codec_id: str

    def encode(self, vectors: np.ndarray, group: int) -> np.ndarray:
        """Codes uint8 [n, code_bytes] of float32 vectors [n, head_dim] of one group."""
        raise Memory3Error("this codec only decodes: encoding needs the `service` extra (faiss)")

    def decode(self, codes: np.ndarray, groups: int | np.ndarray) -> np.ndarray:
        """float32 vectors [n, head_dim] of codes uint8 [n, code_bytes]; `groups` is one number or int [n]."""
        raise Memory3Error("an abstract codec cannot decode")

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
        except (
            BadZipFile,
            zlib.error,
            ValueError,
            KeyError,
            OSError,
            EOFError,
            NotImplementedError,
        ) as error:
            raise CorruptFile(f"{path} is not a codec file: {error}") from error
        return codec_from_arrays(header, arrays, str(path))


class ExactCodec(MemoryCodec):
    """Stores vectors as float32 or float16: no codec at all, the oracle for every other one."""

    def __init__(self, head_dim: int, groups: int = 1, dtype: str = "float32") -> None:
        if dtype not in ("float16", "float32"):
            raise InvalidInput(f"an exact codec stores float16 or float32, not {dtype}")
        self.head_dim, self.groups, self.dtype = head_dim, groups, np.dtype(dtype)
        self.code_bytes = head_dim * self.dtype.itemsize
        self.codec_id = hashlib.sha256(f"exact {dtype} {head_dim}".encode()).hexdigest()

    def encode(self, vectors: np.ndarray, group: int) -> np.ndarray:
        """The vectors' own bytes."""
        return (
            np.ascontiguousarray(vectors, self.dtype.newbyteorder("<"))
            .view(np.uint8)
            .reshape(len(vectors), -1)
        )

    def decode(self, codes: np.ndarray, groups: int | np.ndarray) -> np.ndarray:
        """The bytes as vectors again."""
        flat = np.ascontiguousarray(codes).view(self.dtype.newbyteorder("<"))
        return flat.reshape(len(codes), self.head_dim).astype(np.float32)

    def save(self, path: str | Path) -> None:
        """Write `codec.npz`."""
        save_codec(
            path,
            {"kind": "exact", "dtype": self.dtype.name, "head_dim": self.head_dim, "groups": self.groups},
            {},
        )


@dataclass(frozen=True)
class ProductTables:
    """Tables of the groups of a product codec, float32 unless said otherwise.

    mean [g, d], basis [g, d_out, d] (rows orthonormal for OPQ, identity without), codewords
    [g, M, 2^bits, d_out/M], coarse [g, 2, 2^coarse_bits, d_out/2] or None (the `Residual2x14` stage).
    """

    mean: np.ndarray
    basis: np.ndarray
    codewords: np.ndarray
    coarse: np.ndarray | None = None

    @property
    def bits(self) -> int:
        """Bits of one product code."""
        return int(self.codewords.shape[2]).bit_length() - 1

    @property
    def coarse_bits(self) -> int:
        """Bits of one of the two coarse codes; 0 without a coarse stage."""
        return 0 if self.coarse is None else int(self.coarse.shape[2]).bit_length() - 1

    @property
    def coarse_bytes(self) -> int:
        """Bytes in front of a code that hold both coarse codes, as FAISS packs them."""
        return (_COARSE_SUBSPACES * self.coarse_bits + 7) // 8

    @property
    def code_bytes(self) -> int:
        """Bytes of one vector's code."""
        return self.coarse_bytes + (self.codewords.shape[1] * self.bits + 7) // 8

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, as they are saved."""
        named = {"mean": self.mean, "basis": self.basis, "codewords": self.codewords}
        return named if self.coarse is None else {**named, "coarse": self.coarse}

    def check(self) -> None:
        """Raise InvalidInput when the shapes do not belong together or a number is not finite."""
        g, d = self.mean.shape
        out = self.basis.shape[1]
        _, M, words, width = self.codewords.shape
        expected: dict[str, tuple[int, ...]] = {
            "mean": (g, d), "basis": (g, out, d), "codewords": (g, M, words, out // M)
        }  # fmt: skip
        if self.coarse is not None:
            expected["coarse"] = (g, _COARSE_SUBSPACES, self.coarse.shape[2], out // _COARSE_SUBSPACES)
        for name, array in self.arrays().items():
            if array.shape != expected[name] or not np.isfinite(array).all():
                raise InvalidInput(
                    f"codec table {name} has shape {array.shape}, expected finite {expected[name]}"
                )
        if words & (words - 1) or M * width != out or not 1 <= self.bits <= 16:
            raise InvalidInput(
                f"codec tables of {M} x {words} codewords of {width} do not make {out} dimensions"
            )


class ProductCodec(MemoryCodec):
    """Decoder of OPQ + optional two-part coarse quantizer + product quantizer codes."""

    def __init__(self, tables: ProductTables) -> None:
        tables.check()
        self.tables = tables
        self.groups, self.head_dim = tables.mean.shape
        self.code_bytes = tables.code_bytes
        self.codec_id = _tables_id(tables.arrays())
        g, m, words, width = tables.codewords.shape
        self._flat = np.ascontiguousarray(tables.codewords.reshape(g * m * words, width))
        self._first = (np.arange(g)[:, None] * m + np.arange(m)) * words

    def decode(self, codes: np.ndarray, groups: int | np.ndarray) -> np.ndarray:
        """float32 [n, d]: one gather over all vectors, then one matrix product for each group met."""
        codes = np.asarray(codes, np.uint8)
        if codes.ndim != 2 or codes.shape[1] != self.code_bytes:
            raise InvalidInput(f"codes have shape {codes.shape}, expected [n, {self.code_bytes}]")
        n = len(codes)
        which = (
            np.zeros(n, np.int64) if self.groups == 1 else np.broadcast_to(np.asarray(groups, np.int64), (n,))
        )
        if n and (which.min() < 0 or which.max() >= self.groups):
            raise InvalidInput(f"codec group {which.max()} does not exist, there are {self.groups}")
        index = unpack_bits(codes[:, self.tables.coarse_bytes :], self.tables.bits, self._first.shape[1])
        index += self._first[which]
        words = self._flat.take(index, axis=0).reshape(n, -1)
        if self.tables.coarse is not None:
            halves = unpack_bits(
                codes[:, : self.tables.coarse_bytes], self.tables.coarse_bits, _COARSE_SUBSPACES
            )
            for half in range(_COARSE_SUBSPACES):
                width = self.tables.coarse.shape[3]
                words[:, half * width : (half + 1) * width] += self.tables.coarse[
                    which, half, halves[:, half]
                ]
        if self.groups == 1:
            return np.asarray(words @ self.tables.basis[0] + self.tables.mean[0])
        result = np.empty((n, self.head_dim), np.float32)
        edges = np.flatnonzero(np.diff(which, prepend=-1, append=-1)) if n else np.zeros(0, int)
        for start, end in pairwise(edges.tolist()):
            g = which[start]
            np.matmul(words[start:end], self.tables.basis[g], out=result[start:end])
            result[start:end] += self.tables.mean[g]
        return result

    def save(self, path: str | Path) -> None:
        """Write `codec.npz`, float16 tables where they lose nothing."""
        header = {"kind": "product", "groups": self.groups, "head_dim": self.head_dim}
        save_codec(path, header, {k: _smallest(v) for k, v in self.tables.arrays().items()})


def unpack_bits(codes: np.ndarray, bits: int, count: int) -> np.ndarray:
    """`count` numbers of `bits` bits each, int64 [n, count], from little-endian bit strings uint8 [n, bytes]."""
    if bits == 8:
        return codes[:, :count].astype(np.int64)
    padded = np.zeros((len(codes), codes.shape[1] + 3), np.uint8)
    padded[:, : codes.shape[1]] = codes
    offset = np.arange(count) * bits
    byte, shift = offset // 8, offset % 8
    word = (
        padded[:, byte].astype(np.int64)
        | padded[:, byte + 1].astype(np.int64) << 8
        | padded[:, byte + 2].astype(np.int64) << 16
    )
    return (word >> shift) & ((1 << bits) - 1)


def codec_from_arrays(header: dict[str, Any], arrays: dict[str, np.ndarray], name: str) -> MemoryCodec:
    """The codec of a file's parts; raises CorruptFile when they do not make one."""
    try:
        if header.get("version") != CODEC_FORMAT_VERSION:
            raise CorruptFile(
                f"{name} has codec format {header.get('version')}, this program reads {CODEC_FORMAT_VERSION}"
            )
        if header["kind"] == "exact":
            return ExactCodec(int(header["head_dim"]), int(header["groups"]), str(header["dtype"]))
        if header["kind"] == "product":
            return ProductCodec(ProductTables(**{k: v.astype(np.float32) for k, v in arrays.items()}))
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise CorruptFile(f"{name} is not a whole codec: {error}") from error
    raise CorruptFile(f"{name} holds a codec of unknown kind {header['kind']!r}")


def save_codec(path: str | Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a codec file, to a temporary name first."""
    path = Path(path)
    text = json.dumps({"version": CODEC_FORMAT_VERSION, **header}, sort_keys=True).encode()
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, header=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def _smallest(array: np.ndarray) -> np.ndarray:
    half = array.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), array) else array


def _tables_id(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name], "<f4").tobytes())
    return digest.hexdigest()
