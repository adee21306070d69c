"""What the study of long conversations asks, and that it goes on where it was."""

import json
from pathlib import Path

from typer.testing import CliRunner

from experiments.__main__ import app
from memory_model.data import factbook
from tests.edge_client.tiny_bundle import tiny_bundle

COUNTRIES = ["Atlia", "Borland", "Corvia", "Dunmark", "Estia", "Fenland", "Gardia", "Hollin"]
DOCUMENTS = [
    {
        "key": name[:2], "title": name,
        "text": f"Capital - name: {name} City\nPopulation: {n}00,000\nLanguages: {name}ish",
    }
    for n, name in enumerate(COUNTRIES, 1)
]  # fmt: skip
PASSAGES = [
    {"title": title, "knowledge": f"{title} is {what}.", "question": f"What is {title}?", "right_answer": what}
    for title, what in [("Brie", "a cheese"), ("Elm", "a tree"), ("Oboe", "an instrument"), ("Rye", "a grain")]
]


def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    bundle, out = tiny_bundle(tmp_path), tmp_path / "out.jsonl"
    kept = [d for d in DOCUMENTS if not factbook.held_out(d["key"])]
    (tmp_path / "factbook.jsonl").write_text("".join(json.dumps(d) + "\n" for d in kept))
    (tmp_path / "squad_dev.json").write_text(json.dumps(PASSAGES))
    (tmp_path / "squad_documents.jsonl").write_text('{"title": "Sand", "text": "It is made of grains."}\n')
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
