"""What a device's decoder shows of a question is what the model shows; what rounding moves is taken off."""

from pathlib import Path

import numpy as np
import pytest

from edge_client.decoder.batching import BatchingDecoder
from experiments.answers.probe_lean import read, refused
from memory_model.data.rows import QuestionRow
from memory_model.eval.conditions import Evaluation
from memory_model.eval.refusing import Signals, signals
from memory_model.eval.subject import Subject
from tests.edge_client.tiny_bundle import probe_of, tiny_bundle, tiny_loaded

ROWS = [QuestionRow(f"Land{n}\nArea: {n} km", f"Area of Land{n}?", f"{n} km") for n in range(4)]


def test_a_decoder_of_the_same_weights_shows_the_same(tmp_path: Path) -> None:
    subject = Subject.of(tiny_loaded())
    decoder = BatchingDecoder.open(tiny_bundle(tmp_path), provider="cpu", threads=1)
    run = Evaluation(subject, ROWS, ["memory"], distractors=3)
    expected = signals(run)
    for number, (row, references) in enumerate(zip(ROWS, run.given, strict=True)):
        margin, queries = read(decoder, subject, subject.prompt(row.question), references)
        assert margin == pytest.approx(expected.margins[number], abs=1e-3)
        np.testing.assert_allclose(queries, expected.queries[number], atol=1e-3)


def test_shares_are_of_answerable_questions_and_of_the_others() -> None:
    shown = Signals(
        np.array([1.0, -1.0, -1.0, 0.5]), np.full(4, 5), np.zeros((4, 3)), np.array([True, True, True, False])
    )
    assert refused(probe_of("", np.zeros(3)), shown) == "0.333, 1.000"
    assert refused(probe_of("", np.zeros(3), 2.0), shown) == "1.000, 1.000"
