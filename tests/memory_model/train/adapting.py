"""The command `memory-model adapt` on a tiny model and eight facts."""

import json
from pathlib import Path

from typer.testing import CliRunner

from memory3.config import parse_budget
from memory_model.cli import app
from memory_model.models.folder import ModelFolder
from tests.memory_model.data.small_sources import DOCUMENTS
from tests.memory_model.models.published import published


def model_with_facts(place: Path) -> ModelFolder:
    """A model folder, and beside it facts.jsonl to tune it on."""
    published(place / "base", "llama-3")
    (place / "facts.jsonl").write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    return ModelFolder.create(place / "base", place / "model", memory=lambda c: parse_budget("paper", c))


def adapt_command(folder: ModelFolder, *more: str) -> list[str]:
    data = str(folder.path.parent / "facts.jsonl")
    return ["adapt", "--model", str(folder.path), "--data", data, "--conversations", "3", "--rank", "2", *more]


def adapt(folder: ModelFolder, *more: str) -> str:
    done = CliRunner().invoke(app, adapt_command(folder, *more))
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())
