"""What is drafted: what follows the answer's last tokens in the texts that it reads, as far as that shortens it."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from edge_client.generate.drafts import MOST, Drafter

TOKENS = st.lists(st.integers(0, 5), max_size=30)


def drafter(prompt: Sequence[int], memories: Sequence[Sequence[int]], answer: Sequence[int]) -> Drafter:
    made = Drafter(prompt)
    made.read(memories)
    for token in answer:
        made.add(token)
    return made


def parts(text: Sequence[int]) -> set[tuple[int, ...]]:
    return {tuple(text[a:b]) for a in range(len(text)) for b in range(a + 1, len(text) + 1)}


@given(TOKENS, st.lists(TOKENS, max_size=3), TOKENS.filter(bool), st.integers(0, 10))
def test_a_draft_is_a_part_of_one_text_behind_the_answers_last_token(
    prompt: list[int], memories: list[list[int]], answer: list[int], most: int
) -> None:
    draft = drafter(prompt, memories, answer).draft(most)
    assert draft == drafter(prompt, memories, answer).draft(most), "nothing is drawn"
    assert len(draft) <= min(most, MOST)
    if draft:
        assert any((answer[-1], *draft) in parts(text) for text in ([*prompt, *answer], *memories))


def test_memories_come_before_the_prompt_and_the_longer_match_before_the_shorter() -> None:
    assert drafter([7, 1, 2], [[7, 8, 9]], [7]).draft(2) == [8, 9]
    assert drafter([6, 7, 1, 2], [[7, 8, 9]], [6, 7]).draft(1) == [1]
    assert drafter([], [[7, 8, 9], [6, 7, 1, 2]], [6, 7]).draft(2) == [1, 2]


def test_nothing_is_drafted_where_nothing_matches_or_a_text_ends() -> None:
    assert drafter([1, 2, 3], [[4, 5]], [9]).draft(7) == []
    assert drafter([], [[4, 5], [6, 7]], [5]).draft(7) == []
    assert drafter([], [[4, 5], [6, 7]], [4]).draft(0) == []


def test_a_match_that_goes_on_differently_elsewhere_is_not_trusted_at_once() -> None:
    assert drafter([], [[3, 4, 5], [3, 6, 7]], [3]).draft(7) == []
    assert drafter([], [[2, 3, 4, 5], [3, 6, 7]], [2, 3]).draft(7) == [4, 5]


def test_other_memories_replace_those_before() -> None:
    made = drafter([], [[1, 2, 3]], [1])
    assert made.draft(7) == [2, 3]
    made.read([[1, 5, 6]])
    assert made.draft(7) == [5, 6]


def test_drafts_end_where_they_were_wrong_and_come_back_where_they_are_right() -> None:
    text = list(range(100, 400))
    made = Drafter([])
    made.read([text])
    for token in text[::10]:  # what follows is never what comes
        made.add(token)
    assert made.draft(7) == []
    for token in text[5:60]:
        made.add(token)
    assert made.draft(7) == text[60:67]
