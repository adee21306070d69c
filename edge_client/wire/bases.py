"""Several knowledge bases read as one: their names in one text, and their answers merged.

The service gets one call for each, at the same time. A query's hits are then ordered by vector and words as the service
orders those of one knowledge base (`memory_model.words`), so that the k best of all are read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from edge_client.wire.retrieval import Answer, Hit
from memory_model.errors import InvalidInput
from memory_model.words import LARGEST_DROP, order, query_words, text_words

MOST = 8
"""Knowledge bases read together: each costs a call and up to k payloads."""


def names_of(text: str) -> tuple[str, ...]:
    """The names in "atlas,firm", each once; raises InvalidInput."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        raise InvalidInput(f"a knowledge base in {text!r} has no name: name them as atlas or as atlas,firm")
    if len(names) > MOST:
        raise InvalidInput(f"{len(names)} knowledge bases are named; {MOST} can be read together")
    return names


def merged(
    names: Sequence[str], answers: Sequence[Answer], k: int, words: Sequence[Sequence[int]] = ()
) -> Answer:
    """The k best hits of every query from the answers of as many knowledge bases, each hit with its own's name.

    names: of hits that name none.

    Without words, or without the references' texts, by cosine alone. A reference that two of them have is read once.
    Times are those of the slowest, because all were called at the same time.
    """
    payloads = {h.memory_id: h.payload for a in answers for hits in a.hits for h in hits if h.payload}
    carried: set[int] = set()
    found = []
    for query in range(len(answers[0].hits)):
        hits = [
            replace(hit, knowledge_base=hit.knowledge_base or name)
            for name, answer in zip(names, answers, strict=True)
            for hit in answer.hits[query]
        ]
        distinct = {hit.text or hit.memory_id: hit for hit in reversed(hits)}.values()
        best = _ordered(distinct, words[query] if words else ())[:k]
        # The hit that carried a memory's bytes may be another query's, or left out now.
        for place, hit in enumerate(best):
            payload = b"" if hit.memory_id in carried else payloads.get(hit.memory_id, b"")
            best[place] = replace(hit, payload=payload, held=not payload)
            carried.add(hit.memory_id)
        found.append(tuple(best))
    return Answer(
        tuple(found), max(a.server_ms for a in answers), max(a.search_ms for a in answers),
        max(a.fetch_ms for a in answers),
    )  # fmt: skip


def _ordered(found: Collection[Hit], words: Sequence[int]) -> list[Hit]:
    hits = sorted(found, key=lambda hit: -hit.score)
    texts = [hit.text for hit in hits if hit.text is not None]
    if not words or not hits or len(texts) < len(hits):
        return hits
    places = order(
        words, [hit.score for hit in hits], [text_words(text) for text in texts],
        [query_words(hit.title) for hit in hits], LARGEST_DROP,
    )  # fmt: skip
    return [hits[place] for place in places]
