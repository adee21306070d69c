"""What a search takes and finds, wherever it runs: queries with their vectors, hits, and the best of several results.

The service (`wire`) and the knowledge bases of this device (`local`) both answer with a `RetrievalResult`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import google_crc32c

from edge_client.errors import RetrievalError
from memory3.errors import InvalidInput
from memory3.text.words import DEFAULT_RANKING, QueryWords, Ranking, order_texts, query_words

OWN_SHARE = 0.6
"""Of the question alone in the vector: decision 0005."""
MOST = 8
"""Knowledge bases read together: each costs a call and up to k payloads."""


class Query(str):
    """A text of a turn. earlier: what the same speaker said before it, the newest first, where that matters."""

    __slots__ = ("earlier",)
    earlier: tuple[str, ...]

    def __new__(cls, text: str, earlier: Sequence[str] = ()) -> Query:
        """The text, which is all that others see of it."""
        query = super().__new__(cls, text)
        query.earlier = tuple(earlier)
        return query

    @property
    def before(self) -> str:
        """The earlier turns in their order as one text; "" without one."""
        return "\n".join(reversed(self.earlier))


@dataclass(frozen=True)
class Hit:
    """One memory that was found.

    payload: its bytes; empty if held, by us or by an earlier hit of the same answer. knowledge_base: named where
    several were searched, or where it is one of this device. file: key of the file that the document is a record of,
    where it is known.
    """

    memory_id: int
    score: float
    document_key: str
    title: str
    chunk_number: int
    text: str | None
    payload: bytes
    crc32c: int
    held: bool = False
    knowledge_base: str = ""
    file: str = ""

    def check(self) -> None:
        """Raise RetrievalError (DAMAGED_MEMORY) if the payload's checksum is not the one made at writing."""
        found = google_crc32c.value(self.payload)
        if found != self.crc32c:
            raise RetrievalError(
                f"memory {self.memory_id:016x} of {self.document_key!r} arrived damaged: "
                f"CRC-32C {found:08x}, written as {self.crc32c:08x}",
                reason="DAMAGED_MEMORY",
            )


@dataclass(frozen=True)
class RetrievalResult:
    """Hits of every query, best first, and the milliseconds that the server says it took."""

    hits: tuple[tuple[Hit, ...], ...]
    server_ms: float = 0.0


def words_of(query: str, ranking: Ranking = DEFAULT_RANKING) -> QueryWords:
    """The words to search with. Those of earlier turns count only for the titles of documents that they name."""
    earlier = query.earlier if isinstance(query, Query) else ()
    return QueryWords(query_words(query), map(query_words, earlier), ranking)


def names_of(text: str) -> tuple[str, ...]:
    """The names in "atlas,firm", each once; raises InvalidInput."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        raise InvalidInput(f"a knowledge base in {text!r} has no name: name them as atlas or as atlas,firm")
    if len(names) > MOST:
        raise InvalidInput(f"{len(names)} knowledge bases are named; {MOST} can be read together")
    return names


def merged(answers: Sequence[RetrievalResult], k: int, words: Sequence[Sequence[int]] = ()) -> RetrievalResult:
    """The k best hits of every query from the answers of several knowledge bases.

    Without words, or without the references' texts, by cosine alone. A reference that two of them have is read once,
    as the first one's. The time is that of the slowest, because all were called at the same time.
    """
    if len(answers) == 1:
        return answers[0]
    payloads = {h.memory_id: h.payload for a in answers for hits in a.hits for h in hits if h.payload}
    carried: set[int] = set()
    found = []
    for query in range(len(answers[0].hits)):
        hits = [hit for answer in answers for hit in answer.hits[query]]
        distinct = {hit.text or hit.memory_id: hit for hit in reversed(hits)}.values()
        best = _ordered(distinct, words[query] if words else ())[:k]
        # The hit that carried a memory's bytes may be another query's, or left out now.
        for index, hit in enumerate(best):
            payload = b"" if hit.memory_id in carried else payloads.get(hit.memory_id, b"")
            best[index] = replace(hit, payload=payload, held=not payload)
            carried.add(hit.memory_id)
        found.append(tuple(best))
    return RetrievalResult(tuple(found), max(a.server_ms for a in answers))


def _ordered(found: Collection[Hit], words: Sequence[int]) -> list[Hit]:
    hits = sorted(found, key=lambda hit: -hit.score)
    texts = [hit.text for hit in hits if hit.text is not None]
    if not words or not hits or len(texts) < len(hits):
        return hits
    order = order_texts(words, [hit.score for hit in hits], texts, [hit.title for hit in hits])
    return [hits[index] for index in order]
