"""`memory-model adapt` on a model folder: where the run is kept, what is installed, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memory3.config import parse_budget
from memory_model.cli import app
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_base, load_model
from tests.memory_model.data.small_sources import DOCUMENTS
from tests.memory_model.models.published import published
from tests.memory_model.train.adapting import adapt, adapt_command, model_with_facts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return model_with_facts(tmp_path_factory.mktemp("adapt"))


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
        parts = sum(line[f"{part}_s"] for part in ("write", "read", "fixed", "backward", "optimizer"))
        assert 0 < parts <= line["seconds"] + 0.01
        assert line["tokens"] > 0
        assert 0 <= line["padding"] < 0.15, line["padding"]


def test_a_run_goes_on_with_the_files_that_it_began_with(folder: ModelFolder, tmp_path: Path) -> None:
    data, out = tmp_path / "facts.jsonl", tmp_path / "run"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    begun = ("--steps", "1", "--data", str(data), "--out", str(out))
    adapt(folder, *begun)
    assert "finished before" in adapt(folder, *begun)
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS[1:]))
    done = CliRunner().invoke(app, adapt_command(folder, *begun))
    assert done.exit_code == 1
    assert "other settings (mixture)" in " ".join(done.output.split())


def test_a_run_goes_on_with_the_weights_and_the_chat_template_that_it_began_with(tmp_path: Path) -> None:
    one, out = model_with_facts(tmp_path), tmp_path / "run"
    published(tmp_path / "other", "llama-3", seed=1)
    other = ModelFolder.create(tmp_path / "other", tmp_path / "second", memory=lambda c: parse_budget("paper", c))
    adapt(one, "--steps", "1", "--out", str(out))
    (one.path / "chat_template.jinja").write_text(one.chat_template + " ")
    for changed, named in ((other, "base"), (one, "mixture")):
        done = CliRunner().invoke(app, adapt_command(changed, "--steps", "1", "--out", str(out)))
        assert done.exit_code == 1
        assert f"other settings ({named})" in " ".join(done.output.split())


def test_other_heads_leave_the_length_of_a_reference_as_it_is(tmp_path: Path) -> None:
    made = model_with_facts(tmp_path)
    replace(made, memory=replace(made.memory, reference_tokens=64)).save()
    assert load_base(ModelFolder.open(made.path)).config.memory.reference_tokens == 64
    adapt(made, "--steps", "1", "--heads", "all")
    memory = ModelFolder.open(made.path).memory
    assert memory.reference_tokens == 64
    assert {head.tokens for head in memory.heads} == {64}


def test_the_packaged_model_is_not_written_to() -> None:
    done = CliRunner().invoke(app, ["adapt", "--steps", "1"])
    assert done.exit_code == 1
    assert "--out" in done.output
