"""Vectors searched in 8 bits and compared exactly: what is found is what an exact search finds."""

import numpy as np
import pytest

from edge_client.local.near_vectors import BLOCK, NearVectors
from tests.edge_client.local.small_base import vectors
from tests.memory3.codec.native_builds import libraries

COUNT, WIDTH, WANTED = 20_000, 384, 50


@pytest.mark.parametrize("library", [None, *libraries()[:1]], ids=lambda library: "C" if library else "numpy")
def test_exact_search_finds_no_other_vectors(library: object) -> None:
    rows, queries = vectors(COUNT, 0, WIDTH), vectors(40, 1, WIDTH)
    near = NearVectors(WIDTH, library)  # type: ignore[arg-type]
    for start in range(0, COUNT, BLOCK + 1):
        block = rows[start : start + BLOCK + 1]
        near.add(np.arange(start, start + len(block)) + 7, block)
    found = near.nearest(queries, WANTED)
    exact = np.argsort(-(queries @ rows.T), axis=1)[:, :WANTED] + 7
    shares = [np.isin(best, ids).mean() for best, ids in zip(exact, found, strict=True)]
    assert np.mean(shares) >= 0.999
    assert (len(near), near.last_id, len(found[0])) == (COUNT, COUNT + 6, 2 * WANTED)
