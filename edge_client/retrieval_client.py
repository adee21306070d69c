"""Query vectors to hits over gRPC. Knows the wire and nothing about models: payloads stay bytes here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import grpc
import numpy as np

from edge_client.errors import (
    DamagedMemory,
    DeadlineExceeded,
    IncompatibleService,
    RequestRefused,
    RetrievalError,
    ServiceUnavailable,
)
from memory_model.errors import InvalidInput
from memory_model.memory import Identity
from memory_model.words import LARGEST_DROP
from protos.memory.v1 import models_pb2, models_pb2_grpc, retrieval_pb2, retrieval_pb2_grpc

QUERIES_PER_CALL = 16
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.enable_retries", 0),  # a late answer is worth less than the next chunk's question
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
)
_ERRORS = {
    grpc.StatusCode.UNAVAILABLE: ServiceUnavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ServiceUnavailable,
    grpc.StatusCode.CANCELLED: ServiceUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.FAILED_PRECONDITION: IncompatibleService,
    grpc.StatusCode.UNIMPLEMENTED: IncompatibleService,
    grpc.StatusCode.INVALID_ARGUMENT: RequestRefused,
    grpc.StatusCode.NOT_FOUND: RequestRefused,
    grpc.StatusCode.PERMISSION_DENIED: RequestRefused,
    grpc.StatusCode.UNAUTHENTICATED: RequestRefused,
    grpc.StatusCode.DATA_LOSS: RequestRefused,
}


@dataclass(frozen=True)
class Hit:
    """One memory that was found. payload: its bytes, empty if another hit of the same answer carries them."""

    memory_id: int
    score: float
    document_key: str
    title: str
    chunk_number: int
    text: str | None
    payload: bytes
    crc32c: int

    def check(self) -> None:
        """Raise DamagedMemory if the payload's checksum is not the one made when the memory was written."""
        found = google_crc32c.value(self.payload)
        if found != self.crc32c:
            raise DamagedMemory(
                f"memory {self.memory_id:016x} of {self.document_key!r} arrived damaged: "
                f"CRC-32C {found:08x}, written as {self.crc32c:08x}"
            )


@dataclass(frozen=True)
class Answer:
    """Hits of every query, best first, and the time the server says it took (milliseconds)."""

    hits: tuple[tuple[Hit, ...], ...]
    server_ms: float


class RetrievalClient:
    """One channel to one knowledge base. Thread-safe. Opening does not connect; a call does.

    identity, embedder_id: what this device can read; the service refuses a knowledge base of another.
    deadline_s: of every call.
    """

    def __init__(
        self, address: str, knowledge_base: str, identity: Identity, embedder_id: str, *, deadline_s: float = 2.0,
        minimum_score: float | None = None,
    ) -> None:  # fmt: skip
        if not address.strip() or deadline_s <= 0:
            raise InvalidInput(
                f"a service address and a positive deadline are needed, not {address!r}, {deadline_s}"
            )
        self.address = address
        self.knowledge_base = knowledge_base
        self.deadline_s = deadline_s
        self._identity, self._embedder_id = identity, embedder_id
        self._minimum_score = minimum_score
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._retrieval = retrieval_pb2_grpc.RetrievalStub(self._channel)
        self._models = models_pb2_grpc.ModelsStub(self._channel)

    def retrieve(
        self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = (), return_text: bool = True
    ) -> Answer:
        """The k nearest memories of each vector (float32 [n, dim]); raises a RetrievalError.

        words: hashes of each query's words (`memory_model.words`), with which the service orders near ones and
        leaves out those that lie far below the best.
        """
        if vectors.ndim != 2 or not len(vectors) or not np.isfinite(vectors).all():
            raise InvalidInput(f"query vectors must be finite [n, dim] with n > 0, not {vectors.shape}")
        hits: list[tuple[Hit, ...]] = []
        server_ms = 0.0
        for start in range(0, len(vectors), QUERIES_PER_CALL):
            part = np.ascontiguousarray(vectors[start : start + QUERIES_PER_CALL], "<f4")
            said = words[start : start + QUERIES_PER_CALL]
            request = retrieval_pb2.RetrieveRequest(
                knowledge_base=self.knowledge_base, query_vectors=part.tobytes(), dimension=part.shape[1], k=k,
                model_id=self._identity.model_id, codec_id=self._identity.codec_id,
                memory_format_id=self._identity.memory_format_id, embedder_id=self._embedder_id,
                return_text=return_text, minimum_score=self._minimum_score,
                query_words=[retrieval_pb2.QueryWords(hashes=w) for w in said],
                maximum_drop=LARGEST_DROP if said else None,
            )  # fmt: skip
            try:
                response = self._retrieval.Retrieve(request, timeout=self.deadline_s)
            except grpc.RpcError as error:
                raise self._translate(error) from error
            if len(response.results) != len(part):
                raise RetrievalError(f"{len(part)} queries were answered by {len(response.results)} results")
            hits += [tuple(_hit(h) for h in result.hits) for result in response.results]
            server_ms += response.server_times.total_us / 1000
        return Answer(tuple(hits), server_ms)

    def describe(self) -> models_pb2.DescribeResponse:
        """What the service runs; raises a RetrievalError."""
        try:
            return self._models.Describe(models_pb2.DescribeRequest(), timeout=self.deadline_s)
        except grpc.RpcError as error:
            raise self._translate(error) from error

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _translate(self, error: grpc.RpcError) -> RetrievalError:
        # Every error of a call is also a grpc.Call and carries its status.
        code, details = error.code(), error.details()
        kind = _ERRORS.get(code, RetrievalError)
        if kind is DeadlineExceeded:
            return DeadlineExceeded(
                f"the service at {self.address} did not answer within {self.deadline_s:g} s"
            )
        if code is grpc.StatusCode.UNAVAILABLE:
            remedy = "start it with `memory-service serve`, or name another with --service"
            return ServiceUnavailable(f"no service at {self.address}: {remedy} ({details})")
        return kind(f"the service at {self.address} refused ({code.name}): {details}")


def _hit(hit: retrieval_pb2.Hit) -> Hit:
    return Hit(
        memory_id=hit.memory_id, score=hit.score, document_key=hit.document_key, title=hit.title,
        chunk_number=hit.chunk_number, text=hit.text if hit.HasField("text") else None,
        payload=hit.payload, crc32c=hit.payload_crc32c,
    )  # fmt: skip
