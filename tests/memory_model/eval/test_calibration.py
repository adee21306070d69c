"""Scores mean what they mean for one embedder: floor, weights and drop follow from questions with their texts."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory3.text.words import Ranking, text_words
from memory_model.cli import app
from memory_model.data.rows import QuestionRow
from memory_model.eval.calibration import LEAST_QUESTIONS, calibrate_retrieval
from tests.edge_client.tiny_bundle import tiny_bundle, tiny_loaded

TOWNS = [
    f"{first}{last}"
    for first in ("Ar", "Bel", "Cor", "Dun", "Eld", "Fal")
    for last in ("burg", "holm", "ton", "vik", "mar")
]
ROWS = [
    QuestionRow(f"{town}\nMayor: Ms {town[::-1]}. The town hall opens at {n} o'clock.", question, f"{n}")
    for n, town in enumerate(TOWNS)
    for question in (f"When does the town hall of {town} open?",)
]


class NarrowEmbedder:
    """Words as vectors, all turned towards one direction: every cosine is high, as E5's are."""

    dim, name = 64, "narrow"

    def __init__(self, towards: float) -> None:
        self.towards = towards

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text_words(text):
                row += np.random.default_rng(int(word)).standard_normal(self.dim)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors[:, 0] += self.towards
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_floor_and_drop_follow_the_embedder_and_words_help_where_cosines_do_not() -> None:
    tokenizer = tiny_loaded().tokenizer
    wide, narrow = (
        calibrate_retrieval(ROWS, NarrowEmbedder(towards), tokenizer, 128, others=["Nothing of that"])  # type: ignore[arg-type]
        for towards in (0.0, 3.0)
    )
    assert narrow.minimum_score > 0.8 > wide.minimum_score
    assert narrow.ranking.largest_drop <= wide.ranking.largest_drop
    assert narrow.recall >= max(narrow.recall_by_vector, narrow.recall_by_default)
    assert wide.recall == 1.0
    assert 1 <= narrow.read <= 5
    with pytest.raises(InvalidInput, match=f"give {LEAST_QUESTIONS}"):
        calibrate_retrieval(ROWS[:2], NarrowEmbedder(0.0), tokenizer, 128)  # type: ignore[arg-type]


def test_the_command_writes_what_it_measured_into_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    bundle, data, out = tiny_bundle(tmp_path / "made"), tmp_path / "questions.json", tmp_path / "out.json"
    folder = Path(shutil.copytree(bundle.folder, tmp_path / "bundle"))
    rows = [{"knowledge": row.knowledge[:60], "question": row.question, "right_answer": "x"} for row in ROWS]
    data.write_text(json.dumps(rows), "utf-8")
    command = ["calibrate-retrieval", "--data", str(data), "--bundle", str(folder), "--json", str(out)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert Bundle.open(folder).manifest == bundle.manifest, "nothing is written without --save"
    assert CliRunner().invoke(app, [*command, "--save"]).exit_code == 0
    found, manifest = json.loads(out.read_text("utf-8")), Bundle.open(folder).manifest
    assert (manifest.minimum_score, manifest.ranking) == (found["minimum_score"], Ranking(**found["ranking"]))
    assert found["embedder_id"] == manifest.embedder_id
