"""The interval in which memory is cheapest is the paper's; appendix A's numbers: tests/memory_model/test_config.py."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from experiments.shapes import MEMORY3_2B, SMOLLM2_135M
from memory_model.cli import app
from memory_model.cli.cost import knowledge_costs
from memory_model.errors import InvalidInput


def test_the_interval_of_the_papers_model_is_the_papers() -> None:
    assert knowledge_costs(MEMORY3_2B).interval == pytest.approx((0.494, 13_400), rel=2e-3)


def test_the_command_prints_a_models_interval() -> None:
    done = CliRunner().invoke(app, ["cost"])
    assert done.exit_code == 0, done.output
    assert "cheapest from 0.819 to 1,910 uses" in done.output


def test_a_model_without_memory_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no memory heads"):
        knowledge_costs(SMOLLM2_135M)
