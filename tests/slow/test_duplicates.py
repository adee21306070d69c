"""Recall with duplicates; `python -m tests.slow.duplicates --count 100000` prints the table of docs."""

import pytest

from tests.slow.duplicates import NOISE, SHARES, measured

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("share", SHARES)
def test_every_document_is_found_among_duplicates(kind: str, share: float) -> None:
    found = measured(20_000, share, NOISE[kind], queries=500)
    print(found)
    assert found.worst_decile >= 0.95
    assert found.own >= 0.99
    assert found.copies_worst_decile >= 0.95
