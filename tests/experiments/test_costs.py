"""The interval in which memory is cheapest is the paper's, and the figure can be drawn for any shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.costs import KnowledgeCosts, knowledge_costs, plot_costs
from experiments.random_base import hugging_face_config
from memory_model.config import memory3_2b, smollm2_135m
from memory_model.errors import InvalidInput
from memory_model.models.folder import DEFAULT


def test_the_interval_of_the_papers_model_is_the_printed_one() -> None:
    costs = knowledge_costs(memory3_2b())
    assert costs.interval is not None
    first, last = costs.interval
    assert first == pytest.approx(0.494, abs=0.0005)
    assert last == pytest.approx(13_400, abs=50)


@pytest.mark.parametrize("uses", [0.01, 0.49, 0.5, 100, 13_000, 14_000, 1e6])
def test_memory_is_the_cheapest_format_inside_the_interval_only(uses: float) -> None:
    costs = knowledge_costs(memory3_2b())
    totals = {kind: getattr(costs, kind)(uses) for kind in ("implicit", "explicit", "external")}
    cheapest = min(totals, key=totals.__getitem__)
    assert cheapest == ("external" if uses < 0.494 else "explicit" if uses < 13_400 else "implicit")


def test_a_memory_that_costs_more_than_the_weights_is_never_the_cheapest() -> None:
    assert KnowledgeCosts(1.0, 2.0, 0.1, 0.5).interval is None
    assert KnowledgeCosts(3.0, 2.0, 0.6, 0.5).interval is None
    assert KnowledgeCosts(2.1, 2.0, 0.1, 0.2).interval is None


def test_a_model_without_memory_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no memory heads"):
        knowledge_costs(smollm2_135m())


def test_the_command_knows_shapes_and_model_folders(tmp_path: Path) -> None:
    config = {**hugging_face_config(memory3_2b()), "intermediate_size": 6400}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for arguments, says in (
        (["memory3-2b"], "0.494 to 13,400 uses"),
        ([str(tmp_path / "config.json")], "cheapest from"),
        (["--model", str(DEFAULT)], "cheapest from"),
    ):
        done = CliRunner().invoke(app, ["cost", *arguments])
        assert done.exit_code == 0, done.output
        assert says in done.output
    for wrong in (["nothing"], ["memory3-2b", "--model", str(DEFAULT)]):
        assert isinstance(CliRunner().invoke(app, ["cost", *wrong]).exception, InvalidInput)


def test_the_figure_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    costs = knowledge_costs(memory3_2b())
    plot_costs("memory3-2b", costs, tmp_path / "one.svg")
    plot_costs("memory3-2b", costs, tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    plot_costs("another", replace(costs, memory_read=1e-3), tmp_path / "three.svg")
    assert (tmp_path / "one.svg").read_bytes() != (tmp_path / "three.svg").read_bytes()
