"""`load_codec`: the codec that a file `codec.npz` holds, of any kind."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile

from memory3.codec.codec import CODEC_FORMAT_VERSION, ExactCodec, MemoryCodec, ProductCodec
from memory3.codec.native.library import installed
from memory3.codec.scalar import ScalarCodec, ScalarTables
from memory3.codec.tables import ProductTables
from memory3.errors import CorruptFile, MissingFile

_UNREADABLE = (BadZipFile, zlib.error, EOFError, OSError, ValueError, TypeError, LookupError, NotImplementedError)


def load_codec(path: str | Path) -> MemoryCodec:
    """Read `codec.npz`; raises MissingFile, CorruptFile for anything else, OSError if it cannot be read now."""
    path = Path(path)
    if not path.is_file():
        raise MissingFile(f"no codec at {path}: make one with `memory-model fit-codec`")
    raw = io.BytesIO(path.read_bytes())
    try:
        with NpzFile(raw) as file:
            header = json.loads(bytes(file["header"]).decode())
            arrays = {name: file[name] for name in file.files if name != "header"}
        version = header.get("version")
        if version not in range(1, CODEC_FORMAT_VERSION + 1):
            raise CorruptFile(f"{path} has codec format {version}, this program reads 1 to {CODEC_FORMAT_VERSION}")
        make = _KINDS.get(header["kind"])
        if make is None:
            raise CorruptFile(f"{path} holds a codec of unknown kind {header['kind']!r}")
        return make(header, arrays)
    except _UNREADABLE as error:
        raise CorruptFile(f"{path} is not a codec file ({error}): fit a codec anew") from error


def _exact(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> ExactCodec:
    return ExactCodec(int(header["head_dim"]), str(header["dtype"]))


def _product(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> ProductCodec:
    """All heads share the tables, whose first axis is therefore 1. `basis_step`: of a basis in bytes."""
    tables = {name: array.squeeze(0).astype(np.float32) for name, array in arrays.items()}
    steps = tables.pop("basis_step", None)
    if steps is not None:
        parts = tables["basis"].reshape(*steps.shape, -1)
        tables["basis"] = (parts * steps[..., None]).reshape(len(steps), -1)
    return ProductCodec(ProductTables(**tables, together=int(header.get("together", 1))), installed())


def _scalar(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> ScalarCodec:
    own = {name: array.astype(np.float32) for name, array in arrays.items()}
    tables = ScalarTables(**own, bits=int(header["bits"]), together=int(header["together"]))
    return ScalarCodec(tables, installed())


_KINDS = {"exact": _exact, "product": _product, "scalar": _scalar}
