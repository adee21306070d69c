"""Query vectors to hits over gRPC, with asyncio: the twin of `edge_client.wire.client`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from types import TracebackType
from typing import TypeVar

import grpc
import numpy as np

from edge_client.errors import ServiceUnavailable
from edge_client.wire.bases import Question, names_of
from edge_client.wire.channel import ChannelSettings, open_async_channel
from edge_client.wire.errors import call_error
from edge_client.wire.retrieval import Answer, Asking, Limits
from memory_model.codec.payload import Identity
from memory_model.errors import InvalidInput
from protos.memory.v1 import models_pb2, models_pb2_grpc, retrieval_pb2_grpc

T = TypeVar("T")


class AsyncMemoryClient:
    """As MemoryClient, for the event loop on which it is made; tasks of that loop may share it.

    Cancelling the task that awaits a call ends the call.
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
        self._metadata = channel.metadata
        self._limits = Limits(payload_bytes=payload_bytes)
        self._negotiation: asyncio.Task[None] | None = None
        self._channel = open_async_channel(channel)
        self._retrieval = retrieval_pb2_grpc.RetrievalStub(self._channel)
        self._models = models_pb2_grpc.ModelsStub(self._channel)

    @property
    def limits(self) -> Limits:
        """What one request may hold, as far as it is known."""
        return self._limits

    @property
    def connection_state(self) -> str:
        """idle, connecting, ready, transient_failure or shutdown; for diagnostics."""
        return str(self._channel.get_state().name.lower())

    async def retrieve(
        self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = (), held_ids: Collection[int] = (),
        return_text: bool = True, timeout_s: float | None = None,
    ) -> Answer:  # fmt: skip
        """The k nearest memories of each vector; see MemoryClient.retrieve."""
        question = Question.of(
            self._asking, vectors, self._limits, k=k, words=words, held_ids=held_ids, return_text=return_text
        )
        timeout_s = self.deadline_s if timeout_s is None else timeout_s
        if self._negotiation is None:
            self._negotiation = asyncio.create_task(self._negotiate())
        calls = [
            self._retrieval.Retrieve(r, timeout=timeout_s, metadata=self._metadata) for r in question.requests
        ]
        try:
            responses = await self._answered(asyncio.gather(*calls), timeout_s)
        finally:
            for call in calls:
                call.cancel()  # without effect on those that ended
        return question.answer(responses)

    async def describe(self) -> models_pb2.DescribeResponse:
        """What the service runs; raises a RetrievalError."""
        call = self._models.Describe(
            models_pb2.DescribeRequest(), timeout=self.deadline_s, metadata=self._metadata
        )
        described = await self._answered(call, self.deadline_s)
        self._limits = self._limits.said_by(described)
        return described

    async def close(self) -> None:
        """Close the channel; calls under way end with ServiceUnavailable."""
        if self._negotiation is not None:
            self._negotiation.cancel()
        await self._channel.close()

    async def __aenter__(self) -> AsyncMemoryClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _negotiate(self) -> None:
        """Ask for the limits once, beside the call that is under way: nobody waits for them."""
        try:
            await self.describe()
        except Exception:  # the next call asks again
            self._negotiation = None

    async def _answered(self, call: Awaitable[T], timeout_s: float) -> T:
        try:
            return await call
        except grpc.RpcError as error:
            raise call_error(error, self.address, timeout_s) from error
        except grpc.aio.UsageError as error:
            raise ServiceUnavailable(f"the connection to {self.address} was closed here") from error
