"""Server-sent events: values, pings while there are none, and errors on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from edge_client.errors import ContextFull
from edge_client.serve import completions

Values = AsyncGenerator[dict[str, Any], None]


async def sent(values: Values) -> str:
    """What a client receives."""
    pieces: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pieces.append(message.get("body", b""))

    await completions.event_stream(values)({"type": "http", "method": "POST"}, receive, send)
    return b"".join(pieces).decode()


async def test_while_there_is_no_value_a_comment_keeps_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completions, "PING_S", 0.01)

    async def values() -> Values:
        await asyncio.sleep(0.2)
        yield {"a": 1}

    lines = (await sent(values())).strip().split("\n\n")
    assert lines[0].startswith(": ping")
    assert [line for line in lines if not line.startswith(":")] == ['data: {"a":1}', "data: [DONE]"]


async def test_an_error_on_the_way_takes_the_place_of_the_rest() -> None:
    async def values() -> Values:
        yield {"a": 1}
        raise ContextFull("no room")

    lines = (await sent(values())).strip().split("\n\n")
    assert "context_length_exceeded" in lines[1]
    assert lines[2:] == ["data: [DONE]"]
