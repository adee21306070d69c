"""Settings, result files and the report, with a scenario that costs nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.bench import outcome, report, summary
from deploy.bench.outcome import FORMAT_VERSION
from deploy.bench.scenario import SCENARIOS, Keys, Scenario, ScenarioFailed, Settings, Sheet, figure, find_scenario
from deploy.default_bundle import bundle_of
from memory_model.defaults import PACKAGED, TINY
from testing.programs import ROOT


def made_scenario(**keys: Any) -> Scenario[Settings]:
    def sheets(result):
        return [Sheet("made", ("what", "ratio"), [("a | b <i>", figure(result, "ratio"))], "Of nothing.")]

    measured = {"intervals": dict.fromkeys(keys), **keys}
    return Scenario("made", "Measures nothing.", Settings, lambda _: measured, sheets, quick={"rounds": 2})


def made_result() -> Keys:
    machine = {
        "date": "2026-11-21T10:00:00+00:00",
        "commit": "0123abc",
        "cpu": "a processor",
        "cores": 2,
        "load_average": [0.1, 0.1, 0.1],
        "copy_gb_per_s": 10.0,
        "python": "3.11.7",
        "versions": {"numpy": "2.4"},
    }
    return {
        "scenario": "made",
        "format_version": FORMAT_VERSION,
        "quick": True,
        "machine": machine,
        "settings": {"threads": 1},
        "ratio": 0.97,
        "intervals": {"ratio": [0.95, 0.99]},
    }


@pytest.fixture(autouse=True)
def made(monkeypatch):
    monkeypatch.setattr(report, "find_scenario", lambda name: made_scenario())
    monkeypatch.setattr(report, "SCENARIOS", ("made", "other"))
    monkeypatch.setattr(outcome.machine, "copy_gb_per_s", lambda threads: 1.0)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_valid_settings_and_five_rounds_unless_it_is_quick(name):
    scenario = find_scenario(name)
    assert scenario.name == name
    assert scenario.settings_of().rounds >= 5
    assert scenario.settings_of(quick=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_running_service_may_be_named_where_a_scenario_asks_one_and_nowhere_else(name):
    """Elsewhere the figures would be of this machine, whatever service was named."""
    scenario, target = find_scenario(name), "target=memories.example:7430"
    if {"service_for", "measure_decoding"} & set(scenario.measure.__code__.co_names):
        assert scenario.settings_of([target]).target == "memories.example:7430"
    else:
        with pytest.raises(ScenarioFailed, match="target: Extra inputs"):
            scenario.settings_of([target])


@pytest.mark.parametrize(
    "wrong", ["rounds", "=3", "rounds=[", "round=3", "rounds=0", "threads=many", "target=http://h"]
)
def test_a_mistake_in_a_setting_is_named_before_anything_is_measured(wrong):
    with pytest.raises(ScenarioFailed, match=r"--set|settings of made: "):
        made_scenario().settings_of([wrong])


@pytest.mark.parametrize("stores", ["[]", "[files]"])
def test_a_store_that_does_not_exist_is_named_before_anything_is_measured(stores):
    with pytest.raises(ScenarioFailed, match="settings of service: stores"):
        find_scenario("service").settings_of([f"stores={stores}"])


def test_a_result_holds_the_keys_the_machine_and_the_settings(tmp_path):
    outcome.measure(made_scenario(ratio=0.5), Settings(), folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["made.json"], "no temporary file stays"
    result = outcome.read(tmp_path / "made.json")
    assert (result["ratio"], result["settings"]["rounds"]) == (0.5, 7)
    assert {"cpu", "cores", "commit", "date", "versions"} <= set(result["machine"])


def test_a_models_result_is_kept_next_to_those_of_others(tmp_path):
    for model in ("small", "large", "small"):
        outcome.measure(made_scenario(model=model), Settings(), folder=tmp_path)
    assert outcome.read(tmp_path / "made.json")["model"] == "small", "the last one has the plain name"
    found = outcome.of_every_model(made_scenario(), tmp_path)
    assert [result["model"] for result in found] == ["large", "small"]


def test_the_bundle_is_that_of_the_model_which_is_chosen():
    assert Settings().bundle == ROOT / "build" / f"bundle-{TINY}", "as tests choose it"
    assert bundle_of(PACKAGED) == Path("build/bundle")


@pytest.mark.parametrize("content", [None, [], {}, {"format_version": 1}])
def test_whatever_is_no_result_of_this_version_is_refused_by_name(tmp_path, content):
    path = tmp_path / "decode.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ScenarioFailed, match="make bench-decode"):
        outcome.read(path)


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    kept = "### `make bench-other`\n\nOld figures."
    gone = "### `make bench-gone`\n\nOf no scenario."
    path.write_text(f"# By hand\n\n{report.BEGIN}\n\n{kept}\n\n{gone}\n\n{report.END}\n\nby hand too\n")
    return path


def test_the_report_writes_results_and_keeps_the_last_figures_of_other_scenarios(tmp_path, page):
    outcome.write(made_result(), tmp_path / "made.json")
    assert report.write(tmp_path, page) == ["made"]
    text = page.read_text()
    assert text.startswith("# By hand\n\n")
    assert text.endswith("\n\nby hand too\n")
    row, where = (
        "| a \\| b <i> | 0.97 (0.95 to 0.99) |",
        "2026-11-21, commit 0123abc, a processor, 2 cores, 1 thread(s)",
    )
    assert all(part in text for part in (row, where, "Quick run", "Old figures."))
    assert "bench-gone" not in text
    (tmp_path / "made.json").unlink()
    assert report.write(tmp_path, page) == []
    assert page.read_text() == text, "a result that is no longer there keeps its table"


def test_models_have_sections_of_their_own_and_columns_of_one_table(tmp_path, page, monkeypatch):
    rows = [summary.Row("ratio ↑", "made", lambda result: figure(result, "ratio"))]
    rows += [summary.Row("other ↓", "other", lambda result: figure(result, "other"))]
    monkeypatch.setattr(summary, "ROWS", rows)
    for model, ratio in (("small", 0.5), ("large", 0.75)):
        result = {**made_result(), "model": model, "ratio": ratio, "intervals": {}}
        outcome.write(result, tmp_path / model / "made.json")
    assert report.write(tmp_path, page) == ["made MODEL=large", "made MODEL=small"]
    text = page.read_text()
    table = "| figure | large, a processor | small, a processor |\n| --- | --- | --- |\n| ratio ↑ | 0.75 | 0.5 |"
    assert table in text
    assert text.index("bench-made MODEL=large`") < text.index("bench-made MODEL=small`") < text.index("Old figures")
    (tmp_path / "large" / "made.json").unlink()
    outcome.write({**made_result(), "model": "small", "ratio": 0.6, "intervals": {}}, tmp_path / "small" / "made.json")
    report.write(tmp_path, page)
    assert "| ratio ↑ | 0.75 | 0.6 |" in page.read_text(), "a figure that was not measured again stays"


def test_every_column_with_an_interval_says_what_is_better():
    for table in re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / "benchmarks.md").read_text(), re.M):
        head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for row in rows:
            figures = [
                n for n, cell in zip(head, row, strict=True) if re.fullmatch(r"[\d.]+ \([\d.]+ to [\d.]+\)", cell)
            ]
            assert [name for name in figures if not name.endswith(("↑", "↓"))] == []


def test_a_result_that_cannot_be_shown_and_a_page_without_marks_are_refused(tmp_path, page):
    broken = {name: value for name, value in made_result().items() if name != "machine"}
    outcome.write(broken, tmp_path / "made.json")
    with pytest.raises(ScenarioFailed, match="made lacks 'machine'"):
        report.write(tmp_path, page)
    page.write_text("nothing")
    with pytest.raises(ScenarioFailed, match="lacks the lines"):
        report.write(tmp_path, page)
