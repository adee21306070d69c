"""`Library`: the compiled decoder as functions on arrays; `installed()` gives it, or None where it was not made."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np

from memory_model.codec.native.compile import FOLDER, LIBRARY
from memory_model.errors import InvalidInput

VERSION = 2
LEVELS = ("plain", "AVX2", "AVX-512 bfloat16")
"""Instruction sets that the loops are compiled for; `plain` is what every processor of the architecture has."""
_WRONG = {
    -1: "a code is of a block that the codec does not have",
    -2: "a vector is for a row that does not exist",
    -3: "the codec's tables do not belong together",
    -4: "this processor cannot run these instructions",
}
_NUMBERS = (
    "blocks", "coarse", "coarse_bits", "coarse_bytes", "parts", "bits", "code_bytes", "width", "head_dim", "together",
)  # fmt: skip
_PRODUCT_NUMBERS = ("parts", "bits", "code_bytes", "row", "pairs", "panels", "head_dim", "together")
TILE, COLUMNS = 8, 48  # as in decode.c


class Tables(ctypes.Structure):
    """`folded_tables` of decode.c; whoever makes one keeps the arrays alive."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _NUMBERS),
        *((name, ctypes.c_void_p) for name in ("rows", "scales", "mean")),
    ]


class ProductTables(ctypes.Structure):
    """`product_tables` of decode.c; whoever makes one keeps the arrays alive."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _PRODUCT_NUMBERS),
        *((name, ctypes.c_void_p) for name in ("words", "first", "basis", "mean")),
    ]


class Library:
    """Thread-safe; a call lets other Python threads run. Arrays are C-contiguous and of the type that is named.

    level: index in LEVELS of the loops that are used, by default the best that the processor runs.
    """

    def __init__(self, path: Path, level: int | None = None) -> None:
        self.path = path
        loaded = ctypes.CDLL(str(path))
        version = loaded.memory_codec_version()
        if version != VERSION:
            raise OSError(f"{path} is of version {version}, this program calls version {VERSION}")
        best = int(loaded.memory_codec_level())
        self.level = best if level is None else level
        if not 0 <= self.level <= best:
            raise InvalidInput(f"this processor runs the loops {LEVELS[: best + 1]}, not number {level}")
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self._sum_rows = loaded.memory_codec_sum_rows
        self._sum_rows.argtypes = [
            ctypes.c_int32, ctypes.POINTER(Tables), pointer, number, pointer, pointer, pointer, number,
        ]  # fmt: skip
        self._multiply = loaded.memory_codec_multiply
        self._multiply.argtypes = [
            ctypes.c_int32, ctypes.POINTER(ProductTables), pointer, number, pointer, pointer, pointer, number,
        ]  # fmt: skip
        self._dots = loaded.memory_codec_dots
        self._dots.argtypes = [pointer, pointer, number, number, pointer, number, pointer]
        self._dots.restype = None

    @property
    def name(self) -> str:
        """The instruction set in use."""
        return LEVELS[self.level]

    @property
    def multiplies(self) -> bool:
        """Whether `multiply` runs on this processor."""
        return self.level >= 2

    def sum_rows(
        self,
        tables: Tables,
        codes: np.ndarray,
        blocks: np.ndarray | None,
        places: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Sums of table rows for codes uint8 [n, code_bytes] into rows places int64 [n * together] of float32 `out`.

        blocks: int64 [n], or None where all are of block 0. Raises InvalidInput for a block or row that is not there.
        """
        n, rows = len(codes), len(out)
        wrong = self._sum_rows(
            self.level, ctypes.byref(tables), _address("codes", codes, np.uint8, n, tables.code_bytes), n,
            None if blocks is None else _address("blocks", blocks, np.int64, n),
            _address("places", places, np.int64, n * tables.together),
            _address("rows", out, np.float32, rows, tables.head_dim), rows,
        )  # fmt: skip
        if wrong:
            raise InvalidInput(_WRONG[wrong])

    def multiply(self, tables: ProductTables, codes: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
        """Products of codes uint8 [n, code_bytes] in bfloat16 into rows places int64 [n * together] of float32 `out`.

        Raises InvalidInput for a row that is not there, or a processor that cannot.
        """
        n, rows = len(codes), len(out)
        gathered = np.empty(2 * tables.pairs * (-(-n // TILE) * TILE) + tables.row, np.uint16)
        wrong = self._multiply(
            self.level, ctypes.byref(tables), _address("codes", codes, np.uint8, n, tables.code_bytes), n,
            _address("places", places, np.int64, n * tables.together), gathered.ctypes.data,
            _address("rows", out, np.float32, rows, tables.head_dim), rows,
        )  # fmt: skip
        if wrong:
            raise InvalidInput(_WRONG[wrong])

    def dots(self, rows: np.ndarray, scales: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Float32 [q, n], scales * (queries . rows), of rows int8 [n, d], scales float32 [n], queries int16 [q, d].

        The caller keeps the sums within int32.
        """
        (n, width), count = rows.shape, len(queries)
        out = np.empty((count, n), np.float32)
        self._dots(
            _address("rows", rows, np.int8, n, width), _address("scales", scales, np.float32, n), n, width,
            _address("queries", queries, np.int16, count, width), count, out.ctypes.data,
        )  # fmt: skip
        return out


def installed() -> Library | None:
    """The library that was compiled when this package was built or installed; None where it cannot be used."""
    return _load()[0]


def why_missing() -> str:
    """Why `installed()` is None and what to do; empty where the library is in use."""
    return _load()[1]


@functools.cache
def _load() -> tuple[Library | None, str]:
    path = FOLDER / LIBRARY
    try:
        if path.is_file():
            return Library(path), ""
        why = "not compiled"
    except (OSError, AttributeError) as error:  # of another platform, or not ours
        why = str(error)
    return None, f"{why}: install a C compiler, then run `python -m memory_model.codec.native.compile`"


def _address(name: str, array: np.ndarray, kind: Any, *shape: int) -> int:
    """Where an array lies, when it is what the library reads."""
    if array.dtype != kind or array.shape != shape or not array.flags.c_contiguous:
        raise InvalidInput(
            f"{name} are {array.dtype} {array.shape}, expected contiguous {np.dtype(kind)} {shape}"
        )
    return int(array.ctypes.data)
