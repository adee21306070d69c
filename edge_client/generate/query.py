"""`Query`: what a chunk asks with, and its vector (docs/decisions/0005).

In a conversation a question may be about something else than the one before it, or need it ("And how high is it?").
Its vector lies between that of the question alone and that of both; its words are its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memory_model.embedder import Embedder

OWN_SHARE = 0.4
"""Of the question alone in the vector; measured by `python -m deploy.follow_up_quality`."""


class Query(str):
    """A text that was said. before: what the same speaker said last before it, or "" where that does not matter."""

    __slots__ = ("before",)
    before: str

    def __new__(cls, said: str, before: str = "") -> Query:
        """The text, which is all that others see of it."""
        query = super().__new__(cls, said)
        query.before = before
        return query


def query_vectors(embedder: Embedder, queries: Sequence[str]) -> np.ndarray:
    """Unit vectors float32 [n, dim], from one call of the embedder."""
    before = {n: query.before for n, query in enumerate(queries) if isinstance(query, Query) and query.before}
    following = list(before)
    vectors = embedder.embed([*queries, *(f"{said}\n{queries[n]}" for n, said in before.items())])
    own, both = vectors[: len(queries)], vectors[len(queries) :]
    mixed = OWN_SHARE * own[following] + (1 - OWN_SHARE) * both
    own[following] = mixed / np.maximum(np.linalg.norm(mixed, axis=1, keepdims=True), 1e-12)
    return own
