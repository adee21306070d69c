"""Query vectors to hits over gRPC, from threads. Knows the wire and nothing about models: payloads stay bytes here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

import grpc
import numpy as np

from edge_client.errors import RetrievalError, ServiceUnavailable
from edge_client.wire.bases import Question, names_of
from edge_client.wire.channel import ChannelSettings, close_channel, connection_state, open_channel
from edge_client.wire.errors import call_error
from edge_client.wire.retrieval import Answer, Asking, Limits
from memory_model.codec.payload import Identity
from memory_model.errors import InvalidInput
from protos.memory.v1 import (
    knowledge_bases_pb2,
    knowledge_bases_pb2_grpc,
    models_pb2,
    models_pb2_grpc,
    retrieval_pb2_grpc,
)


class PendingAnswer:
    """An answer that is on its way, in one call to the service or several. Thread-safe."""

    def __init__(
        self, calls: Sequence[grpc.Future], question: Question,
        translate: Callable[[grpc.RpcError], RetrievalError],
    ) -> None:  # fmt: skip
        self._calls, self._question, self._translate = calls, question, translate
        self._left = len(calls)
        self._lock = threading.Lock()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back once, in a thread of gRPC's, when every call has ended, however; at most one callback."""

        def ended(_: grpc.Future) -> None:
            with self._lock:
                self._left -= 1
                last = not self._left
            if last:
                callback()

        for call in self._calls:
            call.add_done_callback(ended)

    def cancel(self) -> None:
        """End the calls; `result` then raises ServiceUnavailable."""
        for call in self._calls:
            call.cancel()

    def result(self) -> Answer:
        """The answer, waiting for it; raises a RetrievalError, at the latest when the timeout is over."""
        responses = []
        for call in self._calls:
            try:
                responses.append(call.result())
            except grpc.FutureCancelledError as error:
                raise ServiceUnavailable("the call was cancelled") from error
            except grpc.RpcError as error:
                self.cancel()
                raise self._translate(error) from error
        return self._question.answer(responses)


class MemoryClient:
    """One knowledge base of one service, or several ("atlas,firm"). Thread-safe.

    Opening does not connect; the first call does.
    identity, embedder_id: what this device can read; the service refuses a knowledge base of another.
    deadline_s: of a call that names none. payload_bytes: largest payload that this device's codec makes, if known.
    settings: how the service is reached. What it takes in one request is asked for beside the first call, and kept to.
    Processes: open it after a fork, in each process its own.
    """

    def __init__(
        self, channel: ChannelSettings, knowledge_base: str, identity: Identity, embedder_id: str, *,
        deadline_s: float = 2.0, minimum_score: float | None = None, payload_bytes: int = 0,
    ) -> None:  # fmt: skip
        if deadline_s <= 0:
            raise InvalidInput(f"a call needs a positive deadline, not {deadline_s} s")
        self.address = channel.address
        self.knowledge_base = ",".join(names_of(knowledge_base))
        self.deadline_s = deadline_s
        self._asking = Asking(self.knowledge_base, identity, embedder_id, minimum_score)
        self.settings = channel
        self._limits = Limits(payload_bytes=payload_bytes)
        self._negotiation: grpc.Future | None = None
        self._lock = threading.Lock()
        self._channels = [open_channel(channel)]
        self._models = models_pb2_grpc.ModelsStub(self._channels[0])

    @property
    def limits(self) -> Limits:
        """What one request may hold, as far as it is known."""
        return self._limits

    @property
    def connection_state(self) -> str:
        """idle, connecting, ready, transient_failure or shutdown; for diagnostics."""
        return connection_state(self._channels[0])

    def retrieve(
        self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = (), held_ids: Collection[int] = (),
        return_text: bool = True, timeout_s: float | None = None,
    ) -> Answer:  # fmt: skip
        """The k nearest memories of each vector (float32 [n, dim]); raises a RetrievalError.

        words: hashes of each query's words (`memory_model.words`), with which the service orders near ones and
        leaves out those that lie far below the best. held_ids: memories whose payloads need not be sent.
        timeout_s: instead of the client's deadline.
        """
        return self.begin(
            vectors, k=k, words=words, held_ids=held_ids, return_text=return_text, timeout_s=timeout_s
        ).result()

    def begin(
        self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = (), held_ids: Collection[int] = (),
        return_text: bool = True, timeout_s: float | None = None, connection: int = 0,
    ) -> PendingAnswer:  # fmt: skip
        """`retrieve` without waiting for it. connection: 0, or 1 for another one than that of a call that hangs."""
        question = Question.of(
            self._asking, vectors, self._limits, k=k, words=words, held_ids=held_ids, return_text=return_text
        )
        timeout_s = self.deadline_s if timeout_s is None else timeout_s
        stub, metadata = self._stub(connection), self.settings.metadata
        try:
            calls = [
                stub.Retrieve.future(request, timeout=timeout_s, metadata=metadata)
                for request in question.requests
            ]
            self._negotiate()
        except ValueError as error:  # what gRPC raises for a channel that is closed
            raise ServiceUnavailable(f"the connection to {self.address} was closed here") from error
        return PendingAnswer(calls, question, lambda error: call_error(error, self.address, timeout_s))

    def describe(self) -> models_pb2.DescribeResponse:
        """What the service runs; raises a RetrievalError."""
        try:
            described = self._models.Describe(
                models_pb2.DescribeRequest(), timeout=self.deadline_s, metadata=self.settings.metadata
            )
        except grpc.RpcError as error:
            raise call_error(error, self.address, self.deadline_s) from error
        self._keep_to(described)
        return described

    def knowledge_bases(self) -> list[str]:
        """Names of those that the service has, in order; raises a RetrievalError."""
        stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(self._channels[0])
        try:
            listed = stub.ListKnowledgeBases(
                knowledge_bases_pb2.ListKnowledgeBasesRequest(), timeout=self.deadline_s,
                metadata=self.settings.metadata,
            )  # fmt: skip
        except grpc.RpcError as error:
            raise call_error(error, self.address, self.deadline_s) from error
        return sorted(base.name for base in listed.knowledge_bases)

    def close(self) -> None:
        """Close the channels; calls under way end with ServiceUnavailable."""
        for channel in self._channels:
            close_channel(channel)

    def _stub(self, connection: int) -> retrieval_pb2_grpc.RetrievalStub:
        with self._lock:
            while len(self._channels) <= connection:
                self._channels.append(open_channel(self.settings, own_connection=True))
            return retrieval_pb2_grpc.RetrievalStub(self._channels[connection])

    def _negotiate(self) -> None:
        """Ask for the limits once, beside the call that is under way: nobody waits for them."""
        with self._lock:
            if self._negotiation is not None:
                return
            self._negotiation = self._models.Describe.future(
                models_pb2.DescribeRequest(), timeout=self.deadline_s, metadata=self.settings.metadata
            )
        self._negotiation.add_done_callback(self._negotiated)

    def _negotiated(self, call: grpc.Future) -> None:
        if call.cancelled() or call.exception() is not None:
            with self._lock:
                self._negotiation = None  # the next call asks again
        else:
            self._keep_to(call.result())

    def _keep_to(self, described: models_pb2.DescribeResponse) -> None:
        self._limits = self._limits.said_by(described)
