"""Requests and answers of Retrieve: hits, limits, and how many queries go into one call. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice

import google_crc32c
import numpy as np

from edge_client.errors import RetrievalError
from edge_client.wire.channel import RECEIVE_LIMIT_BYTES
from memory_model.codec.payload import Identity
from memory_model.errors import InvalidInput
from memory_model.words import LARGEST_DROP
from protos.memory.v1 import models_pb2, retrieval_pb2

QUERIES_PER_CALL = 16
"""Until the service has said how many it takes."""
_HIT_BYTES = 4096  # of a hit without its payload: key and title of at most 1 KiB each, 128 tokens of text
_QUERY_BYTES = 512 * 4 + 64  # of a query without its vector: at most 512 words


@dataclass(frozen=True)
class Hit:
    """One memory that was found.

    payload: its bytes; empty if held, by us or by an earlier hit of the same answer. knowledge_base: named where
    several were asked.
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
    """Hits of every query, best first, and the times the server says it took (milliseconds).

    server_ms: in all, of which it searched and fetched payloads for search_ms and fetch_ms.
    """

    hits: tuple[tuple[Hit, ...], ...]
    server_ms: float
    search_ms: float = 0.0
    fetch_ms: float = 0.0


@dataclass(frozen=True)
class Limits:
    """What one request and its answer may hold; 0 where it is unknown. See `memory.v1.Limits`."""

    request_bytes: int = 0
    payload_bytes: int = 0
    queries: int = 0
    hits: int = 0
    held_ids: int = 0

    def updated(self, described: models_pb2.DescribeResponse) -> Limits:
        """The service's own; a payload may be as large as either side says."""
        theirs = described.limits
        payload_bytes = max(theirs.payload_bytes, self.payload_bytes)
        return Limits(theirs.request_bytes, payload_bytes, theirs.queries, theirs.hits, theirs.held_ids)

    def queries_per_call(self, k: int, dimension: int, held: int = 0) -> int:
        """How many query vectors go into one request so that it and its answer stay within all limits; 1 or more."""
        bounds = [self.queries or QUERIES_PER_CALL]
        bounds.append(RECEIVE_LIMIT_BYTES // max(k * (self.payload_bytes + _HIT_BYTES), 1))
        if self.hits:
            bounds.append(self.hits // max(k, 1))
        if self.request_bytes:
            left = self.request_bytes - 8 * min(held, self.held_ids or held) - 4096
            bounds.append(left // (4 * dimension + _QUERY_BYTES))
        return max(min(bounds), 1)


@dataclass(frozen=True)
class RetrieveTemplate:
    """What is the same in every request: the knowledge base, and what this device can read."""

    knowledge_base: str
    identity: Identity
    embedder_id: str
    minimum_score: float | None = None

    def requests(
        self, vectors: np.ndarray, limits: Limits, *, k: int, words: Sequence[Sequence[int]] = (),
        held_ids: Collection[int] = (), return_text: bool = True,
    ) -> list[retrieval_pb2.RetrieveRequest]:  # fmt: skip
        """Requests for vectors float32 [n, dim], cut to the limits; raises InvalidInput."""
        if vectors.ndim != 2 or not len(vectors) or not np.isfinite(vectors).all():
            raise InvalidInput(f"query vectors must be finite [n, dim] with n > 0, not {vectors.shape}")
        if words and len(words) != len(vectors):
            raise InvalidInput(f"words of {len(words)} queries for {len(vectors)} query vectors")
        step = limits.queries_per_call(k, vectors.shape[1], len(held_ids))
        if limits.held_ids:
            held_ids = list(islice(held_ids, limits.held_ids))
        return [
            retrieval_pb2.RetrieveRequest(
                knowledge_base=self.knowledge_base, k=k, dimension=vectors.shape[1],
                query_vectors=np.ascontiguousarray(vectors[start : start + step], "<f4").tobytes(),
                model_id=self.identity.model_id, codec_id=self.identity.codec_id,
                memory_format_id=self.identity.memory_format_id, embedder_id=self.embedder_id,
                return_text=return_text, minimum_score=self.minimum_score, held_ids=held_ids,
                query_words=[retrieval_pb2.QueryWords(hashes=w) for w in words[start : start + step]],
                maximum_drop=LARGEST_DROP if words else None,
            )
            for start in range(0, len(vectors), step)
        ]  # fmt: skip


def joined(
    requests: Sequence[retrieval_pb2.RetrieveRequest], responses: Sequence[retrieval_pb2.RetrieveResponse]
) -> Answer:
    """One answer of the responses to several requests; raises RetrievalError when queries were left unanswered."""
    hits: list[tuple[Hit, ...]] = []
    server_us = search_us = fetch_us = 0
    for request, response in zip(requests, responses, strict=True):
        queries = len(request.query_vectors) // (4 * request.dimension)
        if len(response.results) != queries:
            raise RetrievalError(
                f"{queries} queries were answered by {len(response.results)} results: it is no service of this contract"
            )
        hits += [tuple(map(_hit, result.hits)) for result in response.results]
        server_us += response.server_times.total_us
        search_us += response.server_times.search_us
        fetch_us += response.server_times.fetch_us
    return Answer(tuple(hits), server_us / 1000, search_us / 1000, fetch_us / 1000)


def _hit(hit: retrieval_pb2.Hit) -> Hit:
    # A bytes field is copied whenever it is read, so each is read once.
    held = hit.held
    return Hit(
        memory_id=hit.memory_id, score=hit.score, document_key=hit.document_key, title=hit.title,
        chunk_number=hit.chunk_number, text=hit.text if hit.HasField("text") else None,
        payload=b"" if held else hit.payload, crc32c=hit.payload_crc32c, held=held,
    )  # fmt: skip
