from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench import result_files, scenario_file
from deploy.bench.scenario import ScenarioFailed
from deploy.bench.scenario_file import Plan, find_scenario, overrides_of, read_plan, scenario_names
from tests.deploy.made_scenario import made_result, made_scenario


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_has_a_file_that_is_valid_quick_or_not(name, quick):
    plan = read_plan(name, quick=quick)
    assert plan.name == plan.scenario.name == name
    assert plan.scenario.summary.endswith(".")
    assert plan.scenario.promised


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write


def test_a_file_of_ones_own_names_its_result_and_its_settings(write):
    path = write(
        "scenario: codec\nname: codec-two-threads\nsettings: {threads: 2, rounds: 7}\nquick: {rounds: 2}\n"
    )
    plan = read_plan(path)
    assert (plan.name, plan.settings.threads, plan.settings.rounds) == ("codec-two-threads", 2, 7)
    assert read_plan(path, quick=True).settings.rounds == 2
    assert read_plan(path, {"rounds": 4}, quick=True).settings.rounds == 4, "what the command says comes last"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("scenario: codec\nsettings: {round: 3}", "round: Extra inputs"),
        ("scenario: codec\nsettings: {rounds: 0}", "rounds: Input should be greater"),
        ("scenario: codec\nsettings: {threads: many}", "threads: Input should be a valid integer"),
        ("scenario: codec\nsettings: {target: 'http://host'}", "target"),
        ("scenario: codec\nquick: {rounds: -1}", "rounds"),
        ("scenario: nothing", "no scenario 'nothing': there are .*codec"),
        ("scenario: codec\nname: ../escape", "name"),
        ("settings: {}", "scenario: Field required"),
        ("- a list", "file"),
        ("scenario: [", "cannot be read"),
    ],
)
def test_a_mistake_in_a_file_is_told_before_anything_is_measured(write, text, told):
    with pytest.raises(ScenarioFailed, match=told):
        read_plan(write(text))


def test_a_scenario_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(ScenarioFailed, match=r"no scenario 'decoed': give one of .*codec"):
        read_plan("decoed")


def test_settings_given_on_the_command_line_are_yaml():
    assert overrides_of(["rounds=3", "rtt_ms=[0, 50]", "target=host:1"]) == {
        "rounds": 3, "rtt_ms": [0, 50], "target": "host:1"
    }  # fmt: skip
    for wrong in ("rounds", "=3", "rtt_ms=["):
        with pytest.raises(ScenarioFailed, match="--set"):
            overrides_of([wrong])


def plan_of(scenario) -> Plan:
    return Plan("mine", scenario, scenario.settings())


def test_a_result_holds_the_keys_the_machine_and_the_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(result_files.machine, "copy_gb_per_s", lambda threads: 1.0)
    result_files.measure(plan_of(made_scenario(ratio=0.5)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"], "no temporary file stays"
    result = result_files.read(tmp_path / "mine.json")
    assert result["ratio"] == 0.5
    assert result["settings"]["rounds"] == 5
    assert {"cpu", "cores", "commit", "date", "versions", "memory_gb"} <= set(result["machine"])


def test_a_scenario_that_breaks_its_promise_gives_no_result(tmp_path, monkeypatch):
    monkeypatch.setattr(result_files.machine, "copy_gb_per_s", lambda threads: 1.0)
    with pytest.raises(ScenarioFailed, match=r"promises: \['ratio'\]"):
        result_files.measure(plan_of(made_scenario(speed=1.0)), tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        result_files.measure(plan_of(made_scenario(ratio=float("nan"))), tmp_path)
    assert not list(tmp_path.glob("*.json"))


@settings(deadline=None, max_examples=30)
@given(
    st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_whatever_json_is_no_result_is_refused_by_name(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("results") / "decode.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ScenarioFailed, match=r"decode\.json"):
        result_files.read(path)


def test_a_result_reads_back_as_it_was_written(tmp_path):
    result_files.write(made_result(), tmp_path / "made.json")
    assert result_files.read_all(tmp_path) == {"made": made_result()}


def test_the_order_of_the_report_names_only_scenarios_or_ones_to_come():
    assert [n for n in scenario_names() if n in scenario_file.ORDER] == [
        n for n in scenario_file.ORDER if n in scenario_names()
    ]
    assert find_scenario("codec").name == "codec"
