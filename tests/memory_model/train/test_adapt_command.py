"""`memory-model adapt` on a model folder: where the run is kept, what is installed, what is refused."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memory_model.cli import app
from memory_model.config import parse_budget
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_model
from tests.memory_model.data.test_conversations import DOCUMENTS
from tests.memory_model.models.published import published


def model_with_facts(place: Path) -> ModelFolder:
    """A model folder, and beside it facts.jsonl to tune it on."""
    published(place / "base", "llama-3")
    (place / "facts.jsonl").write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    return ModelFolder.create(place / "base", place / "model", memory=lambda c: parse_budget("paper", c))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return model_with_facts(tmp_path_factory.mktemp("adapt"))


def adapt_command(folder: ModelFolder, *more: str) -> list[str]:
    data = str(folder.path.parent / "facts.jsonl")
    return ["adapt", "--model", str(folder.path), "--data", data, "--conversations", "3", "--rank", "2", *more]


def adapt(folder: ModelFolder, *more: str) -> str:
    done = CliRunner().invoke(app, adapt_command(folder, *more))
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_a_finished_run_becomes_the_folders_adapter_and_one_kept_apart_does_not(folder: ModelFolder) -> None:
    apart = folder.path.parent / "run"
    adapt(folder, "--steps", "2", "--out", str(apart))
    assert (apart / "adapter.safetensors").is_file()
    assert ModelFolder.open(folder.path).adapter is None
    adapt(folder, "--steps", "2", "--heads", "2.0:16,3.1:16")
    opened = ModelFolder.open(folder.path)
    assert [(h.layer, h.head, h.tokens) for h in opened.memory.heads] == [(2, 0, 16), (3, 1, 16)]
    assert load_model(opened).config.memory == opened.memory
    lines = [json.loads(line) for line in (folder.path / "adapt" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        parts = sum(line[f"{part}_s"] for part in ("write", "read", "teacher", "backward", "optimizer"))
        assert 0 < parts <= line["seconds"] + 0.01
        assert line["tokens"] > 0
        assert 0 <= line["padding"] < 0.15, line["padding"]


def test_the_packaged_model_is_not_written_to() -> None:
    done = CliRunner().invoke(app, ["adapt", "--steps", "1"])
    assert done.exit_code == 1
    assert "--out" in done.output
