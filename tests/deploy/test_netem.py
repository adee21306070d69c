from __future__ import annotations

import pytest

from deploy.bench import netem
from deploy.bench.scenario import ScenarioFailed
from deploy.bench.shaper import Link


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (Link(50), "delay 25ms"),
        (Link(0), "delay 0ms"),
        (Link(100, 20), "delay 50ms rate 20mbit"),
        (Link(200, 20, 5, 0.01), "delay 100ms 5ms loss 1% rate 20mbit"),
    ],
)
def test_a_link_as_netems_own_words(link, words):
    command = " ".join(netem.netem_command(link))
    assert command == f"tc qdisc replace dev lo root netem limit 10000 {words}"


def test_where_it_is_not_permitted_the_error_says_why_and_what_works_instead(monkeypatch):
    monkeypatch.setattr(netem, "why_not", lambda: "Error: Specified qdisc kind is unknown.")
    with (
        pytest.raises(ScenarioFailed, match=r"qdisc kind is unknown.*set emulator=proxy"),
        netem.own_loopback(),
    ):
        pass


def test_missing_programs_are_named(monkeypatch):
    monkeypatch.setattr(netem.shutil, "which", lambda name: None if name == "tc" else name)
    assert netem.why_not().startswith("tc not found")
