"""The interval in which memory is cheapest is the paper's; appendix A's numbers: tests/memory_model/test_config.py."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.costs import knowledge_costs
from experiments.shapes import SMOLLM2_135M
from memory_model.errors import InvalidInput
from memory_model.models.folder import DEFAULT


@pytest.mark.parametrize(("model", "said"), [("memory3-2b", "from 0.494 to 13,400 uses"), (str(DEFAULT), "from ")])
def test_the_command_prints_the_interval_of_a_shape_or_folder(model: str, said: str) -> None:
    done = CliRunner().invoke(app, ["cost", model])
    assert done.exit_code == 0, done.output
    assert f"cheapest {said}" in done.output


def test_a_model_without_memory_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no memory heads"):
        knowledge_costs(SMOLLM2_135M)
