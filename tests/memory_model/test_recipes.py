"""The recipes of packaged models: every command that they print is one that the programs take."""

import os
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from experiments.__main__ import app as experiments
from memory_model.cli import app
from memory_model.data.batches import parse_weights
from memory_model.data.tasks import TASKS
from memory_model.defaults import ASSETS
from testing.programs import ROOT, ran

RECIPES = ROOT / "memory_model" / "recipes"
PROGRAMS = {"memory_model.cli": get_command(app), "experiments": get_command(experiments)}


def commands(recipe: Path, folder: Path) -> list[list[str]]:
    """The words of each command that the recipe would run in a folder."""
    printed = ran("sh", recipe, cwd=folder, env={"PATH": os.environ["PATH"], "DRY": "1"})
    return [shlex.split(line.removeprefix("+ ")) for line in printed.splitlines()]


def test_every_tuned_model_has_a_recipe() -> None:
    tuned = {file.parent.name for file in ASSETS.glob("*/adapter.safetensors")}
    assert tuned == {recipe.stem for recipe in RECIPES.glob("*.sh")}


@pytest.mark.parametrize("paragraphs", [False, True], ids=["without paragraphs", "with paragraphs"])
@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.sh")), ids=lambda recipe: recipe.stem)
def test_a_recipes_commands_are_taken_by_the_programs(recipe: Path, paragraphs: bool, tmp_path: Path) -> None:
    if paragraphs:
        (tmp_path / "build" / "questions").mkdir(parents=True)
        (tmp_path / "build" / "questions" / "squad_training.json").touch()
    mixed = set()
    for python, _, module, command, *arguments in commands(recipe, tmp_path):
        assert python == "python"
        found = PROGRAMS[module].commands[command]  # type: ignore[attr-defined]
        context = found.make_context(command, list(arguments))  # raises for an unknown option or value
        if command == "adapt":
            mixed |= set(parse_weights(context.params["mixture"], TASKS))
    assert mixed >= {"facts", "hard", "keeping"}
    assert "preferences" not in mixed or paragraphs
