"""The compiled part of the codec, built from the sources as they are now."""

import functools
import tempfile
from pathlib import Path

from memory3.codec.native import compile as native_compile
from memory3.codec.native.library import Library

_BUILD = tempfile.TemporaryDirectory(prefix="native-")  # removed when the tests end
SIZES = (0, 1, 2, 7, 8, 9, 33)


@functools.cache
def libraries() -> tuple[Library, ...]:
    """At every level, from the sources as they are now; empty where there is no C compiler."""
    if native_compile.compiler() is None:
        return ()
    path = Path(_BUILD.name) / native_compile.LIBRARY
    assert native_compile.compile_library(path) == ""
    return tuple(Library(path, level) for level in range(Library(path).level + 1))
