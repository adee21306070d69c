"""Requests and answers of Retrieve, and several knowledge bases read as one. No I/O.

The service gets one call for each knowledge base, at the same time. A query's hits are then ordered by vector and words
as the service orders those of one knowledge base (`memory_model.words`), so that the k best of all are read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import google_crc32c
import numpy as np

from edge_client.errors import RetrievalError
from memory_model.codec.payload import Identity
from memory_model.errors import InvalidInput
from memory_model.words import LARGEST_DROP, order, query_words, text_words
from protos.memory.v1 import retrieval_pb2

MOST = 8
"""Knowledge bases read together: each costs a call and up to k payloads."""


@dataclass(frozen=True)
class Hit:
    """One memory that was found.

    payload: its bytes; empty if held, by us or by an earlier hit of the same answer. knowledge_base: named where
    several were asked, or where it is one of this device.
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
class Answer:
    """Hits of every query, best first, and the milliseconds that the server says it took."""

    hits: tuple[tuple[Hit, ...], ...]
    server_ms: float = 0.0


@dataclass(frozen=True)
class RetrieveTemplate:
    """What is the same in every request: the knowledge base, and what this device can read."""

    knowledge_base: str
    identity: Identity
    embedder_id: str
    minimum_score: float | None = None

    def requests(
        self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]], held_ids: Collection[int], most: int,
    ) -> list[retrieval_pb2.RetrieveRequest]:  # fmt: skip
        """Requests for vectors float32 [n, dim], `most` in each; raises InvalidInput."""
        if vectors.ndim != 2 or not len(vectors) or not np.isfinite(vectors).all():
            raise InvalidInput(f"query vectors must be finite [n, dim] with n > 0, not {vectors.shape}")
        if words and len(words) != len(vectors):
            raise InvalidInput(f"words of {len(words)} queries for {len(vectors)} query vectors")
        return [
            retrieval_pb2.RetrieveRequest(
                knowledge_base=self.knowledge_base, k=k, dimension=vectors.shape[1],
                query_vectors=np.ascontiguousarray(vectors[start : start + most], "<f4").tobytes(),
                model_id=self.identity.model_id, codec_id=self.identity.codec_id,
                memory_format_id=self.identity.memory_format_id, embedder_id=self.embedder_id,
                return_text=True, minimum_score=self.minimum_score, held_ids=held_ids,
                query_words=[retrieval_pb2.QueryWords(hashes=w) for w in words[start : start + most]],
                maximum_drop=LARGEST_DROP if words else None,
            )
            for start in range(0, len(vectors), most)
        ]  # fmt: skip


def joined(
    requests: Sequence[retrieval_pb2.RetrieveRequest], responses: Sequence[retrieval_pb2.RetrieveResponse],
    name: str = "",
) -> Answer:  # fmt: skip
    """One answer of the responses to several requests; raises RetrievalError when queries were left unanswered.

    name: of the knowledge base, where the hits shall name it.
    """
    hits: list[tuple[Hit, ...]] = []
    for request, response in zip(requests, responses, strict=True):
        queries = len(request.query_vectors) // (4 * request.dimension)
        if len(response.results) != queries:
            raise RetrievalError(
                f"{queries} queries were answered by {len(response.results)} results: it is no service of this contract"
            )
        hits += [tuple(_hit(hit, name) for hit in result.hits) for result in response.results]
    return Answer(tuple(hits), sum(response.server_times.total_us for response in responses) / 1000)


def _hit(hit: retrieval_pb2.Hit, name: str) -> Hit:
    # A bytes field is copied whenever it is read, so each is read once.
    held = hit.held
    return Hit(
        memory_id=hit.memory_id, score=hit.score, document_key=hit.document_key, title=hit.title,
        chunk_number=hit.chunk_number, text=hit.text if hit.HasField("text") else None,
        payload=b"" if held else hit.payload, crc32c=hit.payload_crc32c, held=held, knowledge_base=name,
    )  # fmt: skip


def names_of(text: str) -> tuple[str, ...]:
    """The names in "atlas,firm", each once; raises InvalidInput."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        raise InvalidInput(f"a knowledge base in {text!r} has no name: name them as atlas or as atlas,firm")
    if len(names) > MOST:
        raise InvalidInput(f"{len(names)} knowledge bases are named; {MOST} can be read together")
    return names


def merged(answers: Sequence[Answer], k: int, words: Sequence[Sequence[int]] = ()) -> Answer:
    """The k best hits of every query from the answers of several knowledge bases.

    Without words, or without the references' texts, by cosine alone. A reference that two of them have is read once.
    The time is that of the slowest, because all were called at the same time.
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
        for place, hit in enumerate(best):
            payload = b"" if hit.memory_id in carried else payloads.get(hit.memory_id, b"")
            best[place] = replace(hit, payload=payload, held=not payload)
            carried.add(hit.memory_id)
        found.append(tuple(best))
    return Answer(tuple(found), max(a.server_ms for a in answers))


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
