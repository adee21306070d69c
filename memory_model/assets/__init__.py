"""What ships with the package: for each default model its adapter, codec and measured tables."""

from __future__ import annotations

from pathlib import Path

from memory_model.errors import MissingFile


def asset(model: str, name: str) -> Path:
    """Path of a shipped file of a model; raises MissingFile with the command that makes it."""
    path = Path(__file__).parent / model / name
    if not path.is_file():
        raise MissingFile(
            f"{path.name} of {model} is not in this installation: `memory-model adapt` and `fit-codec` make it"
        )
    return path
