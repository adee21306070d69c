"""The paper's figure 4."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiments.cost_figure import plot_costs
from memory_model.config import memory3_2b
from memory_model.eval.costs import knowledge_costs


def test_the_figure_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    costs = knowledge_costs(memory3_2b())
    plot_costs("memory3-2b", costs, tmp_path / "one.svg")
    plot_costs("memory3-2b", costs, tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    plot_costs("another", replace(costs, memory_read=1e-3), tmp_path / "three.svg")
    assert (tmp_path / "one.svg").read_bytes() != (tmp_path / "three.svg").read_bytes()
