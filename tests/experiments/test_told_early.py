"""What the study of long conversations asks, and that it goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from experiments.__main__ import app
from memory_model.data import factbook
from tests.edge_client.tiny_bundle import tiny_bundle

DOCUMENTS = [
    {
        "key": name[:2],
        "title": name,
        "text": f"Capital - name: {name} City\nPopulation: {n}00,000\nLanguages: {name}ish",
    }
    for n, name in enumerate(["Atlia", "Borland", "Corvia", "Dunmark", "Estia"], 1)
]


def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    bundle, out, data = tiny_bundle(tmp_path), tmp_path / "out.jsonl", tmp_path / "facts.jsonl"
    kept = [d for d in DOCUMENTS if not factbook.held_out(d["key"])]
    data.write_text("".join(json.dumps(d) + "\n" for d in kept))
    command = ["long-conversation", "--bundle", bundle.folder, "--out", out, "--data", data, "--distances", "300,1200"]
    for questions in (1, 2):
        done = CliRunner().invoke(app, [str(c) for c in (*command, "--questions", questions, "--context", 900)])
        assert done.exit_code == 0, done.output
        if questions == 1:
            out.write_text(out.read_text() + '{"number": 0, "dist')  # the process was killed here
    found = [json.loads(line) for line in out.read_text().splitlines()]
    places = [(m["number"], m["distance"], m["condition"]) for m in found]
    assert len(places) == len(set(places))
    assert {(n, d, "memories") for n in (0, 1) for d in (300, 1200)} <= set(places)
    assert {d for _, d, condition in places if condition == "everything"} == {300}, "1200 do not fit into 900"
