from __future__ import annotations

import pytest
from typer.testing import CliRunner

from deploy.bench import result_files
from deploy.bench.__main__ import app
from deploy.bench.compare import compare, differences
from deploy.bench.scenario import ScenarioFailed
from tests.deploy.made_scenario import made_result


def verdict(before: tuple[float, float], after: tuple[float, float], name: str = "ratio") -> str:
    def result(bounds):
        return {"scenario": "made", name: sum(bounds) / 2, "intervals": {name: list(bounds)}}

    (found,) = compare(result(before), result(after))
    return found.word


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ((0.95, 0.97), (0.95, 0.97), "same"),
        ((0.95, 0.97), (0.955, 0.985), "same"),  # less than the tolerance
        ((0.90, 0.99), (0.80, 0.91), "unclear"),  # the intervals touch
        ((0.95, 0.97), (0.80, 0.85), "worse"),
        ((0.80, 0.85), (0.95, 0.97), "better"),
    ],
)
def test_verdicts(before, after, word):
    assert verdict(before, after) == word


@pytest.mark.parametrize("name", ["blocked_ms_per_chunk", "decode_ms", "relative_error", "late_chunks"])
def test_of_times_errors_and_sizes_less_is_better(name):
    assert verdict((1, 2), (4, 5), name) == "worse"
    assert verdict((4, 5), (1, 2), name) == "better"


def test_rates_are_not_taken_for_times():
    assert verdict((1, 2), (4, 5), "tokens_per_s_with") == "better"


def test_figures_of_rows_are_compared_with_those_of_the_same_row_wherever_it_stands():
    def row(rtt_ms: float, low: float, high: float) -> dict:
        return {
            "rtt_ms": rtt_ms,
            "late_chunks": 3,
            "ratio": (low + high) / 2,
            "intervals": {"ratio": [low, high]},
        }

    before = {"scenario": "made", "rows": [row(0, 0.9, 0.95), row(50, 0.9, 0.95), row(100, 0.9, 0.95)]}
    after = {"scenario": "made", "rows": [row(50, 0.7, 0.75), row(0, 0.9, 0.95), row(200, 0.1, 0.2)]}
    assert {v.name: v.word for v in compare(before, after)} == {
        "0 ms: ratio": "same",
        "50 ms: ratio": "worse",
    }


def test_results_of_different_scenarios_are_refused():
    with pytest.raises(ScenarioFailed, match="cannot be compared"):
        compare(made_result(), {**made_result(), "scenario": "other"})


def test_what_was_measured_differently_is_told():
    other = made_result()
    other["machine"] = {**other["machine"], "cpu": "another processor"}
    assert differences(made_result(), other) == ["machine.cpu: a processor and another processor"]
    assert differences(made_result(), made_result()) == []


@pytest.mark.parametrize(("low", "exit_code"), [(0.95, 0), (0.5, 1)])
def test_the_commands_exit_code_is_for_ci(tmp_path, low, exit_code):
    result_files.write(made_result(), tmp_path / "before.json")
    result_files.write(made_result(low=low, high=low + 0.04), tmp_path / "after.json")
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "before.json"), str(tmp_path / "after.json")])
    assert done.exit_code == exit_code, done.output
    assert ("worse" in done.output) == bool(exit_code)


def test_a_result_that_is_not_there_is_told_with_what_to_do(tmp_path):
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "decode.json"), str(tmp_path / "decode.json")])
    assert done.exit_code == 2
    assert "make bench-decode" in done.output
