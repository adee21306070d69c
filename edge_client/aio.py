"""`AsyncEdgeModel`: the asynchronous twin of `EdgeModel`. Waits in threads, decodes with the same code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edge_client.async_session import AsyncChatSession, events_of
from edge_client.events import Event
from edge_client.model import EdgeModel
from edge_client.recall.policy import RecallMode
from memory_model.bundle import Bundle
from memory_model.chat import Message

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edge_client.generate.options import SamplingOptions


class AsyncEdgeModel:
    """Answers for `asyncio`.

        async with await AsyncEdgeModel.open("build/bundle", service="127.0.0.1:7430") as model:
            async for event in model.generate("What is the capital of Norway?"):
                ...

    The loop is never blocked by decoding: every answer has a thread while it lasts. Tasks may use one model at
    the same time, and so may several loops. Cancelling a task ends its answer within one step of the decoder.
    """

    def __init__(self, model: EdgeModel) -> None:
        self._model = model

    @classmethod
    async def open(
        cls, bundle: str | Path | None = None, service: str | None = None, **settings: Any
    ) -> AsyncEdgeModel:
        """As `EdgeModel.open`, in a thread: verifying a bundle reads all of it."""
        return cls(await asyncio.to_thread(EdgeModel.open, bundle, service, **settings))

    @property
    def bundle(self) -> Bundle:
        """The opened bundle."""
        return self._model.bundle

    def generate(
        self, messages: str | Sequence[Message], *, memory: bool = True, **options: Unpack[SamplingOptions]
    ) -> AsyncIterator[Event]:
        """As `EdgeModel.generate`; arguments are checked at once, before the first event is awaited."""
        return events_of(self._model.generate(messages, memory=memory, **options))

    async def session(
        self, system: str | None = None, *, messages: Sequence[Message] = (), recall: RecallMode | str | None = None,
        lead_tokens: int | None = None,
    ) -> AsyncChatSession:  # fmt: skip
        """As `EdgeModel.session`; the prefix is read in a thread."""
        return AsyncChatSession(
            await asyncio.to_thread(
                self._model.session, system, messages=messages, recall=recall, lead_tokens=lead_tokens
            )
        )

    async def load_session(
        self, path: str | Path, *, recall: RecallMode | str | None = None
    ) -> AsyncChatSession:
        """As `EdgeModel.load_session`."""
        return AsyncChatSession(await asyncio.to_thread(self._model.load_session, path, recall=recall))

    async def close(self) -> None:
        """As `EdgeModel.close`, without blocking the loop."""
        await asyncio.to_thread(self._model.close)

    async def __aenter__(self) -> AsyncEdgeModel:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
