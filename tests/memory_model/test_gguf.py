"""The base checkpoint is read whole or refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.models.gguf import GgufCheckpoint
from memory_model.models.load import base_checkpoint, load_base


def test_the_base_checkpoint_has_the_presets_shape() -> None:
    from memory_model.config import smollm2_135m

    assert base_checkpoint().config("smollm2-135m") == smollm2_135m()


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    whole = base_checkpoint().path
    short = tmp_path / "short.gguf"
    shutil.copyfile(whole, short)
    for keep in (whole.stat().st_size - 1, 200_000, 1000, 3, 0):
        with short.open("r+b") as file:
            file.truncate(keep)
        with pytest.raises(CorruptFile):
            GgufCheckpoint(short)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("this is not a model\n" * 100)
    with pytest.raises(CorruptFile):
        load_base(str(path))


def test_missing_and_unknown_models_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="make setup"):
        GgufCheckpoint(tmp_path / "none.gguf")
    with pytest.raises(InvalidInput, match="smollm2-135m"):
        load_base("llama-900b")
