"""The device as a server of the Model Context Protocol: memories and answers as tools. Needs the extra `mcp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from edge_client.errors import described
from edge_client.local.folder import DEFAULT_NAME
from edge_client.model import EdgeModel
from edge_client.recall.outcome import MemoryRead
from memory3 import __version__
from memory3.errors import Memory3Error

INSTRUCTIONS = (
    "Documents that this device remembers, and a small model that answers from them. Search returns passages; ask "
    "answers in a few words and names its sources. Nothing that is remembered leaves the device."
)
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
"""Programs ask before they call a tool that says nothing about itself: it may change anything anywhere."""
T = TypeVar("T")


def make_server(model: EdgeModel) -> MCPServer[Any]:
    """The server of a model, which is closed afterwards."""
    server: MCPServer[Any] = MCPServer("memory3-edge", version=__version__, instructions=INSTRUCTIONS)
    turn = anyio.Lock()  # what writes

    async def in_thread(call: Callable[[], T]) -> T:
        with _tool_errors():
            return await anyio.to_thread.run_sync(call)

    @server.tool(annotations=READS)
    async def search(query: str) -> list[dict[str, Any]]:
        """Passages of the remembered documents that are nearest to a query, best first."""
        if not query.strip():
            raise ToolError("the query is empty: give some words")
        (found,) = await in_thread(lambda: model.engine.recaller.recall([query]))
        if found.error and found.reason != "OFFLINE":  # without a service, nothing remembered is nothing found
            raise ToolError(found.error)
        return [_passage(memory) for memory in found.read]

    @server.tool(annotations=READS)
    async def ask(question: str, max_tokens: int = 256) -> dict[str, Any]:
        """A short answer from what is remembered, and the passages that it was read from, or else all retrieved.

        error: why memories could not be had, or not those of the service; empty where nothing failed.
        """
        if not question.strip():
            raise ToolError("the question is empty")
        cite = model.engine.decoder.backend.records_queries
        stream = await in_thread(lambda: model.generate(question, max_tokens=max_tokens, citations=cite))
        with _tool_errors():
            result = await stream.aresult()  # a call that is cancelled ends the answer
        read = [_passage(m) for m in result.cited or result.memories]
        return {
            "answer": result.text,
            "refused": result.refused,
            "verdict": result.verdict,
            "error": result.memory_error,
            "read": read,
        }

    @server.tool(annotations=WRITES)
    async def remember(text: str, key: str, title: str = "") -> dict[str, int]:
        """Remember a text under a name; one of the same name is replaced. Returns its number of memories."""
        async with turn:
            return {"memories": await in_thread(lambda: model.remember(text, key=key, title=title))}

    @server.tool(name="list", annotations=READS)
    async def documents() -> list[dict[str, Any]]:
        """The documents that this device remembers."""
        found = await in_thread(model.local.documents)
        each = ((name, one) for name, documents in found.items() for one in documents)
        return [
            {
                "knowledge_base": name,
                "key": one.key,
                "title": one.title,
                "source": one.source,
                "memories": one.references,
            }
            for name, one in each
        ]

    @server.tool(annotations=WRITES)
    async def forget(key: str, knowledge_base: str = DEFAULT_NAME) -> dict[str, bool]:
        """Forget a document by its key, file name or title; whether it was there."""
        async with turn:
            return {"forgotten": await in_thread(lambda: model.forget(key, knowledge_base=knowledge_base))}

    return server


@contextmanager
def _tool_errors() -> Iterator[None]:
    """Report what the model raises on purpose; of another error the client gets no message."""
    try:
        yield
    except Memory3Error as error:
        raise ToolError(described(error)) from error


def _passage(memory: MemoryRead) -> dict[str, Any]:
    return {
        "knowledge_base": memory.knowledge_base,
        "key": memory.document_key,
        "title": memory.title,
        "source": memory.source,
        "page": memory.page,
        "text": memory.text,
        "score": round(memory.score, 4),
    }
