"""A loss plot is read from the metrics as runs leave them: resumed, mixed, cut off."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.curves import plot_runs, read_curves, smooth
from memory_model.errors import CorruptFile, InvalidInput, MissingFile


def write(folder: Path, entries: list[tuple[int, str, float]], ending: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({"step": step, "task": task, "loss": loss, "teacher": 0.5, "rate": 1e-3, "seconds": 1.0})
        for step, task, loss in entries
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n" + ending)
    return folder


def test_a_repeated_step_counts_once_and_tasks_are_apart(tmp_path: Path) -> None:
    entries = [(1, "facts", 3.0), (2, "prose", 9.0), (3, "facts", 8.0), (2, "prose", 4.0), (3, "facts", 2.0)]
    curves = read_curves(write(tmp_path, entries))
    assert list(curves) == ["facts", "prose"]
    assert curves["facts"].steps.tolist() == [1, 3]
    assert curves["facts"].losses.tolist() == [3.0, 2.0]
    assert curves["prose"].losses.tolist() == [4.0]


def test_a_task_that_only_has_a_teacher_shows_the_teachers_loss(tmp_path: Path) -> None:
    assert read_curves(write(tmp_path, [(1, "keeping", 0.0)]))["keeping"].losses.tolist() == [0.5]


def test_a_last_line_that_was_cut_off_is_left_out_and_another_is_named(tmp_path: Path) -> None:
    cut = write(tmp_path / "cut", [(1, "a", 1.0)], ending='{"step": 2, "lo')
    assert read_curves(cut)["a"].steps.tolist() == [1]
    broken = write(tmp_path / "broken", [(1, "a", 1.0)], ending='{"step": 2}\n{"step": 3, "loss": 1.0}\n')
    with pytest.raises(CorruptFile, match="line 2"):
        read_curves(broken)
    with pytest.raises(MissingFile, match="--out"):
        read_curves(tmp_path)


def test_smoothing_keeps_a_constant_and_passes_over_what_is_not_finite() -> None:
    assert smooth(np.full(50, 2.5), 0.1) == pytest.approx(np.full(50, 2.5))
    assert np.isfinite(smooth(np.array([1.0, np.nan, 3.0]), 0.5)).all()
    noisy = np.random.default_rng(0).normal(size=400)
    assert smooth(noisy, 0.1)[100:].std() < noisy.std() / 3
    assert smooth(noisy, 0.0) == pytest.approx(noisy)


def test_the_plot_is_drawn_for_one_run_and_for_several(tmp_path: Path) -> None:
    one = write(tmp_path / "one", [(n, ("facts", "prose")[n % 2], 3 - n / 50) for n in range(1, 80)])
    two = write(tmp_path / "two", [(n, "continual", 4 - n / 50) for n in range(1, 60)])
    out = tmp_path / "images" / "loss.svg"
    done = CliRunner().invoke(app, ["plot-run", str(one), str(two), "--out", str(out)])
    assert done.exit_code == 0, done.output
    drawn = out.read_bytes()
    plot_runs({f.name: read_curves(f) for f in (one, two)}, out)
    assert out.read_bytes() == drawn
    plot_runs({"one": read_curves(one)}, tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 5000
    with pytest.raises(InvalidInput, match="no step"):
        plot_runs({"none": {}}, out)
