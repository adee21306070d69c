"""The nearest by int8 hold the nearest by float32, whoever multiplies and in however many pieces they came."""

import numpy as np
import pytest

from edge_client.local.knowledge_base import BLOCK, NearVectors
from tests.edge_client.local.test_knowledge_base import vectors
from tests.memory_model.codec.test_native import libraries

COUNT, DIMENSION, WANTED = 20_000, 384, 50


@pytest.mark.parametrize("library", [None, *libraries()[:1]], ids=lambda library: "C" if library else "numpy")
def test_exact_search_finds_no_other_vectors(library: object) -> None:
    rows, queries = vectors(COUNT, 0, DIMENSION), vectors(40, 1, DIMENSION)
    near = NearVectors(DIMENSION, library)  # type: ignore[arg-type]
    for start in range(0, COUNT, BLOCK + 1):
        block = rows[start : start + BLOCK + 1]
        near.add(np.arange(start, start + len(block)) + 7, block)
    found = near.nearest(queries, WANTED)
    exact = np.argsort(-(queries @ rows.T), axis=1)[:, :WANTED] + 7
    shares = [np.isin(best, ids).mean() for best, ids in zip(exact, found, strict=True)]
    assert np.mean(shares) >= 0.999
    assert (len(near), near.last_id, len(found[0])) == (COUNT, COUNT + 6, 2 * WANTED)
