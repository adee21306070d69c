"""Query vectors or texts to hits over gRPC, from threads. Knows nothing about models: payloads stay bytes here.

Of several knowledge bases each gets one call, at the same time. A query's hits are then ordered by vector and words as
the service orders those of one (`memory3.text.words`), so that the k best of all are read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import grpc
import numpy as np

from edge_client.errors import Cancellation, RetrievalError
from edge_client.retrieval import Hit, RetrievalResult, merged, names_of
from edge_client.wire.channel import named_errors
from memory3.channel import RECEIVE_LIMIT_BYTES, ChannelSettings, open_channel
from memory3.codec.payload import Identity
from memory3.errors import InvalidInput
from memory3.failover import FailoverChannel
from memory3.formats.naming import file_of, source_of
from memory3.text.words import QueryWords
from protos.memory.v1 import (
    ingestion_pb2,
    ingestion_pb2_grpc,
    knowledge_bases_pb2,
    knowledge_bases_pb2_grpc,
    models_pb2,
    models_pb2_grpc,
    retrieval_pb2,
    retrieval_pb2_grpc,
)

QUERIES_PER_CALL = 16
"""At most; a service takes 256 (`memory.v1.Limits`)."""
_HIT_BYTES = 4096  # of a hit without its payload: key and title of at most 1 KiB each, 128 tokens of text


_STATES = {state: name.rpartition("_")[2].lower() for name, state in knowledge_bases_pb2.KnowledgeBaseState.items()}


@dataclass(frozen=True)
class ServiceInfo:
    """A service: its version, and what it writes memories with. Ids are empty where it has none."""

    service_version: str
    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str


@dataclass(frozen=True)
class KnowledgeBaseInfo:
    """A knowledge base of a service. state: such as "ready"; problem: why it cannot be used, else empty."""

    name: str
    description: str
    state: str
    problem: str
    model_id: str
    embedder_id: str


@dataclass(frozen=True)
class DocumentInfo:
    """A document of a service's knowledge base. references: how many memories it has."""

    key: str
    title: str
    metadata: Mapping[str, str]
    references: int

    @property
    def source(self) -> str:
        """The document for people, as `MemoryRead.source`."""
        return source_of(self.key, self.title, file_of(self.key, self.metadata))


class MemoryClient:
    """One knowledge base of one service, or several ("atlas,firm"), over one connection. Thread-safe.

    Opening does not connect; the first call does. Open it after a fork, in each process its own.
    identity, embedder_id: what this device can read; the service refuses a knowledge base of another.
    deadline_s: of a call that names none. payload_bytes: largest payload that this device's codec makes, if known.
    own_names: of the device's own knowledge bases, looked up at every call; the service is not asked for one that it
    lacks.
    """

    def __init__(
        self,
        channel: ChannelSettings,
        knowledge_base: str,
        identity: Identity,
        embedder_id: str,
        *,
        deadline_s: float = 2.0,
        minimum_score: float | None = None,
        payload_bytes: int = 0,
        own_names: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        if deadline_s <= 0:
            raise InvalidInput(f"a call needs a positive deadline, not {deadline_s} s")
        self.settings, self.address, self.deadline_s = channel, channel.address, deadline_s
        self._names, self._payload_bytes, self._own_names = names_of(knowledge_base), payload_bytes, own_names
        self.knowledge_base = ",".join(self._names)
        self._template = retrieval_pb2.RetrieveRequest(
            model_id=identity.model_id,
            codec_id=identity.codec_id,
            memory_format_id=identity.memory_format_id,
            embedder_id=embedder_id,
            return_text=True,
            minimum_score=minimum_score,
        )
        self._channel = open_channel(channel)
        self._retrieval = retrieval_pb2_grpc.RetrievalStub(self._channel)

    def retrieve(
        self,
        queries: np.ndarray | Sequence[str],
        *,
        k: int,
        words: Sequence[Sequence[int]] = (),
        held_ids: Collection[int] = (),
        timeout_s: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> RetrievalResult:
        """The k nearest memories of each vector (float32 [n, dim]) or text; raises a RetrievalError.

        The service embeds texts, and takes their words itself. words: hashes of each query's words
        (`memory3.text.words`), with which the service orders near ones and leaves out those that lie far below the
        best. held_ids: memories whose payloads need not be sent. timeout_s: instead of the client's deadline.
        cancellation: ends the call, which then raises reason CANCELLED.
        """
        timeout_s = self.deadline_s if timeout_s is None else timeout_s
        ends_at = time.monotonic() + timeout_s
        if not (names := self._of_service(timeout_s)):
            return RetrievalResult(((),) * len(queries))
        requests = [r for name in names for r in self._requests(name, queries, k, words, held_ids)]
        responses = self._sent(requests, max(ends_at - time.monotonic(), 0.0), cancellation)
        hits: dict[str, list[tuple[Hit, ...]]] = {name: [] for name in names}
        times_us = dict.fromkeys(names, 0)
        for request, response in zip(requests, responses, strict=True):
            name, count = request.knowledge_base, _query_count(request)
            if len(response.results) != count:
                message = f"{count} queries were answered by {len(response.results)} results"
                raise RetrievalError(f"{message}: it is no service of this contract")
            shown = name if len(self._names) > 1 else ""
            hits[name] += [tuple(_hit(hit, shown) for hit in result.hits) for result in response.results]
            times_us[name] += response.server_times.total_us
        return merged([RetrievalResult(tuple(hits[name]), times_us[name] / 1000) for name in names], k, words)

    def _of_service(self, timeout_s: float) -> tuple[str, ...]:
        """The names to ask for. Which of them the service has is found out without telling it those of the device."""
        own = {*self._own_names()} & {*self._names}
        known = {base.name for base in self.knowledge_bases(timeout_s)} if own else set()
        return tuple(name for name in self._names if name not in own or name in known)

    def _sent(
        self, requests: Sequence[retrieval_pb2.RetrieveRequest], timeout_s: float, cancellation: Cancellation | None
    ) -> list[retrieval_pb2.RetrieveResponse]:
        """The responses; of several services, the next one is asked where the first is lost meanwhile."""
        ends_at = time.monotonic() + timeout_s
        for last in [False] * (len(self.settings.addresses) - 1) + [True]:
            calls: list[grpc.Future] = []
            try:
                return self._answered(calls, requests, max(ends_at - time.monotonic(), 0.0), cancellation)
            except RetrievalError as error:
                for call in calls if isinstance(self._channel, FailoverChannel) else ():
                    self._channel.failed(call)
                if last or error.reason != "UNREACHABLE":
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _answered(
        self,
        calls: list[grpc.Future],
        requests: Sequence[retrieval_pb2.RetrieveRequest],
        timeout_s: float,
        cancellation: Cancellation | None,
    ) -> list[retrieval_pb2.RetrieveResponse]:
        """The responses of one attempt. calls: gets its calls."""

        def cancel(_: object = None) -> None:
            for call in calls:
                call.cancel()  # without effect on those that ended

        with contextlib.ExitStack() as stack:
            stack.callback(cancel)
            try:
                with named_errors(self.address, timeout_s):
                    for request in requests:
                        calls.append(
                            self._retrieval.Retrieve.future(request, timeout=timeout_s, metadata=self.settings.metadata)
                        )
                    if cancellation is not None:
                        cancellation.add_done_callback(cancel)
                    return [call.result() for call in calls]
            except grpc.FutureCancelledError:
                pass
        # Raised here, so that it holds no frames by way of gRPC's error.
        raise RetrievalError("nobody waits for the memories any more", reason="CANCELLED")

    def describe(self) -> ServiceInfo:
        """Version of the service and ids of its model; raises a RetrievalError."""
        found = self._call(models_pb2_grpc.ModelsStub(self._channel).Describe, models_pb2.DescribeRequest())
        return ServiceInfo(**{field.name: getattr(found, field.name) for field in fields(ServiceInfo)})

    def knowledge_bases(self, timeout_s: float | None = None) -> list[KnowledgeBaseInfo]:
        """The service's knowledge bases, by name; raises a RetrievalError. timeout_s: not the client's deadline."""
        stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(self._channel)
        request = knowledge_bases_pb2.ListKnowledgeBasesRequest()
        listed = self._call(stub.ListKnowledgeBases, request, timeout_s)
        found = (
            KnowledgeBaseInfo(
                base.name,
                base.description,
                _STATES.get(base.state, "unknown"),
                base.problem,
                base.model_id,
                base.embedder_id,
            )
            for base in listed.knowledge_bases
        )
        return sorted(found, key=lambda base: base.name)

    def documents(self, knowledge_base: str, page_token: str = "", count: int = 20) -> tuple[list[DocumentInfo], str]:
        """A page of documents by key, and the token of the next page (empty on the last); raises a RetrievalError."""
        stub = ingestion_pb2_grpc.IngestionStub(self._channel)
        page = self._call(
            stub.ListDocuments,
            ingestion_pb2.ListDocumentsRequest(knowledge_base=knowledge_base, page_token=page_token, count=count),
        )
        requests = [
            ingestion_pb2.GetDocumentRequest(knowledge_base=knowledge_base, document_key=listed.document_key)
            for listed in page.documents
        ]
        calls = [self._call(stub.GetDocument.future, request) for request in requests]
        with named_errors(self.address, self.deadline_s):
            found = [call.result() for call in calls]
        documents = [
            DocumentInfo(d.document_key, d.title, dict(d.metadata), listed.reference_count)
            for d, listed in zip(found, page.documents, strict=True)
        ]
        return documents, page.next_page_token

    def close(self) -> None:
        """Close the connection; calls under way end with a RetrievalError."""
        self._channel.close()

    def _call(self, method: Any, request: Any, timeout_s: float | None = None) -> Any:
        timeout_s = self.deadline_s if timeout_s is None else timeout_s
        with named_errors(self.address, timeout_s):
            return method(request, timeout=timeout_s, metadata=self.settings.metadata)

    def _requests(
        self,
        name: str,
        queries: np.ndarray | Sequence[str],
        k: int,
        words: Sequence[Sequence[int]],
        held_ids: Collection[int],
    ) -> Iterator[retrieval_pb2.RetrieveRequest]:
        """Requests to one knowledge base, each of so many queries that its answer can come; raises InvalidInput."""
        if isinstance(queries, np.ndarray) and (queries.ndim != 2 or not np.isfinite(queries).all()):
            raise InvalidInput(f"query vectors must be finite [n, dim] with n > 0, not {queries.shape}")
        if not len(queries):
            raise InvalidInput("there is no query")
        if words and len(words) != len(queries):
            raise InvalidInput(f"words of {len(words)} queries for {len(queries)} query vectors")
        most = min(QUERIES_PER_CALL, RECEIVE_LIMIT_BYTES // (k * (self._payload_bytes + _HIT_BYTES)))
        for start in range(0, len(queries), max(most, 1)):
            part = slice(start, start + max(most, 1))
            request = retrieval_pb2.RetrieveRequest(knowledge_base=name, k=k, held_ids=held_ids)
            if words:
                ranking = QueryWords.of(words[0]).ranking
                request.word_weight, request.title_weight = ranking.word_weight, ranking.title_weight
                request.maximum_drop = ranking.largest_drop
            if isinstance(queries, np.ndarray):
                request.dimension = queries.shape[1]
                request.query_vectors = np.ascontiguousarray(queries[part], "<f4").tobytes()
                request.query_words.extend(map(_query_words, words[part]))
            else:
                request.query_texts.extend(queries[part])
            request.MergeFrom(self._template)
            yield request


def _query_words(words: Sequence[int]) -> retrieval_pb2.QueryWords:
    earlier = (retrieval_pb2.QueryWords(hashes=turn) for turn in QueryWords.of(words).earlier if turn)
    return retrieval_pb2.QueryWords(hashes=words, earlier=earlier)


def _query_count(request: retrieval_pb2.RetrieveRequest) -> int:
    return len(request.query_texts) or len(request.query_vectors) // (4 * request.dimension)


def _hit(hit: retrieval_pb2.Hit, name: str) -> Hit:
    # A bytes field is copied whenever it is read, so each is read once.
    held = hit.held
    return Hit(
        memory_id=hit.memory_id,
        score=hit.score,
        document_key=hit.document_key,
        title=hit.title,
        chunk_number=hit.chunk_number,
        text=hit.text if hit.HasField("text") else None,
        payload=b"" if held else hit.payload,
        crc32c=hit.payload_crc32c,
        held=held,
        knowledge_base=name,
    )
