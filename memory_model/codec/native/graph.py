"""`GraphLibrary`: the compiled search of a graph of 8-bit vectors; `installed_graph()` gives it, or None."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from memory_model.codec.native.compile import FOLDER, LIBRARY
from memory_model.codec.native.library import LEVELS
from memory_model.errors import InvalidInput

VERSION = 1
_WRONG = {
    -1: "the graph's numbers do not belong together",
    -2: "a search does not fit the places that are made for it",
    -3: "this processor cannot run these instructions",
}


class _Struct(ctypes.Structure):
    """Of numbers and addresses; whoever fills one keeps the arrays alive."""


def _fields(numbers_and_addresses: str) -> list[tuple[str, type]]:
    """`name` is an int64, `*name` an address."""
    return [
        (name.removeprefix("*"), ctypes.c_void_p if name.startswith("*") else ctypes.c_int64)
        for name in numbers_and_addresses.split()
    ]


class Graph(_Struct):
    """`graph` of graph.c."""

    _fields_ = _fields("rows dimension entry top *codes *links *offsets *firsts")


class Places(_Struct):
    """`places` of graph.c."""

    _fields_ = _fields("marks_size epoch most *marks *query *walk *rows *scores")


WALKED_BYTES = 16
"""Size of a `walked` of graph.c."""


class GraphLibrary:
    """Thread-safe, but for `Places`, which belong to one thread each; a call lets other Python threads run.

    level: index in LEVELS of the loops that are used, by default the best that the processor runs.
    """

    def __init__(self, path: Path, level: int | None = None) -> None:
        self.path = path
        loaded = ctypes.CDLL(str(path))
        version = loaded.memory_graph_version()
        if version != VERSION:
            raise OSError(f"{path} is of version {version}, this program calls version {VERSION}")
        best = int(loaded.memory_graph_level())
        self.level = best if level is None else level
        if not 0 <= self.level <= best:
            raise InvalidInput(f"this processor runs the loops {LEVELS[: best + 1]}, not number {level}")
        self._search = loaded.memory_graph_search
        number, address = ctypes.c_int64, ctypes.c_void_p
        self._search.argtypes = [
            ctypes.c_int32, ctypes.POINTER(Graph), ctypes.POINTER(Places), ctypes.c_char_p, number,
            address, number, number, address, number, number, number, address,
        ]  # fmt: skip

    def search(
        self,
        graph: Graph,
        places: Places,
        queries: bytes,
        count: int,
        vectors: int,
        covered: int,
        all_rows: int,
        living: int | None,
        candidates: int,
        proposed: int,
        k: int,
        out: int,
    ) -> None:
        """See graph.c, where `vectors`, `living` and `out` are addresses; raises InvalidInput for what does not fit."""
        wrong = self._search(
            self.level, graph, places, queries, count, vectors, covered, all_rows, living, candidates, proposed, k, out
        )  # fmt: skip
        if wrong:
            raise InvalidInput(_WRONG[wrong])


@functools.cache
def installed_graph() -> GraphLibrary | None:
    """The search that was compiled when this package was built or installed; None where it cannot be used."""
    path = FOLDER / LIBRARY
    try:
        return GraphLibrary(path) if path.is_file() else None
    except (OSError, AttributeError):  # of another platform, or older than this file
        return None
