"""A product codec decoded in C, where that is faster than numpy and exact enough.

`FoldedTables`, for small codecs, have the rotation in them, so that a vector is a sum of rows (decision 0028):

    mean + (coarse[c] + [codeword_1[i_1], …]) @ basis  =  mean + Σ coarse[c] @ basis_c + Σ codeword_m[i_m] @ basis_m

`BfloatProduct`, for one code of all vectors of a token, makes the product in bfloat16 where the processor has that.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from memory_model.codec.native import library as native
from memory_model.codec.native.library import Library, Tables
from memory_model.codec.tables import PlacedCodes, ProductTables

TOLERANCE = 1e-4
"""Largest relative error against numpy. Trained tables give 4e-5, tables with a few far larger numbers more."""
BFLOAT_TOLERANCE = 4e-3
"""The same of a product in bfloat16: 8 bits of a number. What the codes themselves lose is a hundred times larger."""
_CODES = 256

Decode = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Codes uint8 [n, code_bytes] and their blocks int64 [n] to vectors float32 [n, d]."""
MOST_BYTES = 16 << 20
"""Folded tables above this are not made: they lie in no cache, and a matrix product reads less."""
_MOST_TABLES, _MOST_WIDTH, _ADDED, _PADDING = 64, 1024, 4, 16  # as in decode.c
_LARGEST = 32767
_LARGE_PAGE_BYTES = 2 << 20


def native_decoder(
    tables: ProductTables, library: Library, by_numpy: Decode
) -> FoldedTables | BfloatProduct | None:
    """The decoder in C; None where numpy serves a codec better, or is the only one that is exact enough."""
    decoder: FoldedTables | BfloatProduct
    if FoldedTables.suits(tables):
        decoder, tolerance = FoldedTables(tables, library), TOLERANCE
    elif library.multiplies and BfloatProduct.suits(tables):
        decoder, tolerance = BfloatProduct(tables, library), BFLOAT_TOLERANCE
    else:
        return None
    return decoder if relative_error(decoder, tables, by_numpy) <= tolerance else None


def relative_error(decoder: FoldedTables | BfloatProduct, tables: ProductTables, by_numpy: Decode) -> float:
    """Length of a difference over length of its vector, mean of random codes; infinite if a number is not finite.

    Each vector counts for itself: a few that are far longer would hide what all the others lose.
    """
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (_CODES, tables.code_bytes), np.uint8)
    blocks = np.sort(rng.integers(0, len(tables.mean), _CODES))
    wanted = by_numpy(codes, blocks)
    found = np.empty((_CODES * tables.together, tables.mean.shape[1] // tables.together), np.float32)
    decoder.decode_into([PlacedCodes(codes, blocks, np.arange(len(found)), found)])
    lengths = np.linalg.norm(wanted, axis=1)
    differences = np.linalg.norm(found.reshape(wanted.shape) - wanted, axis=1)
    error = float((differences / np.where(lengths == 0, 1, lengths)).mean())
    return error if np.isfinite(error) else float("inf")


class FoldedTables:
    """Decodes by sums of rows. Thread-safe: nothing changes after it is made.

    error_bound: float32 [blocks, d], how far a decoded number may lie from the exact one, rounding of floats aside.
    """

    name = "folded tables"

    def __init__(self, tables: ProductTables, library: Library) -> None:
        self._library = library
        blocks, d = tables.mean.shape
        width = -(-d // _PADDING) * _PADDING
        made = [_fold(_products(tables, block), tables.mean[block], width) for block in range(blocks)]
        rows, self._scales, self._mean, bounds = (np.stack(arrays) for arrays in zip(*made, strict=True))
        self._rows = _paired(rows)
        self.error_bound = bounds[:, :d]
        self._tables = Tables(
            blocks=blocks, coarse=0 if tables.coarse is None else tables.coarse.shape[1],
            coarse_bits=tables.coarse_bits, coarse_bytes=tables.coarse_bytes, parts=tables.codewords.shape[1],
            bits=tables.bits, code_bytes=tables.code_bytes, width=width, head_dim=d // tables.together,
            together=tables.together, rows=self._rows.ctypes.data, scales=self._scales.ctypes.data,
            mean=self._mean.ctypes.data,
        )  # fmt: skip

    @staticmethod
    def suits(tables: ProductTables) -> bool:
        """Whether the folded tables are small enough to be worth it."""
        blocks, parts, words, _ = tables.codewords.shape
        coarse, coarse_words = (0, 0) if tables.coarse is None else tables.coarse.shape[1:3]
        d = tables.mean.shape[1]
        small = 2 * blocks * (parts * words + coarse * coarse_words) * d <= MOST_BYTES
        return small and parts + coarse <= _MOST_TABLES and d <= _MOST_WIDTH

    def decode_into(self, pieces: Sequence[PlacedCodes]) -> None:
        """Write the vectors of all codes to their rows."""
        for piece in pieces:
            blocks = piece.blocks if self._tables.blocks > 1 else None
            self._library.sum_rows(self._tables, piece.codes, blocks, piece.places, piece.rows)


class BfloatProduct:
    """Decodes by a matrix product in bfloat16 with sums in float32. Thread-safe: nothing changes after it is made."""

    name = "bfloat16 product"

    def __init__(self, tables: ProductTables, library: Library) -> None:
        self._library = library
        codewords, d = tables.codewords[0], tables.mean.shape[1]
        parts, words, wide = codewords.shape
        # Parts are padded to one width; numbers that are always zero are left out of the product.
        used = [np.flatnonzero(part.any(0)) for part in codewords]
        counts = [len(numbers) for numbers in used]
        row, pairs, panels = -(-(wide + 1) // 8) * 8, -(-sum(counts) // 2), -(-d // native.COLUMNS)
        compact = np.zeros((parts, words, row), np.float32)
        basis = np.zeros((2 * pairs, panels * native.COLUMNS), np.float32)
        places = [m * wide + numbers for m, numbers in enumerate(used)]
        basis[: sum(counts), :d] = tables.basis[0][np.concatenate(places)]
        for m, numbers in enumerate(used):
            compact[m, :, : len(numbers)] = codewords[m][:, numbers]
        mean = np.zeros(panels * native.COLUMNS, np.float32)
        mean[:d] = tables.mean[0]
        first = np.cumsum([0, *counts[:-1]], dtype=np.int64)
        paneled = _bfloat16(basis).reshape(pairs, 2, panels, native.COLUMNS).transpose(2, 0, 3, 1)
        self._arrays = _bfloat16(compact), first, np.ascontiguousarray(paneled), mean
        addresses = (array.ctypes.data for array in self._arrays)
        self._tables = native.ProductTables(
            parts, tables.bits, tables.code_bytes, row, pairs, panels, d // tables.together, tables.together, *addresses
        )  # fmt: skip

    @staticmethod
    def suits(tables: ProductTables) -> bool:
        """Whether the codec is of one block without coarse parts, and its heads fill vectors of 16 floats."""
        head_dim = tables.mean.shape[1] // tables.together
        return len(tables.mean) == 1 and tables.coarse is None and head_dim % 16 == 0

    def decode_into(self, pieces: Sequence[PlacedCodes]) -> None:
        """Write the vectors of all codes to their rows."""
        for piece in pieces:
            self._library.multiply(self._tables, piece.codes, piece.places, piece.rows)


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """Finite float32 rounded to the nearest bfloat16, as uint16 of the same shape."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _products(tables: ProductTables, block: int) -> Iterator[list[np.ndarray]]:
    """Groups of folded tables whose rows are added as integers: each coarse one alone, product ones by four."""
    basis = tables.basis[block]
    if tables.coarse is not None:
        half = tables.coarse.shape[3]
        for number, words in enumerate(tables.coarse[block]):
            yield [words @ basis[number * half : (number + 1) * half]]
    _, parts, _, wide = tables.codewords.shape
    for first in range(0, parts, _ADDED):
        yield [
            tables.codewords[block, m] @ basis[m * wide : (m + 1) * wide]
            for m in range(first, min(first + _ADDED, parts))
        ]


def _fold(
    groups: Iterator[list[np.ndarray]], mean: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows int16 [rows, width], scales float32 [groups, width], mean and error bound float32 [width].

    Every table is centred, what that takes away goes to the mean, and a group's scale is such that no sum of its rows
    leaves int16, whatever the codes say.
    """
    d = len(mean)
    rows, scales = [], []
    moved, bound = mean.astype(np.float64), np.zeros(d)
    for group in groups:
        middles = [(table.max(0) + table.min(0)) / 2 for table in group]
        reach = np.sum(
            [np.abs(table - middle).max(0) for table, middle in zip(group, middles, strict=True)], axis=0
        )
        scale = reach / np.float32(_LARGEST - len(group))
        scale[scale == 0] = 1
        for table, middle in zip(group, middles, strict=True):
            whole = np.zeros((len(table), width), np.int16)
            whole[:, :d] = np.rint((table - middle) / scale)
            rows.append(whole)
            moved += middle
        bound += scale * (len(group) / 2)
        scales.append(_padded(scale / (1 << 16), width))  # numbers arrive in the upper halves of 32 bits
    return np.concatenate(rows), np.stack(scales), _padded(moved, width), _padded(bound, width)


def _padded(values: np.ndarray, width: int) -> np.ndarray:
    padded = np.zeros(width, np.float32)
    padded[: len(values)] = values
    return padded


def _paired(rows: np.ndarray) -> np.ndarray:
    """Rows with number j of a vector beside number width / 2 + j, as decode_rows.h takes them apart."""
    halves = rows.reshape(*rows.shape[:-1], 2, -1)
    paired = _on_large_pages(rows.shape)
    np.stack((halves[..., 0, :], halves[..., 1, :]), axis=-1, out=paired.reshape(*rows.shape[:-1], -1, 2))
    return paired


def _on_large_pages(shape: tuple[int, ...]) -> np.ndarray:
    """int16 zeros in memory of their own, on pages of 2 MiB where the system has them.

    Rows are read from everywhere: on pages of 4 KiB most of the time goes into finding pages. Where numpy's own arrays
    come to lie depends on what was freed before.
    """
    size = 2 * math.prod(shape)
    memory = mmap.mmap(-1, size + _LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # a kernel or a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % _LARGE_PAGE_BYTES
    return raw[start : start + size].view(np.int16).reshape(shape)
