"""The guide for one's own model runs as it stands, on a tiny random base that transformers saved."""

import json
import os
import re
from pathlib import Path

import pytest

from testing.processes import PROGRAMS
from testing.programs import ROOT, ran
from tests.edge_client.tiny_bundle import tiny_bert
from tests.memory_model.models.published import published

GUIDE = ROOT / "docs" / "guides" / "your-own-model.md"
DOCUMENTS, LINES = 8, 6


def facts(path: Path) -> Path:
    """The first lines of some countries."""
    with (ROOT / "data" / "factbook.jsonl").open(encoding="utf-8") as file:
        documents = [json.loads(next(file)) for _ in range(DOCUMENTS)]
    for document in documents:
        document["text"] = "\n".join(document["text"].splitlines()[:LINES])
    path.write_text("".join(json.dumps(d) + "\n" for d in documents), encoding="utf-8")
    return path


@pytest.mark.slow  # eleven programs; each command has tests of its own in one process
def test_every_step_of_the_guide_works_in_its_order(tmp_path: Path) -> None:
    base = tmp_path / "Tiny-Qwen2"
    published(base, "qwen2", num_hidden_layers=2)
    environment = {
        **os.environ,
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "BASE": str(base),
        "EMBEDDER": str(tiny_bert(tmp_path / "bert")),
        "FACTS": str(facts(tmp_path / "facts.jsonl")),
        "QUESTIONS": str(ROOT / "data" / "heldout_questions.json"),
    }
    blocks = re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        ran("bash", "-euxo", "pipefail", "-c", block, cwd=tmp_path, env=environment)
    assert json.loads((tmp_path / "my-model" / "model.json").read_text())["memory"]["heads"]
    assert (tmp_path / "bundle" / "manifest.json").is_file()
