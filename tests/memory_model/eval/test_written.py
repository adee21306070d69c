"""Memories are written once for all evaluations of a model, and read again as they were."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from memory3.codec.payload import ExplicitMemory
from memory_model.eval import written
from memory_model.eval.written import WrittenMemories
from memory_model.models.load import LoadedModel
from tests.edge_client.tiny_bundle import tiny_loaded

TEXTS = ["Paris is in France.", "Berlin is in Germany."]


class Writer:
    """The model's, which counts."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded, self.texts = loaded, list[str]()

    def __call__(self, texts: Sequence[str]) -> list[ExplicitMemory]:
        self.texts += texts
        return self.loaded.writer.write(texts)


def read(
    folder: Path, loaded: LoadedModel, texts: Sequence[str] = TEXTS, precision: torch.dtype = torch.float32
) -> tuple[list[ExplicitMemory], list[str]]:
    writer = Writer(loaded)
    return WrittenMemories(loaded, folder).of(texts, writer, precision), writer.texts


def test_a_second_run_writes_nothing_and_reads_the_same(tmp_path: Path) -> None:
    loaded = tiny_loaded()
    first, wrote = read(tmp_path, loaded)
    again, wrote_again = read(tmp_path, loaded, TEXTS[::-1])
    assert (wrote, wrote_again) == (TEXTS, [])
    for one, other in zip(first, again[::-1], strict=True):
        np.testing.assert_array_equal(one.keys, other.keys)
        np.testing.assert_array_equal(one.values, other.values)
        assert one.tokens == other.tokens


def test_another_model_or_precision_writes_its_own(tmp_path: Path) -> None:
    read(tmp_path, tiny_loaded())
    assert read(tmp_path, tiny_loaded(1))[1] == TEXTS
    assert read(tmp_path, tiny_loaded(), precision=torch.bfloat16)[1] == TEXTS


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    read(tmp_path, tiny_loaded(), TEXTS[:1])
    (file,) = tmp_path.glob("*/*.memory")
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    for harmed in (bytes(content), b""):
        file.write_bytes(harmed)
        assert read(tmp_path, tiny_loaded(), TEXTS[:1])[1] == TEXTS[:1]


def test_the_oldest_are_removed_when_they_take_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(tmp_path, tiny_loaded(), TEXTS[:1])
    (file,) = tmp_path.glob("*/*.memory")
    monkeypatch.setattr(written, "LARGEST", file.stat().st_size * 3 // 2)
    read(tmp_path, tiny_loaded(), TEXTS[1:])
    assert not file.exists()
    assert len(list(tmp_path.glob("*/*.memory"))) == 1
