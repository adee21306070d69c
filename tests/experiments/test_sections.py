"""`sections` counts answers by the reference that holds them."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from experiments.sections import found_in
from memory3.runtime.embedder import Embedder
from memory3.text.paragraphs import unwrapped
from memory_model.data.rows import QuestionRow, open_rows
from memory_model.eval.retrieval import ReferenceIndex
from testing.programs import ROOT


class LetterEmbedder:
    """A unit vector with the letters that a text has."""

    def embed(self, texts: list[str]) -> np.ndarray:
        vectors = np.array([[float(letter in text) for letter in "kxyz"] for text in texts], np.float32)
        return cast(np.ndarray, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_an_answer_counts_by_the_reference_of_its_document_that_holds_it() -> None:
    references = ["Ax\nkey\nunder the mat", "By\nunder the mat", "Cz\nnothing"]
    index = ReferenceIndex.of(references, cast(Embedder, cast(Any, LetterEmbedder())))
    rows = [
        QuestionRow("", "kx", "key under", title="Ax"),
        QuestionRow("", "x", "under the mat", title="By"),
        QuestionRow("", "z", "a bell", title="Cz"),
    ]
    found = found_in(rows, index)
    assert (found.nearest, found.read, found.first) == pytest.approx((2 / 3, 1 / 3, 1 / 3))
    assert found.memories >= 1


@pytest.mark.parametrize("name", ["sections_dev", "sections_test"])
def test_every_document_of_the_committed_sets_holds_its_answers(name: str) -> None:
    rows = open_rows(Path(ROOT / "data" / f"{name}.json"))
    assert all(row.right_answer in " ".join(unwrapped(row.knowledge).split()) for row in rows)
    assert len({row.title for row in rows}) >= 19
