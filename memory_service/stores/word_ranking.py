"""Candidates in the order of vector and words: the words of references that searches met lately are remembered.

To make a text into word hashes takes some 30 us, to order fifty candidates whose hashes are there some 100 us in all.
A store keeps one `WordRanking` for all its knowledge bases, bounded in bytes; only texts that it lacks are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memory_model.words import query_words, ranked, text_words
from memory_service.stores.bounded_cache import BoundedCache

ReadTexts = Callable[[Sequence[int]], Mapping[int, str]]
"""Texts by memory id; ids that are gone are left out."""


@dataclass(frozen=True)
class Candidate:
    """A reference near a query, as far as ordering needs it."""

    memory_id: int
    score: float
    title: str


class WordRanking:
    """Thread-safe. An id names its text for ever, so nothing here grows stale."""

    def __init__(self, budget_bytes: int) -> None:
        """budget_bytes: of remembered words; 0 makes them anew for every query."""
        self.remembered: BoundedCache[tuple[np.ndarray, list[int]]] = BoundedCache(
            "words", budget_bytes, _size
        )

    def best(
        self,
        kb: int,
        words: Sequence[int],
        candidates: Sequence[Candidate],
        drop: float | None,
        read: ReadTexts,
    ) -> list[tuple[int, float]]:
        """See `memory_model.words.ranked`: places of the candidates with their scores, best first."""
        known = self.remembered.get_many(kb, [candidate.memory_id for candidate in candidates])
        missing = [candidate for candidate in candidates if candidate.memory_id not in known]
        if missing:
            texts = read([candidate.memory_id for candidate in missing])
            fresh = {
                candidate.memory_id: (
                    text_words(texts.get(candidate.memory_id, "")),
                    query_words(candidate.title) if candidate.title else [],
                )
                for candidate in missing
            }
            self.remembered.put_many(kb, {one: fresh[one] for one in texts})
            known.update(fresh)
        found = [known[candidate.memory_id] for candidate in candidates]
        scores = [candidate.score for candidate in candidates]
        return ranked(words, scores, [text for text, _ in found], [title for _, title in found], drop)


def _size(words: tuple[np.ndarray, list[int]]) -> int:
    return int(words[0].nbytes) + 200 + 40 * len(words[1])
