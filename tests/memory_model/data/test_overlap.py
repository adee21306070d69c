"""The fast overlap equals the definition, worked out window by window."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_model.data.retrieved import overlap
from memory_model.errors import InvalidInput


def longest_common_subsequence(a: Sequence[int], b: Sequence[int]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        above = 0
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], above + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def by_definition(sequence: Sequence[int], reference: Sequence[int]) -> float:
    """Every first position i_1, and all positions at most 2 |r| after it."""
    span = 2 * len(reference) + 1
    starts = range(len(sequence))
    return max(
        (longest_common_subsequence(sequence[s : s + span], reference) for s in starts), default=0
    ) / len(reference)


tokens = st.lists(st.integers(0, 5), max_size=60)
references = st.lists(st.integers(0, 7), min_size=1, max_size=12)


@settings(deadline=None)
@given(tokens, references)
def test_it_is_the_papers_definition(sequence: list[int], reference: list[int]) -> None:
    assert overlap(sequence, reference) == by_definition(sequence, reference)


@settings(deadline=None)
@given(tokens, references, st.floats(-0.5, 1.5) | st.sampled_from([0.0, 1 / 3, 0.5, 0.9, 1.0]))
def test_a_threshold_gives_the_same_answer_as_the_whole_measurement(
    sequence: list[int], reference: list[int], threshold: float
) -> None:
    exceeds = overlap(sequence, reference, threshold) > threshold
    assert exceeds == (overlap(sequence, reference) > threshold)


def test_a_reference_of_more_than_one_machine_word_is_measured() -> None:
    reference = list(range(200))
    assert overlap([*range(500, 900), *range(0, 200, 2), *range(300)], reference) == 1.0
    assert overlap(list(range(0, 200, 2)), reference) == 0.5


def test_an_empty_reference_is_refused() -> None:
    with pytest.raises(InvalidInput, match="empty reference"):
        overlap([1], [])
