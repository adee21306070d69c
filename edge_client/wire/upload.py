"""A document of this device into a knowledge base, for threads: `edge_client.wire.link` until it is done."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from edge_client.cancellation import Cancellation
from edge_client.errors import RequestRefused, ServiceUnavailable
from edge_client.interruptible import interruptible
from edge_client.wire.channel import ChannelSettings
from edge_client.wire.documents import OwnDocument
from edge_client.wire.link import ServiceLink


def add_document(channel: ChannelSettings, knowledge_base: str, document: OwnDocument) -> str:
    """Write it, replacing one of the same key, and say what became of it: `ready: 3 memories of notes.md in default`.

    The knowledge base is made if there is none of that name. Ctrl-C ends the call. Raises a RetrievalError.
    """

    async def write() -> dict[str, Any]:
        link = ServiceLink(channel, channel)
        try:
            async for step in link.ingest(knowledge_base, document):
                if step["state"] == "failed":
                    raise RequestRefused(f"{document.key}: {step['message']}")
                if step["state"] == "done":
                    return step
        finally:
            await link.close()
        raise ServiceUnavailable(
            f"{channel.address} ended the call without a word on {document.key}: add it again"
        )

    def run(cancellation: Cancellation) -> dict[str, Any]:
        async def cancellable() -> dict[str, Any]:
            loop, task = asyncio.get_running_loop(), asyncio.ensure_future(write())

            def end() -> None:
                with contextlib.suppress(RuntimeError):  # it is over, and its loop closed
                    loop.call_soon_threadsafe(task.cancel)

            cancellation.when_cancelled(end)
            return await task

        return asyncio.run(cancellable())

    done = interruptible(run)
    number, unchanged = done["references"], done["outcome"] == "unchanged"
    memories = f"{number} {'memory' if number == 1 else 'memories'}"
    return f"ready: {memories} of {document.key} in {knowledge_base}{', nothing new' if unchanged else ''}"
