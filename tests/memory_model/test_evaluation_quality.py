"""A quality run keeps what it measured, and its page says each figure against what it must be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from memory_model.cli import app
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.eval.conditions import Scores
from memory_model.eval.page import Numbers, page, write_plots
from memory_model.eval.quality import (
    Section,
    conditions_result,
    joined_results,
    retrieved_apart,
    run_sections,
    scores_of_answers,
)
from memory_model.eval.results import EdgeQuality, Overlap, PrecisionQuality, Quality, SectionResult
from memory_model.eval.rows import Row
from memory_model.eval.sections import plan
from memory_model.eval.targets import Target, targets

ROOT = Path(__file__).resolve().parents[2]
ABOUT = {"model_id": "m1", "base_id": "b", "codec_id": "c"}


def section(name: str, key: dict[str, Any], calls: list[str]) -> Section:
    def run() -> dict[str, Any]:
        calls.append(name)
        return {"value": len(calls)}

    return Section(name, {"model_id": "m1", **key}, run)


KEY = {"model_id": "m1", "codec_id": "c"}


def numbers(**more: Any) -> Numbers:
    scores = {"f1": 0.95, "exact_match": 0.9, "nll": 0.1}
    sections = {
        "heldout": {"rag": {"f1": 0.99, "exact_match": 0.97}, "memory": scores, "memory_exact": scores},
        "retrieved": {"memory_retrieved": {"f1": 0.9, "recall_at_5": 0.95}},
        "natural": {"memory": {"f1": 0.3, "two_way": 0.7}, "rag": {"f1": 0.4, "two_way": 0.7}},
    }
    quality = Quality(
        model="tiny", model_id="m1", codec_id="c", base_id="b", machine="a machine", date="2026-01-02",
        command="memory-model quality", memory_heads=6, memory_bytes=38400,
        sections={
            name: SectionResult(KEY, "2026-01-01", 1.0, {"rows": 9, "conditions": found})
            for name, found in sections.items()
        },
    )  # fmt: skip
    return Numbers(quality=quality, **more)


def every_file() -> dict[str, Any]:
    """One of each result, as the commands write them."""
    weights = {
        "float32": PrecisionQuality(0.95, 0.9, 1, 30, 500),
        "int8": PrecisionQuality(0.94, 0.9, 1, 80, 180),
    }
    return {
        "edge_quality": EdgeQuality("m1", "2026-01-06", 100, weights),
        "overlap": Overlap("m1", "2026-01-07", 100, exact_f1=0.95, overlap_f1=0.93),
    }  # fmt: skip


def test_a_section_is_measured_again_only_when_its_key_changed(tmp_path: Path) -> None:
    path, calls = tmp_path / "quality.json", []  # type: ignore[var-annotated]
    run_sections(path, [section("a", {"data": (1, 2)}, calls), section("b", {}, calls)], ABOUT)
    run_sections(path, [section("a", {"data": (1, 2)}, calls), section("b", {"rows": 3}, calls)], ABOUT)
    assert calls == ["a", "b", "b"]
    kept = json.loads(path.read_text())["sections"]
    assert kept["a"]["result"] == {"value": 1}
    assert kept["b"]["result"] == {"value": 3}


def test_an_interrupted_run_keeps_its_finished_sections(tmp_path: Path) -> None:
    path, calls = tmp_path / "quality.json", []  # type: ignore[var-annotated]

    def interrupted() -> dict[str, Any]:
        raise KeyboardInterrupt

    first = section("a", {}, calls)
    with pytest.raises(KeyboardInterrupt):
        run_sections(path, [first, Section("b", {}, interrupted)], ABOUT)
    told: list[str] = []
    run_sections(path, [first], ABOUT, told.append)
    assert calls == ["a"]
    assert told == ["a: kept from an earlier run"]


def test_only_the_sections_that_are_asked_for_are_measured_and_the_others_stay(tmp_path: Path) -> None:
    path, calls = tmp_path / "quality.json", []  # type: ignore[var-annotated]
    run_sections(path, [section("a", {}, calls), section("plain", {"model_id": "b"}, calls)], ABOUT)
    again = section("a", {"model_id": "m2"}, calls)
    result = run_sections(path, [again], {**ABOUT, "model_id": "m2"})
    assert calls == ["a", "plain", "a"]
    assert {name: s["key"]["model_id"] for name, s in result["sections"].items()} == {"a": "m2", "plain": "b"}


def test_the_page_marks_figures_and_sections_of_another_model_or_codec() -> None:
    quality = numbers().quality
    sections = dict(quality.sections)
    sections["natural"] = replace(sections["natural"], key={"model_id": "m0", "codec_id": "c"})
    sections["retrieved"] = replace(sections["retrieved"], key={"model_id": "m1", "codec_id": "older"})
    text = page(
        Numbers(replace(quality, sections=sections), overlap=Overlap("m0", "2026-01-07", 9, 0.9, 0.9))
    )
    assert "| held-out countries: token F1 with memory | 0.950 |" in text
    assert "F1 with memory / F1 with text | 0.750 † |" in text
    assert "recall@5) | 0.950 † |" in text
    assert "overlap: F1 of exact - F1 of overlap | 0.000 † |" in text
    assert "9 rows, 2026-01-01, **another model m0** †." in text
    assert "9 rows, 2026-01-01, **another codec older** †." in text
    assert "†" not in page(numbers())


def test_retrieved_memories_get_a_section_of_their_own_from_an_older_file() -> None:
    old = {
        "heldout": {
            "key": {"model_id": "m", "candidates": 50, "conditions": ["rag", "memory_retrieved"]},
            "result": {
                "rows": 1, "conditions": {"rag": {"f1": 1.0}, "memory_retrieved": {"f1": 0.5}},
                "answers": [{"question": "Q", "rag": "a", "memory_retrieved": "b"}],
            },
        }
    }  # fmt: skip
    found = retrieved_apart(old)
    assert found["heldout"]["key"] == {"model_id": "m", "conditions": ["rag"]}
    assert found["retrieved"]["key"] == {
        "model_id": "m",
        "candidates": 50,
        "conditions": ["memory_retrieved"],
    }
    results = [found[name]["result"] for name in ("heldout", "retrieved")]
    assert results[1]["answers"] == [{"question": "Q", "memory_retrieved": "b"}]
    assert joined_results(results) == old["heldout"]["result"]


@pytest.mark.parametrize("content", ["{", "[]", '{"sections": {"a": {}}}', '{"rows": 3}'])
def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "quality.json"
    path.write_text(content)
    with pytest.raises(CorruptFile, match="--out"):
        run_sections(path, [], ABOUT)
    assert path.read_text() == content


def test_what_is_committed_has_the_means_and_not_the_answers() -> None:
    scores = Scores()
    scores.add(Row("K", "Q?", "Oslo", believed_answer="Rome"), "Rome")
    result = conditions_result({"memory": scores}, [Row("K", "Q?", "Oslo", believed_answer="Rome")])
    assert result["answers"] == [
        {"question": "Q?", "right_answer": "Oslo", "believed_answer": "Rome", "memory": "Rome"}
    ]
    assert result["conditions"]["memory"]["says_belief"] == 1.0


@pytest.mark.parametrize(
    ("value", "higher", "verdict"),
    [
        (0.99, True, "aim reached"),
        (0.95, True, "must reached"),
        (0.90, True, "falls short"),
        (None, True, "not measured"),
        (0.90, False, "aim reached"),
        (1.00, False, "falls short"),
    ],
)
def test_a_figure_is_judged_by_its_bars(value: float | None, higher: bool, verdict: str) -> None:
    must, aim = (0.93, 0.98) if higher else (0.98, 0.93)
    assert Target("x", value, must, aim, higher).verdict == verdict


def test_every_figure_comes_from_its_section() -> None:
    files = every_file()
    rows = {t.what: t for t in targets(numbers().quality, files["edge_quality"], files["overlap"])}
    values = {what: None if t.value is None else round(t.value, 4) for what, t in rows.items()}
    assert values == {
        "held-out countries: token F1 with memory": 0.95,
        "held-out countries: exact match with memory": 0.9,
        "natural questions: F1 with memory / F1 with text": 0.75,
        "natural questions: right answer likelier than the wrong one (two-way)": 0.7,
        "natural questions: F1 with text, tuned / untuned model": None,
        "end to end: F1 with retrieved memories / F1 with the right one given": 0.9474,
        "end to end: right reference among the five retrieved (recall@5)": 0.95,
        "int8 decoder: F1 - F1 of float32": -0.01,
        "int4-64-table-int8 decoder: F1 - F1 of float32": None,
        "the codec: F1 without it - F1 with it": 0.0,
        "overlap: F1 of exact - F1 of overlap": 0.02,
        "perplexity of prose without memory, tuned / original": None,
        "bytes of codes in a full memory": 38400.0,
    }
    assert rows["held-out countries: token F1 with memory"].aim == pytest.approx(0.99 * 0.99)


def test_the_page_shows_what_there_are_numbers_for(tmp_path: Path) -> None:
    bare = page(numbers())
    assert "a machine" in bare
    assert "2026-01-02" in bare
    assert "On the device" not in bare
    full = numbers(**every_file())
    written = write_plots(full, tmp_path)
    text = page(full)
    assert {p.stem for p in written} == {"quality-conditions"}
    for path in written:
        assert f"images/{path.name}" in text
    assert "| `int8` |" in text


def test_the_page_tells_what_the_device_answers_with_rows_and_date() -> None:
    text = page(numbers(**every_file()))
    assert "| `int8` | 0.940 | 0.900 | 100.0% | 180 |" in text
    assert "F1 0.930 against 0.950,\n100 questions about held-out countries, 2026-01-07" in text
    assert "both modes did the same" not in text
    none = replace(every_file()["overlap"], generated_recalls=0)
    assert "both modes did the same" in page(numbers(overlap=none))


def test_a_point_has_the_standard_error_of_its_mean() -> None:
    assert Scores(f1=[0.0, 1.0, 1.0, 0.0]).point() == {"f1": 0.5, "f1_error": 0.2887}
    assert Scores(f1=[1.0]).point()["f1_error"] == 0.0


def test_every_result_reads_back_as_it_was_written(tmp_path: Path) -> None:
    files = {**every_file(), "quality": numbers().quality}
    for name, result in files.items():
        result.save(tmp_path / f"{name}.json")
    assert Numbers.read(tmp_path) == Numbers(**files)


def test_a_result_of_another_shape_is_named_with_its_field(tmp_path: Path) -> None:
    path = tmp_path / "overlap.json"
    path.write_text('{"model_id": "m", "rows": 5, "date": "", "exact_f1": 0.5}')
    with pytest.raises(CorruptFile, match=r"overlap_quality`: overlap_f1: Field required"):
        Overlap.load(path)


def test_answers_that_were_kept_are_scored_only_where_all_questions_are_the_same() -> None:
    rows = [Row("k", f"q{n}", "Paris") for n in range(2)]
    told = {"rag": Scores(), "memory": Scores()}
    for row, answer in zip(rows, ("Paris", "Rome"), strict=True):
        for scores in told.values():
            scores.add(row, answer)
    kept = conditions_result(told, rows)
    found = scores_of_answers(rows, kept, ["rag"])
    assert found is not None
    assert found["rag"].f1 == [1.0, 0.0]
    assert scores_of_answers(rows[:1], kept, ["rag"]) is not None
    assert scores_of_answers(rows[::-1], kept, ["rag"]) is None
    assert scores_of_answers(rows, kept, ["rag", "memory_exact"]) is None
    assert scores_of_answers([*rows, Row("k", "q2", "Paris")], kept, ["rag"]) is None


def test_figures_come_out_the_same_twice_and_hold_no_date(tmp_path: Path) -> None:
    first = [p.read_bytes() for p in write_plots(numbers(), tmp_path / "a")]
    second = [p.read_bytes() for p in write_plots(numbers(), tmp_path / "b")]
    assert first == second
    assert b"<dc:date>" not in first[0]


def test_a_page_without_numbers_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="make eval"):
        Numbers.read(tmp_path)
    (tmp_path / "quality.json").write_text("{")
    with pytest.raises(CorruptFile):
        Numbers.read(tmp_path)


def test_the_committed_page_is_what_the_committed_numbers_say() -> None:
    assert (ROOT / "docs/quality.md").read_text(encoding="utf-8") == page(Numbers.read(ROOT / "docs/data")), (
        "run `make quality`"
    )


def test_a_plan_takes_the_sections_that_are_asked_for(tmp_path: Path) -> None:
    every, windows = plan(tmp_path, None, None)
    assert "natural" not in [s.name for s in every]
    assert windows > 0
    some, none = plan(tmp_path, Path("natural.json"), 7, ("natural", "hard"))
    assert [(s.name, s.rows, s.file) for s in some] == [
        ("hard", 7, tmp_path / "heldout_hard.json"),
        ("natural", 7, Path("natural.json")),
    ]
    assert none == 0
    with pytest.raises(InvalidInput, match="no section natural"):
        plan(tmp_path, None, None, ("natural",))


def test_the_report_command_takes_over_a_measurement_without_its_answers(tmp_path: Path) -> None:
    measured, kept, out = tmp_path / "measured.json", tmp_path / "data", tmp_path / "docs" / "quality.md"
    out.parent.mkdir()
    numbers().quality.save(measured)
    content = json.loads(measured.read_text())
    content["sections"]["heldout"]["result"]["answers"] = ["secret"]
    measured.write_text(json.dumps(content))
    done = CliRunner().invoke(
        app, ["quality-report", "--from", str(measured), "--numbers", str(kept), "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert "secret" not in (kept / "quality.json").read_text()
    assert out.read_text() == page(numbers())
    assert (out.parent / "images" / "quality-conditions.svg").is_file()
