"""The fast overlap equals the definition, worked out window by window."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from memory_model.data.retrieved import overlaps


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
    return max((longest_common_subsequence(sequence[s : s + span], reference) for s in starts), default=0) / len(
        reference
    )


tokens = st.lists(st.integers(0, 5), max_size=60)
references = st.lists(st.integers(0, 7), min_size=1, max_size=12)


@settings(deadline=None)
@given(tokens, references, st.floats(0, 1) | st.sampled_from([0.0, 1 / 3, 0.5, 0.9, 1.0]))
def test_it_is_the_papers_definition(sequence: list[int], reference: list[int], most: float) -> None:
    assert overlaps(sequence, reference, most) == (by_definition(sequence, reference) > most)


def test_a_reference_of_more_than_one_machine_word_is_measured() -> None:
    reference = list(range(200))
    assert overlaps([*range(500, 900), *range(0, 200, 2), *range(300)], reference, 0.99)
    assert overlaps([7, *range(181)], reference)
    assert not overlaps([7, *range(180)], reference)
