"""Files of a Hugging Face folder: JSON, and weights (safetensors or pytorch_model.bin, sharded or not) by tensor.

Opening reads headers only, so that a missing or truncated shard is an error before anything large is loaded.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory3.config import ModelConfig, weight_shapes
from memory3.errors import CorruptFile, InvalidInput, MissingFile

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

LAYOUTS = ("model.safetensors", "pytorch_model.bin")
"""In the order in which they are looked for; each may have an index `<name>.index.json` of shards instead."""
FLOAT32_BYTES = 4 << 30
"""Weights that take more than this as float32 stay in the type of the checkpoint; of a GGUF file in bfloat16."""
_REMEDY = "download it again"


@dataclass(frozen=True)
class Weights:
    """Tensors by name: their shapes, and what reads one, in the type that it is stored in.

    rows: reads some rows [n, D] of a table [V, D], by their numbers int64 [n]; None where whole tensors are mapped.
    """

    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    rows: Callable[[str, np.ndarray], Tensor] | None = None

    def require(self, wanted: Mapping[str, tuple[int, ...]], path: Path) -> None:
        """Raise CorruptFile for the first of these weights that is not there in its shape."""
        for name, shape in wanted.items():
            if name not in self.shapes:
                raise CorruptFile(f"{path} has no weight {name}: a shard is missing, or its config is of another model")
            if self.shapes[name] != shape:
                raise CorruptFile(f"{path}: {name} has the shape {self.shapes[name]}, its config gives {shape}")

    def check(self, config: ModelConfig, path: Path) -> Weights:
        """These weights; raises CorruptFile or InvalidInput where they are not those of the shape."""
        wanted = weight_shapes(config)
        self.require(wanted, path)
        if unknown := sorted(set(self.shapes) - set(wanted)):
            raise InvalidInput(f"{path}: weight {unknown[0]} belongs to no supported part")
        return self


def read_json(path: Path, kind: type = dict, advice: str = _REMEDY) -> Any:
    """A file of JSON that holds a `kind`; raises MissingFile, CorruptFile."""
    if not path.is_file():
        raise MissingFile(f"no {path.name} in {path.parent}: {advice}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one
        raise CorruptFile(f"{path} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise CorruptFile(f"{path} is a {type(value).__name__}, expected a {kind.__name__}")
    return value


def open_tensors(folder: str | Path) -> Weights:
    """The tensors of a folder's files by the names that they have there; files are mapped while this is in use.

    Raises MissingFile when the folder has no weights or lacks a shard, CorruptFile for a truncated or damaged one.
    """
    files = weight_files(Path(folder))
    parts = [_safetensors(path) if path.suffix == ".safetensors" else _pickled(path) for path in files]
    readers = {name: part.read for part in parts for name in part.shapes}
    shapes = {name: shape for part in parts for name, shape in part.shapes.items()}
    return Weights(shapes, lambda name: readers[name](name))


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files of the folder's weights, the first of LAYOUTS that is there; raises MissingFile, CorruptFile."""
    found = found_layout(folder)
    if found is None:
        raise MissingFile(f"no weights in {folder}: expected one of {', '.join(LAYOUTS)} or its .index.json")
    if found.name in LAYOUTS:
        return (found,)
    try:
        shards = sorted(set(read_json(found)["weight_map"].values()))
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{found} is not an index of shards: {error}: {_REMEDY}") from error
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing or not shards:
        lacks = ", ".join(missing) or "every shard"
        raise MissingFile(f"{folder} lacks {lacks}, listed in {found.name}: {_REMEDY}")
    return tuple(folder / shard for shard in shards)


def found_layout(folder: Path) -> Path | None:
    """The first of LAYOUTS that is there, or its index."""
    candidates = (folder / f"{name}{index}" for name in LAYOUTS for index in ("", ".index.json"))
    return next((path for path in candidates if path.is_file()), None)


def _safetensors(path: Path) -> Weights:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise CorruptFile(f"{path} is truncated or damaged: {error}: {_REMEDY}") from error
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a dict)
    return Weights(shapes, file.get_tensor)


def _pickled(path: Path) -> Weights:
    import torch

    try:
        # Files older than torch 1.6 are no zip archives and cannot be mapped.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        tensors = {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}
    except (RuntimeError, OSError, EOFError, ValueError, AttributeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptFile(f"{path} is truncated, damaged or holds more than tensors: {reason}: {_REMEDY}") from error
    return Weights({name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__)
