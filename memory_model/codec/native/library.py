"""`Library`: the compiled decoder as functions on arrays; `installed()` gives it, or None where it was not made."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np

from memory_model.codec.native.compile import FOLDER, LIBRARY
from memory_model.errors import InvalidInput

VERSION = 1
LEVELS = ("plain", "AVX2")
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


class Tables(ctypes.Structure):
    """`folded_tables` of decode.c; whoever makes one keeps the arrays alive."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _NUMBERS),
        *((name, ctypes.c_void_p) for name in ("rows", "scales", "mean")),
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
        self._sum_rows, self._gather = loaded.memory_codec_sum_rows, loaded.memory_codec_gather
        self._place = loaded.memory_codec_place
        self._sum_rows.argtypes = [
            ctypes.c_int32, ctypes.POINTER(Tables), pointer, number, pointer, pointer, pointer, number,
        ]  # fmt: skip
        self._gather.argtypes = [
            pointer, number, number, number, number, pointer, number, pointer, pointer, number,
        ]  # fmt: skip
        self._place.argtypes = [pointer, number, pointer, number, number, pointer, pointer, number]

    @property
    def name(self) -> str:
        """The instruction set in use."""
        return LEVELS[self.level]

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
        _fits(codes, np.uint8, tables.code_bytes)
        _fits(out, np.float32, tables.head_dim)
        n = _count(codes, places, tables.together)
        if blocks is not None and (
            blocks.dtype != np.int64 or blocks.shape != (n,) or not blocks.flags.c_contiguous
        ):
            raise InvalidInput(f"blocks have shape {blocks.shape}, expected int64 [{n}]")
        _raise(
            self._sum_rows(
                self.level, ctypes.byref(tables), codes.ctypes.data, n,
                None if blocks is None else blocks.ctypes.data, places.ctypes.data, out.ctypes.data, len(out),
            )
        )  # fmt: skip

    def gather(
        self, codes: np.ndarray, bits: int, codewords: np.ndarray, widths: np.ndarray, out: np.ndarray
    ) -> None:
        """Codewords side by side: row i of float32 out [n, stride] begins with those that code i names.

        codewords: float32, flat, [parts, 2^bits, slot] and 8 floats. widths: int64 [parts], floats of each part's
        words. stride: at least 8 more than they are together.
        """
        parts = len(widths)
        slot = (codewords.size - 8) // (parts << bits)
        if (
            codewords.dtype != np.float32
            or codewords.size != (parts * slot << bits) + 8
            or widths.dtype != np.int64
        ):
            raise InvalidInput(_WRONG[-3])
        _fits(codes, np.uint8, codes.shape[1])
        _fits(out, np.float32, out.shape[1])
        if len(out) != len(codes):
            raise InvalidInput(_WRONG[-2])
        _raise(
            self._gather(
                codes.ctypes.data, len(codes), codes.shape[1], bits, parts, codewords.ctypes.data, slot,
                widths.ctypes.data, out.ctypes.data, out.shape[1],
            )
        )  # fmt: skip

    def place(self, vectors: np.ndarray, mean: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
        """float32 vectors [n, together * head_dim] plus their mean into rows places int64 [n * together] of `out`."""
        head_dim = out.shape[1]
        together = vectors.shape[1] // head_dim
        _fits(vectors, np.float32, together * head_dim)
        _fits(mean[None], np.float32, vectors.shape[1])
        _fits(out, np.float32, head_dim)
        n = _count(vectors, places, together)
        _raise(
            self._place(
                vectors.ctypes.data, n, mean.ctypes.data, together, head_dim, places.ctypes.data, out.ctypes.data,
                len(out),
            )
        )  # fmt: skip


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


def _fits(array: np.ndarray, kind: Any, width: int) -> None:
    if array.ndim != 2 or array.shape[1] != width or array.dtype != kind or not array.flags.c_contiguous:
        raise InvalidInput(
            f"an array is {array.dtype} {array.shape}, expected contiguous {np.dtype(kind)} [n, {width}]"
        )


def _count(codes: np.ndarray, places: np.ndarray, together: int) -> int:
    """How many codes there are, when every one has its `together` places."""
    if places.dtype != np.int64 or places.shape != (len(codes) * together,) or not places.flags.c_contiguous:
        raise InvalidInput(f"places have shape {places.shape}, expected int64 [{len(codes) * together}]")
    return len(codes)


def _raise(result: int) -> None:
    if result:
        raise InvalidInput(_WRONG[result])
