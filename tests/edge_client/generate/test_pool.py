"""Which idle sequence a prompt gets, and how a past answer is spelled."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.generate.pool import IdleSequences, Spellings


@dataclass
class Cached:
    tokens: list[int]


def idle(*texts: list[int], kept: int = 4) -> IdleSequences[Cached]:
    pool: IdleSequences[Cached] = IdleSequences(kept)
    for tokens in texts:
        pool.give(Cached(tokens))
    return pool


def taken(pool: IdleSequences[Cached], ids: list[int]) -> list[int] | None:
    found = pool.take(ids)
    return None if found is None else found.tokens


def test_a_prompt_gets_the_sequence_that_it_goes_on_from() -> None:
    pool = idle([1, 2, 3], [1, 2, 3, 4], [9, 9])
    assert taken(pool, [1, 2, 3, 4, 5]) == [1, 2, 3, 4]
    assert taken(pool, [1, 2, 3, 4, 5]) == [1, 2, 3]
    assert taken(pool, [1, 2, 3, 4, 5]) is None  # for the caller alone


def test_the_same_prompt_again_gets_its_sequence_however_long_the_answer_was() -> None:
    assert taken(idle([1, 2, *range(50, 90)]), [1, 2]) is not None


def test_a_common_system_prompt_takes_no_conversation_away() -> None:
    assert taken(idle([1, 2, 3, *range(50, 90)]), [1, 2, 3, 4, 5]) is None


def test_where_as_many_are_idle_as_are_kept_the_one_used_longest_ago_is_taken() -> None:
    assert taken(idle([7, 7], [8, 8], kept=2), [1, 2]) == [7, 7]
    assert taken(idle([7, 7], [8, 8], [9, 9], kept=2), [1, 2]) == [8, 8]  # no more are kept
    assert taken(idle([7, 7], kept=0), [7, 7, 1]) is None


def test_an_answer_that_comes_back_is_spelled_as_it_was_generated() -> None:
    spellings = Spellings(kept=2)
    spellings.remember("one", [1])
    spellings.remember("two", [2, 2])
    said = [("user", "one"), ("assistant", "two"), ("assistant", "other"), ("assistant", "one")]
    messages = [{"role": role, "content": content} for role, content in said]
    assert spellings.of(messages) == {1: (2, 2), 3: (1,)}
    spellings.remember("three", [3])
    assert spellings.of(messages) == {1: (2, 2)}
    assert spellings.of([{"role": "assistant"}]) == {}
