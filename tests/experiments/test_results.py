"""The studies keep what they measured, and their page is what the committed numbers say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.ablation import Stage
from experiments.budget import budgets
from experiments.page import PAPER_BYTES, page, write_plots
from experiments.results import Ablation, AblationStep, BytesCurve, BytesPoint
from memory_model.config import MemoryConfig, MemoryHead, uniform_budget
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from tests.edge_client.tiny_bundle import tiny_config

ROOT = Path(__file__).resolve().parents[2]
OURS = BytesPoint("ours", 6, "128", 13, 19968, "codes", 0.95, 0.9, 0.1, True, 0.03, {"f1": 0.21, "nll": 1.5})
CURVE = BytesCurve("m1", 50, "2026-01-03", (OURS, replace(OURS, label="small", shipped=False, bytes=9000)))
SCORES = {"held-out": {"rag": {"f1": 0.5, "f1_error": 0.07, "exact_match": 0.1}}}
ABLATION = Ablation(50, (AblationStep("untuned", 0, "m0", "2026-01-01", SCORES, "nothing"),))


def test_every_study_is_listed() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    for name in ("ablation", "budget-curve", "codec-curve", "report"):
        assert name in shown


def test_the_committed_page_is_what_the_committed_numbers_say() -> None:
    folder = ROOT / "docs" / "data"
    read = BytesCurve.load(folder / "bytes_curve.json"), Ablation.load(folder / "ablation.json")
    assert (ROOT / "docs" / "studies.md").read_text(encoding="utf-8") == page(*read), (
        "run `python -m experiments report`"
    )


def test_the_page_says_how_sure_its_figures_are(tmp_path: Path) -> None:
    text = page(CURVE, ABLATION)
    assert "| 19,968 | 0.950 ± 0.030 | 0.900 | 0.210 ± 0.000 | 1.500 | shipped |" in text
    assert "| untuned | 0 | nothing | 0.500 ± 0.070, 0.100 |" in text
    write_plots(CURVE, ABLATION, tmp_path / "a")
    write_plots(CURVE, ABLATION, tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert f"images/{path.name}" in text
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_results_read_back_and_a_wrong_field_is_named(tmp_path: Path) -> None:
    for result in (CURVE, ABLATION):
        result.save(tmp_path / "result.json")
        assert type(result).load(tmp_path / "result.json") == result
    with pytest.raises(CorruptFile, match="model_id: Field required"):
        BytesCurve.load(tmp_path / "result.json")
    with pytest.raises(MissingFile):
        BytesCurve.load(tmp_path / "none.json")


def test_points_that_do_not_compare_are_not_put_on_one_curve(tmp_path: Path) -> None:
    path = tmp_path / "bytes_curve.json"
    CURVE.save(path)
    assert BytesCurve.begun(path, "m1", 50, 40).natural_rows == 40
    replace(CURVE, natural_rows=40).save(path)
    assert len(BytesCurve.begun(path, "m1", 50).points) == 2
    for model_id, rows, natural in (("m2", 50, 0), ("m1", 4, 0), ("m1", 50, 60)):
        with pytest.raises(InvalidInput, match="another --out"):
            BytesCurve.begun(path, model_id, rows, natural)


def test_a_point_that_is_measured_again_keeps_its_place() -> None:
    again = replace(OURS, f1=0.5)
    assert CURVE.with_point(again).points == (again, CURVE.points[1])
    steps = tuple(AblationStep(name, 1, "m", "", {}) for name in "abc")
    found = Ablation(50, steps).with_step(replace(steps[1], model_id="m2"))
    assert [(s.name, s.model_id) for s in found.steps] == [("a", "m"), ("b", "m2"), ("c", "m")]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("facts", "NAME=STEPS=ADAPTER"),
        ("facts=many=none", "NAME=STEPS=ADAPTER"),
        ("facts=3=nowhere.safetensors", "no adapter nowhere"),
    ],
)
def test_a_stage_that_cannot_be_measured_is_named_before_anything_is_loaded(entry: str, says: str) -> None:
    with pytest.raises((InvalidInput, MissingFile), match=says):
        Stage.parse(entry)


def test_what_a_stage_was_tuned_on_may_hold_the_separator() -> None:
    assert Stage.parse("a=3=none=facts, share=2") == Stage("a", 3, "none", "facts, share=2")


def test_larger_budgets_have_one_head_more_each_up_to_the_papers_bytes() -> None:
    config = tiny_config()
    first, second = (h for h in uniform_budget(config.layers, config.kv_heads, 32) if h.layer == 2)
    whole = config.with_memory(MemoryConfig((MemoryHead(0, 0, 32),), 32, 16))
    labels = [b.label for b in budgets(whole, [second, first], vector_bytes=1.0)]
    assert labels[-2:] == ["2 heads: the shipped and 2.1", "3 heads: the shipped and 2.1, 2.0"]
    few = [b.label for b in budgets(whole, [second, first], vector_bytes=PAPER_BYTES / 128)]
    assert few[-1] == "2 heads: the shipped and 2.1"
