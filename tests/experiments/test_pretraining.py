"""Random weights to start from, and held-out losses compared on the same sequences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.training.pretraining import compared
from experiments.training.random_base import random_weight
from memory_model.data import factbook
from tests.edge_client.tiny_bundle import tiny_bundle


@pytest.mark.parametrize("exponent", [-0.5, -0.8])
def test_the_deviation_of_random_weights_is_a_power_of_their_inputs(exponent: float) -> None:
    weight = random_weight("model.layers.0.mlp.up_proj.weight", (512, 256), exponent=exponent)
    assert weight.std() == pytest.approx(256**exponent, rel=0.02)
    assert (random_weight("model.norm.weight", (4,), exponent=exponent) == 1).all()


def test_losses_that_differ_between_sequences_are_compared_on_the_same_ones() -> None:
    without, hard = [1.0, 2.0, 3.0], [0.1, 0.2, 0.3]
    lower = [loss - gain for loss, gain in zip(without, hard, strict=True)]
    found = compared(
        {
            "continual-without": {"without": without, "with": [x + 0.5 for x in without]},
            "continual-switched": {"without": without, "with": lower},
        }
    )
    assert found["continual-switched"]["with"]["error"] > 0.5
    lowers = found["continual-switched"]["memory_lowers"]
    assert (lowers["difference"], lowers["n"]) == (0.2, 3)
    assert lowers["error"] == pytest.approx(0.1 / 3**0.5, abs=1e-4)
    assert found["continual-without"]["memory_lowers"]["difference"] == -0.5
    assert found["continual-without"]["switched_lower"] == lowers
    assert found["continual-switched"]["switched_lower"]["difference"] == 0


COUNTRIES = ["Atlia", "Borland", "Corvia", "Dunmark", "Estia", "Fenland", "Gardia", "Hollin"]
DOCUMENTS = [
    {
        "key": name[:2],
        "title": name,
        "text": f"Capital - name: {name} City\nPopulation: {n}00,000\nLanguages: {name}ish",
    }
    for n, name in enumerate(COUNTRIES, 1)
]
PASSAGES = [
    {"title": title, "knowledge": f"{title}\n{title} is {what}.", "question": f"What is {title}?", "right_answer": what}
    for title, what in [("Brie", "a cheese"), ("Elm", "a tree"), ("Oboe", "an instrument"), ("Rye", "a grain")]
]


@pytest.mark.slow
def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    bundle, out = tiny_bundle(tmp_path), tmp_path / "out.jsonl"
    kept = [d for d in DOCUMENTS if not factbook.held_out(d["key"])]
    (tmp_path / "factbook.jsonl").write_text("".join(json.dumps(d) + "\n" for d in kept))
    (tmp_path / "introductions_dev.json").write_text(json.dumps(PASSAGES))
    (tmp_path / "introductions_documents.jsonl").write_text('{"title": "Sand", "text": "It is made of grains."}\n')
    command = ["long-conversation", "--bundle", bundle.folder, "--out", out, "--data", tmp_path, "--conversations", 0]
    for distances in ("200", "200,2400"):
        done = CliRunner().invoke(app, [str(c) for c in (*command, "--distances", distances, "--context", 1500)])
        assert done.exit_code == 0, (done.output, done.exception)
        if distances == "200":
            out.write_text(out.read_text() + '{"conversation": 0, "dist')  # the process was killed here
    found = [json.loads(line) for line in out.read_text().splitlines()]
    places = [(m["distance"], m["condition"], m["turn"]) for m in found]
    assert len(places) == len(set(places))
    assert {(n, d) for d, condition, n in places if condition == "memories"} == {
        (turn, distance) for turn in range(1, 9) for distance in (200, 2400)
    }
    assert {m["found"] for m in found if m["distance"] == 200} == {True}, "all is text in the cache"
    assert not any(m["found"] for m in found if m["condition"] == "window" and m["distance"] == 2400)
    assert {d for d, condition, _ in places if condition == "everything"} == {200, 2400}, "in a larger cache"
