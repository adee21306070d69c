"""`edge-client mcp` as a program sees it: the official client over standard input and output."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

from mcp import Client, StdioServerParameters, stdio_client

from edge_client.errors import Cancellation
from edge_client.model import EdgeModel
from edge_client.recall.outcome import MemoryRead, Recall
from edge_client.serve.mcp import make_server
from edge_client.stream import AnswerStream, Event, Recalled, Result, Span, Statistics, Token
from memory3.files.bundle import Bundle
from testing.programs import ROOT


def value(result: Any) -> Any:
    assert not result.is_error, result.content
    found = result.structured_content
    return found["result"] if set(found) == {"result"} else found


async def test_the_tools_remember_list_search_answer_and_forget(tiny: Bundle, tmp_path: Path) -> None:
    program = ["-m", "edge_client.cli.main", "mcp", "--offline", "--bundle", str(tiny.folder)]
    parameters = StdioServerParameters(
        command=sys.executable, args=[*program, "--local", str(tmp_path / "local")], env={"PYTHONPATH": str(ROOT)}
    )
    async with Client(stdio_client(parameters)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {*tools} == {"search", "ask", "remember", "list", "forget"}
        assert all(tool.description for tool in tools.values())
        told = {name: tool.annotations for name, tool in tools.items()}
        assert {name for name, one in told.items() if one and one.read_only_hint} == {"search", "ask", "list"}
        assert {name for name, one in told.items() if one and one.destructive_hint} == {"remember", "forget"}
        assert value(await client.call_tool("list", {})) == []
        assert value(await client.call_tool("search", {"query": "Where is the key?"})) == []
        note = {"text": "The key lies below.", "key": "cabin", "title": "Cabin"}
        assert value(await client.call_tool("remember", note)) == {"memories": 1}
        listed = {"knowledge_base": "mine", "key": "cabin", "title": "Cabin", "source": "Cabin", "memories": 1}
        assert value(await client.call_tool("list", {})) == [listed]
        (found,) = value(await client.call_tool("search", {"query": "Where is the key?"}))
        assert (found["key"], found["text"]) == ("cabin", "Cabin\nThe key lies below.")
        answer = value(await client.call_tool("ask", {"question": "Where is the key?", "max_tokens": 4}))
        assert [one["key"] for one in answer["read"]] == ["cabin"]
        assert isinstance(answer["answer"], str)
        refused = await client.call_tool("remember", {"text": " ", "key": "empty"})
        assert refused.is_error
        assert "no text" in json.dumps([part.model_dump(mode="json") for part in refused.content])
        assert (await client.call_tool("ask", {"question": " "})).is_error
        assert value(await client.call_tool("forget", {"key": "cabin"})) == {"forgotten": True}
        assert value(await client.call_tool("list", {})) == []


async def test_ask_names_what_the_answer_was_read_from_or_else_all_that_was_retrieved() -> None:
    cabin, shed = (MemoryRead(n, key, "", 1, 0.5, key) for n, key in enumerate(("cabin", "shed")))
    recall = Recalled(0, False, Recall("", read=(cabin, shed)))
    model = Mock(EdgeModel, engine=Mock())
    model.engine.decoder.backend.records_queries = True
    async with Client(make_server(model)) as client:
        for spans, named in (((Span(0, 5, shed, 0.4),), ["shed"]), ((), ["cabin", "shed"])):
            result = Result("below", "end", Statistics(), False, spans=spans, recalls=(recall,))
            model.generate.return_value.aresult = AsyncMock(return_value=result)
            answer = value(await client.call_tool("ask", {"question": "Where is the key?"}))
            assert [one["key"] for one in answer["read"]] == named
    assert model.generate.call_args.kwargs["citations"]


async def test_a_call_that_is_cancelled_ends_its_answer() -> None:
    begun, over, cancellation = threading.Event(), threading.Event(), Cancellation()

    class Endless:
        recalled = ()

        def events(self) -> Iterator[Event]:
            while not cancellation.cancelled():
                begun.set()
                yield Token(1, "on")
                time.sleep(0.001)

        def keep(self, tokens: int) -> None:
            """Nothing is kept."""

    stream = AnswerStream(Endless(), cancellation, over.set)
    model = Mock(EdgeModel, engine=Mock(), generate=Mock(return_value=stream))
    model.ask.side_effect = lambda *_, **__: stream.result()
    try:
        async with Client(make_server(model)) as client:
            asking = asyncio.create_task(client.call_tool("ask", {"question": "Where is the key?"}))
            assert await asyncio.to_thread(begun.wait, 10)
            asking.cancel()
            assert await asyncio.to_thread(over.wait, 10)
    finally:
        stream.cancel()
