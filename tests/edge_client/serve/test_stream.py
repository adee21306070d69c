"""Server-sent events: values, pings while there are none, and errors on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from edge_client.errors import ContextFull
from edge_client.serve import completions


async def test_while_there_is_no_value_a_comment_keeps_the_connection_and_an_error_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completions, "PING_S", 0.01)
    pieces: list[bytes] = []

    async def values() -> AsyncGenerator[dict[str, Any], None]:
        await asyncio.sleep(0.2)
        yield {"a": 1}
        raise ContextFull("no room")

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pieces.append(message.get("body", b""))

    await completions.event_stream(values())({"type": "http", "method": "POST"}, receive, send)
    lines = b"".join(pieces).decode().strip().split("\n\n")
    assert lines[0].startswith(": ping")
    value, error, end = (line for line in lines if not line.startswith(":"))
    assert value == 'data: {"a":1}'
    assert "context_length_exceeded" in error
    assert end == "data: [DONE]"
