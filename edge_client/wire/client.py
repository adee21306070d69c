"""Query vectors to hits over gRPC, from threads. Knows the wire and nothing about models: payloads stay bytes here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import grpc
import numpy as np

from edge_client.cancellation import Cancellation
from edge_client.errors import RetrievalError
from edge_client.wire.channel import RECEIVE_LIMIT_BYTES, ChannelSettings, open_channel
from edge_client.wire.errors import named_errors
from edge_client.wire.retrieval import Answer, RetrieveTemplate, joined, merged, names_of
from memory_model.codec.payload import Identity
from memory_model.errors import InvalidInput
from protos.memory.v1 import (
    knowledge_bases_pb2,
    knowledge_bases_pb2_grpc,
    models_pb2,
    models_pb2_grpc,
    retrieval_pb2_grpc,
)

QUERIES_PER_CALL = 16
"""At most; a service takes 256 (`memory.v1.Limits`)."""
_HIT_BYTES = 4096  # of a hit without its payload: key and title of at most 1 KiB each, 128 tokens of text


class MemoryClient:
    """One knowledge base of one service, or several ("atlas,firm"), over one connection. Thread-safe.

    Opening does not connect; the first call does. Open it after a fork, in each process its own.
    identity, embedder_id: what this device can read; the service refuses a knowledge base of another.
    deadline_s: of a call that names none. payload_bytes: largest payload that this device's codec makes, if known.
    """

    def __init__(
        self, channel: ChannelSettings, knowledge_base: str, identity: Identity, embedder_id: str, *,
        deadline_s: float = 2.0, minimum_score: float | None = None, payload_bytes: int = 0,
    ) -> None:  # fmt: skip
        if deadline_s <= 0:
            raise InvalidInput(f"a call needs a positive deadline, not {deadline_s} s")
        self.settings, self.address, self.deadline_s = channel, channel.address, deadline_s
        self._names, self._payload_bytes = names_of(knowledge_base), payload_bytes
        self.knowledge_base = ",".join(self._names)
        self._template = RetrieveTemplate("", identity, embedder_id, minimum_score)
        self._channel = open_channel(channel)
        self._retrieval = retrieval_pb2_grpc.RetrievalStub(self._channel)

    def retrieve(
        self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = (), held_ids: Collection[int] = (),
        timeout_s: float | None = None, cancellation: Cancellation | None = None,
    ) -> Answer:  # fmt: skip
        """The k nearest memories of each vector (float32 [n, dim]); raises a RetrievalError.

        words: hashes of each query's words (`memory_model.words`), with which the service orders near ones and
        leaves out those that lie far below the best. held_ids: memories whose payloads need not be sent.
        timeout_s: instead of the client's deadline. cancellation: ends the call, which then raises reason CANCELLED.
        """
        fits = RECEIVE_LIMIT_BYTES // (k * (self._payload_bytes + _HIT_BYTES))
        most = max(min(QUERIES_PER_CALL, fits), 1)
        each = [
            replace(self._template, knowledge_base=name).requests(
                vectors, k=k, words=words, held_ids=held_ids, most=most
            )
            for name in self._names
        ]
        timeout_s = self.deadline_s if timeout_s is None else timeout_s
        calls: list[grpc.Future] = []

        def cancel() -> None:
            for call in calls:
                call.cancel()  # without effect on those that ended

        cancelled = False
        try:
            with named_errors(self.address, timeout_s):
                for request in (request for requests in each for request in requests):
                    calls.append(
                        self._retrieval.Retrieve.future(request, timeout=timeout_s, metadata=self.settings.metadata)
                    )
                if cancellation is not None:
                    cancellation.when_cancelled(cancel)
                responses = [call.result() for call in calls]
        except grpc.FutureCancelledError:
            cancelled = True
        finally:
            cancel()
        if cancelled:  # here, so that it holds no frames by way of gRPC's error
            raise RetrievalError("nobody waits for the memories any more", reason="CANCELLED")
        answers = []
        for name, requests in zip(self._names, each, strict=True):
            own, responses = responses[: len(requests)], responses[len(requests) :]
            answers.append(joined(requests, own, name if len(each) > 1 else ""))
        return merged(answers, k, words)

    def describe(self) -> models_pb2.DescribeResponse:
        """What the service runs; raises a RetrievalError."""
        described: models_pb2.DescribeResponse = self._call(
            models_pb2_grpc.ModelsStub(self._channel).Describe, models_pb2.DescribeRequest()
        )
        return described

    def knowledge_bases(self) -> list[str]:
        """Names of those that the service has, in order; raises a RetrievalError."""
        stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(self._channel)
        listed = self._call(stub.ListKnowledgeBases, knowledge_bases_pb2.ListKnowledgeBasesRequest())
        return sorted(base.name for base in listed.knowledge_bases)

    def close(self) -> None:
        """Close the connection; calls under way end with a RetrievalError."""
        self._channel.close()

    def _call(self, method: Any, request: Any) -> Any:
        with named_errors(self.address, self.deadline_s):
            return method(request, timeout=self.deadline_s, metadata=self.settings.metadata)
