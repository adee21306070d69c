"""The compiled decoder at every level that this processor runs; empty where there is no C compiler."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from memory_model.codec.native.compile import LIBRARY, compile_library, compiler
from memory_model.codec.native.library import LEVELS, Library

_FOLDER = tempfile.TemporaryDirectory(prefix="native-")  # removed when the tests end


@functools.cache
def libraries() -> tuple[Library, ...]:
    """From the sources as they are now, not from what an install left beside them."""
    if compiler() is None:
        return ()
    path = Path(_FOLDER.name) / LIBRARY
    assert compile_library(path) == ""
    best = Library(path).level
    assert best < len(LEVELS)
    return tuple(Library(path, level) for level in range(best + 1))
