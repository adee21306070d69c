"""A product codec decoded in C, where that is faster than numpy and exact enough (decision 0028).

`FoldedTables`, for small codecs, have the rotation in them, so that a vector is a sum of rows:

    mean + (coarse[c] + [codeword_1[i_1], …]) @ basis  =  mean + Σ coarse[c] @ basis_c + Σ codeword_m[i_m] @ basis_m

`ByteProduct`, for one code of all vectors of a token, makes the product in bytes, where the processor has an
instruction for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from memory3.codec.native.compile import FOLDER, LIBRARY
from memory3.codec.tables import ProductTables
from memory3.errors import InvalidInput

VERSION = 7
ARM = platform.machine() in ("aarch64", "arm64")
LEVELS = ("NEON", "NEON", "NEON dot product") if ARM else ("plain", "AVX2", "AVX-512 VNNI")
"""Instruction sets that the loops are compiled for; the first is what every processor of the architecture has."""
_WRONG = {
    -2: "a vector is for a row that does not exist",
    -3: "the codec's tables do not belong together",
    -4: "this processor cannot run these instructions",
}
_CODES = 256  # compared with numpy
_MOST_BYTES = 16 << 20
"""Folded tables above this are not made: they fit no cache, and a matrix product reads less."""
_MOST_TABLES, _MOST_WIDTH, _ADDED, _PADDING = 64, 1024, 4, 16  # as in decode.c
_TILE, _COLUMNS = 8, 48  # as in decode.c
_GROUPS = 4
"""Of coordinates with scales of their own: more lose little less and take longer."""
_LARGEST = 32767
_LARGE_PAGE_BYTES = 2 << 20

Decode = Callable[[np.ndarray], np.ndarray]
"""Codes uint8 [n, code_bytes] to vectors float32 [n, d]."""


class Library:
    """The compiled loops. Thread-safe; a call lets other Python threads run.

    level: index in LEVELS of the loops that are used, by default the best that the processor runs; name: that
    instruction set; multiplies: whether `multiply` runs with it.
    """

    def __init__(self, path: Path, level: int | None = None) -> None:
        loaded = ctypes.CDLL(str(path))
        version = loaded.memory_codec_version()
        if version != VERSION:
            raise OSError(f"{path} is of version {version}, this program calls version {VERSION}")
        best = int(loaded.memory_codec_level())
        self.level = best if level is None else level
        if not 0 <= self.level <= best:
            raise InvalidInput(f"this processor runs the loops {LEVELS[: best + 1]}, not number {level}")
        self.name, self.multiplies = LEVELS[self.level], self.level >= 2
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self.sum_rows, self.multiply = loaded.memory_codec_sum_rows, loaded.memory_codec_multiply
        self.sum_rows.argtypes = [ctypes.c_int32, pointer, pointer, number, pointer, pointer, number]
        self.multiply.argtypes = [*self.sum_rows.argtypes, pointer]
        self.scale = loaded.memory_codec_scale
        self.scale.argtypes = self.sum_rows.argtypes
        self._nearest = loaded.memory_codec_nearest
        self._nearest.argtypes = [
            ctypes.c_int32,
            pointer,
            pointer,
            number,
            number,
            pointer,
            number,
            pointer,
            pointer,
            number,
        ]
        self._nearest.restype = None

    def nearest(self, rows: np.ndarray, scales: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
        """int64 [q, k], in no order: the largest of scales * (queries . rows).

        rows int8 [n, d], scales float32 [n], queries int16 [q, d]. The caller keeps the sums within int32; k <= n.
        """
        (n, width), count = rows.shape, len(queries)
        scores, found = np.full((count, k), -np.inf, np.float32), np.zeros((count, k), np.int64)
        self._nearest(
            self.level,
            _address("rows", rows, np.int8, n, width),
            _address("scales", scales, np.float32, n),
            n,
            width,
            _address("queries", queries, np.int16, count, width),
            count,
            scores.ctypes.data,
            found.ctypes.data,
            k,
        )
        return found


class Loop(ABC):
    """Tables in the layout of a loop of decode.c. Thread-safe: nothing changes after it is made.

    numbers, arrays: the fields of the loop's struct, numbers first.
    """

    name: str

    def __init__(
        self,
        library: Library,
        code_bytes: int,
        together: int,
        head_dim: int,
        numbers: list[int],
        arrays: list[np.ndarray],
    ) -> None:
        self._library, self._shape, self._head_dim, self._arrays = library, (code_bytes, together), head_dim, arrays
        # A struct of decode.c: all of its fields have eight bytes.
        self._struct = np.array([*numbers, *(array.ctypes.data for array in arrays)], np.int64)

    @abstractmethod
    def _call(self, head: tuple[int, ...], rows: int) -> int:
        """The loop's answer: 0, or a key of _WRONG."""

    def decode_into(self, codes: np.ndarray, indices: np.ndarray, rows: np.ndarray) -> None:
        """Vectors of n codes to rows `indices` int64 [n * together] of `rows` float32 [m, head_dim]; all C-contiguous.

        Raises InvalidInput for a row that is not there.
        """
        (code_bytes, together), n = self._shape, len(codes)
        head = (
            self._library.level,
            self._struct.ctypes.data,
            _address("codes", codes, np.uint8, n, code_bytes),
            n,
            _address("indices", indices, np.int64, n * together),
            _address("rows", rows, np.float32, len(rows), self._head_dim),
        )
        if wrong := self._call(head, len(rows)):
            raise InvalidInput(_WRONG[wrong])


class Compiled(Loop):
    """The loop of a product codec."""

    tolerance: float
    """Largest relative error against numpy."""

    def __init__(self, tables: ProductTables, library: Library) -> None:
        head_dim = len(tables.mean) // tables.together
        super().__init__(library, tables.code_bytes, tables.together, head_dim, *self._laid_out(tables, head_dim))

    @abstractmethod
    def _laid_out(self, tables: ProductTables, head_dim: int) -> tuple[list[int], list[np.ndarray]]:
        """The numbers of the struct, and the arrays behind them."""


class ScaledCodes(Loop):
    """Decodes a scalar codec: offset and step of each number, float32 [together * head_dim]."""

    name = "scaled codes"

    def __init__(self, offset: np.ndarray, step: np.ndarray, bits: int, together: int, library: Library) -> None:
        head_dim, code_bytes = len(offset) // together, len(offset) * bits // 8
        arrays = [np.ascontiguousarray(array, np.float32) for array in (offset, step)]
        super().__init__(library, code_bytes, together, head_dim, [bits, code_bytes, head_dim, together], arrays)

    @staticmethod
    def suits(head_dim: int, bits: int) -> bool:
        """Whether the codes of each vector are whole bytes."""
        return head_dim * bits % 8 == 0

    def _call(self, head: tuple[int, ...], rows: int) -> int:
        return int(self._library.scale(*head, rows))


class FoldedTables(Compiled):
    """Decodes by sums of rows, int16 with one scale a number."""

    name = "folded tables"
    tolerance = 1e-4  # trained tables give 4e-5, tables with a few far larger numbers more

    @staticmethod
    def suits(tables: ProductTables) -> bool:
        """Whether the folded tables are small enough to be worth it."""
        (parts, words, _), d = tables.codewords.shape, len(tables.mean)
        coarse, coarse_words = (0, 0) if tables.coarse is None else tables.coarse.shape[:2]
        small = 2 * (parts * words + coarse * coarse_words) * d <= _MOST_BYTES
        return small and parts + coarse <= _MOST_TABLES and d <= _MOST_WIDTH

    def _laid_out(self, tables: ProductTables, head_dim: int) -> tuple[list[int], list[np.ndarray]]:
        width = -(-len(tables.mean) // _PADDING) * _PADDING
        rows, scales, mean = _fold(_products(tables), tables.mean, width)
        coarse = 0 if tables.coarse is None else len(tables.coarse)
        numbers = [
            coarse,
            tables.coarse_bits,
            tables.coarse_bytes,
            len(tables.codewords),
            tables.bits,
            tables.code_bytes,
            width,
            head_dim,
            tables.together,
        ]
        return numbers, [_paired(rows), scales, mean]

    def _call(self, head: tuple[int, ...], rows: int) -> int:
        return int(self._library.sum_rows(*head, rows))


class ByteProduct(Compiled):
    """Decodes by a matrix product of bytes with sums in int32: codewords in 8 bits a coordinate, the basis in int8.

    Neighbouring coordinates of a fitted codec have a similar reach, so each group of them has scales of its own.
    """

    name = "int8 product"
    tolerance = 2e-2  # the packaged codec itself loses 0.07 to 0.24 of a vector, and with this no more

    @staticmethod
    def suits(tables: ProductTables) -> bool:
        """Whether the codec has no coarse parts, and its heads fill vectors of 16 floats."""
        return tables.coarse is None and len(tables.mean) // tables.together % 16 == 0

    def _laid_out(self, tables: ProductTables, head_dim: int) -> tuple[list[int], list[np.ndarray]]:
        codewords, d = tables.codewords, len(tables.mean)
        parts, words, wide = codewords.shape
        # Parts are padded to one width; numbers that are always zero are left out of the product.
        used = [np.flatnonzero(part.any(0)) for part in codewords]
        counts = [len(numbers) for numbers in used]
        row, quads, panels = -(-max(1, *counts) // 8) * 8, max(1, -(-sum(counts) // 4)), -(-d // _COLUMNS)
        compact = np.zeros((parts, words, row), np.uint8)
        basis = np.zeros((4 * quads, panels * _COLUMNS))
        mean = tables.mean.astype(np.float64)
        first = np.cumsum([0, *counts[:-1]], dtype=np.int64)
        for m, numbers in enumerate(used):
            own, rows = codewords[m][:, numbers].astype(np.float64), tables.basis[m * wide + numbers]
            low, high = own.min(0), own.max(0)
            step = np.where(high > low, (high - low) / 255, 1)
            compact[m, :, : len(numbers)] = np.rint((own - low) / step)
            basis[first[m] : first[m] + len(numbers), :d] = step[:, None] * rows
            mean += (low + high) / 2 @ rows
        ends = np.linspace(0, quads, min(_GROUPS, quads) + 1).astype(np.int64)[1:]
        groups = np.split(basis, 4 * ends[:-1])
        scales = [np.abs(group).max(0) / 127 for group in groups]
        for group, scale in zip(groups, scales, strict=True):
            np.rint(group / np.where(scale > 0, scale, 1), out=group)
            mean[:d] -= (-0.5 if ARM else 127.5) * (group.sum(0) * scale)[:d]  # the middle of a byte's range
        paneled = _on_large_pages((panels, quads, _COLUMNS, 2)).view(np.int8)  # all of it is read for every memory
        paneled[:] = basis.reshape(quads, 4, panels, _COLUMNS).transpose(2, 0, 3, 1)
        self._gathered = 4 * quads + row
        sizes = [parts, tables.bits, tables.code_bytes, row, quads, panels, len(ends), head_dim, tables.together]
        compact ^= 0x80 if ARM else 0  # its bytes have a sign
        return sizes, [
            compact,
            first,
            paneled,
            ends,
            np.stack(scales).astype(np.float32),
            _padded(mean, basis.shape[1]),
        ]

    def _call(self, head: tuple[int, ...], rows: int) -> int:
        gathered = np.empty((-(-head[3] // _TILE) * _TILE, self._gathered), np.uint8)
        return int(self._library.multiply(*head, rows, gathered.ctypes.data))


def compiled(tables: ProductTables, library: Library, by_numpy: Decode) -> Compiled | None:
    """The decoder in C; None where numpy serves a codec better, or is the only one that is exact enough."""
    decoder: Compiled
    if FoldedTables.suits(tables):
        decoder = FoldedTables(tables, library)
    elif library.multiplies and ByteProduct.suits(tables):
        decoder = ByteProduct(tables, library)
    else:
        return None
    # Each vector counts for itself: a few that are far longer would hide what all the others lose.
    codes = np.random.default_rng(0).integers(0, 256, (_CODES, tables.code_bytes), np.uint8)
    expected = by_numpy(codes)
    found = np.empty((_CODES * tables.together, len(tables.mean) // tables.together), np.float32)
    decoder.decode_into(codes, np.arange(len(found)), found)
    lengths = np.linalg.norm(expected, axis=1)
    differences = np.linalg.norm(found.reshape(expected.shape) - expected, axis=1)
    return decoder if (differences / np.where(lengths == 0, 1, lengths)).mean() <= decoder.tolerance else None


def installed() -> Library | None:
    """The library that was compiled when this package was built or installed; None where it cannot be used."""
    return None if why_missing() else Library(FOLDER / LIBRARY)


@functools.cache
def why_missing() -> str:
    """Why `installed()` is None and what to do; empty where the library is in use."""
    path = FOLDER / LIBRARY
    try:
        Library(path)
    except (OSError, AttributeError) as error:  # of another platform, or not ours
        why = str(error) if path.is_file() else "not compiled"
        return f"{why}: install a C compiler, then run `python -m memory3.codec.native.compile`"
    return ""


def _address(name: str, array: np.ndarray, kind: Any, *shape: int) -> int:
    """The address of an array, checked to be what the library reads."""
    if array.dtype != kind or array.shape != shape or not array.flags.c_contiguous:
        raise InvalidInput(f"{name} are {array.dtype} {array.shape}, expected contiguous {np.dtype(kind)} {shape}")
    return int(array.ctypes.data)


def _products(tables: ProductTables) -> Iterator[list[np.ndarray]]:
    """Groups of folded tables whose rows are added as integers: each coarse one alone, product ones by four."""
    parts, _, wide = tables.codewords.shape
    if tables.coarse is not None:
        half = tables.coarse.shape[2]
        for number, words in enumerate(tables.coarse):
            yield [words @ tables.basis[number * half : (number + 1) * half]]
    for first in range(0, parts, _ADDED):
        group = range(first, min(first + _ADDED, parts))
        yield [tables.codewords[m] @ tables.basis[m * wide : (m + 1) * wide] for m in group]


def _fold(
    groups: Iterator[list[np.ndarray]], mean: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows int16 [rows, width], scales float32 [groups, width] and mean float32 [width].

    Every table is centred, what that takes away goes to the mean, and a group's scale is such that no sum of its rows
    leaves int16 for any codes.
    """
    rows, scales, moved = [], [], mean.astype(np.float64)
    for group in groups:
        middles = [(table.max(0) + table.min(0)) / 2 for table in group]
        reaches = [np.abs(table - middle).max(0) for table, middle in zip(group, middles, strict=True)]
        scale = np.sum(reaches, axis=0) / np.float32(_LARGEST - len(group))
        scale[scale == 0] = 1
        for table, middle in zip(group, middles, strict=True):
            rows.append(_padded(np.rint((table - middle) / scale), width).astype(np.int16))
            moved += middle
        scales.append(_padded(scale / (1 << 16), width))  # numbers arrive in the upper halves of 32 bits
    return np.concatenate(rows), np.stack(scales), _padded(moved, width)


def _padded(values: np.ndarray, width: int) -> np.ndarray:
    """Values [..., n] as float32 [..., width], zeros behind them."""
    return np.pad(values.astype(np.float32), [(0, 0)] * (values.ndim - 1) + [(0, width - values.shape[-1])])


def _paired(rows: np.ndarray) -> np.ndarray:
    """Rows with number j of a vector next to number width / 2 + j, as decode_rows.h takes them apart."""
    halves = rows.reshape(len(rows), 2, -1)
    paired = _on_large_pages(rows.shape)
    np.stack((halves[:, 0], halves[:, 1]), axis=-1, out=paired.reshape(len(rows), -1, 2))
    return paired


def _on_large_pages(shape: tuple[int, ...]) -> np.ndarray:
    """int16 zeros in memory of their own, on pages of 2 MiB where the system has them.

    Rows are read from everywhere: on pages of 4 KiB most of the time goes into finding pages. The addresses of
    numpy's own arrays depend on what was freed before.
    """
    size = 2 * math.prod(shape)
    memory = mmap.mmap(-1, size + _LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # a kernel or a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % _LARGE_PAGE_BYTES
    return raw[start : start + size].view(np.int16).reshape(shape)
