"""Remembered words order candidates as fresh ones do; texts are read once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from memory_model.words import query_words, ranked, text_words
from memory_service.stores.word_ranking import Candidate, WordRanking

_TEXTS = {
    n: f"Benin {word}" * (n + 1) for n, word in enumerate(("airports", "railways", "population", "coast"))
}
_TITLES = ("", "Benin", "Togo", "Benin coast")
_ASKED = st.lists(st.sampled_from(["benin", "airports", "coast", "togo", "nothing"]), min_size=1, max_size=4)


@given(st.lists(_ASKED, min_size=1, max_size=5), st.sampled_from([0, 900, 1 << 20]))
def test_the_order_does_not_depend_on_what_is_remembered(questions: list[list[str]], budget: int) -> None:
    ranking = WordRanking(budget)
    candidates = [Candidate(n, 0.5 - n / 100, _TITLES[n]) for n in _TEXTS]
    for question in questions:
        words = query_words(" ".join(question))
        texts, titles = [text_words(t) for t in _TEXTS.values()], [query_words(t) for t in _TITLES]
        fresh = ranked(words, [c.score for c in candidates], texts, titles, 0.1)
        assert ranking.best(1, words, candidates, 0.1, _read) == fresh
        assert ranking.remembered.used_bytes <= budget


def _read(memory_ids: Sequence[int]) -> dict[int, str]:
    return {memory_id: _TEXTS[memory_id] for memory_id in memory_ids}


def test_only_texts_that_are_not_remembered_are_read() -> None:
    asked: list[list[int]] = []

    def read(memory_ids: Sequence[int]) -> dict[int, str]:
        asked.append(sorted(memory_ids))
        return {memory_id: _TEXTS[memory_id] for memory_id in memory_ids if memory_id != 3}

    ranking, words = WordRanking(1 << 20), query_words("Benin")
    ranking.best(1, words, [Candidate(n, 0.5, "") for n in (0, 1, 3)], None, read)
    ranking.best(1, words, [Candidate(n, 0.5, "") for n in (0, 1, 2, 3)], None, read)
    ranking.best(2, words, [Candidate(0, 0.5, "")], None, read)
    assert asked == [[0, 1, 3], [2, 3], [0]]  # 3 was gone, and another knowledge base has words of its own
