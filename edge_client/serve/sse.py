"""Server-sent events: JSON values, one a line, and an error in place of the rest where one happens on the way."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse

from edge_client.serve.errors import body_of

DONE = "data: [DONE]\n\n"


def event_stream(values: AsyncGenerator[dict[str, Any], None]) -> StreamingResponse:
    """A response that sends the values as they come. A client that hangs up closes the generator."""

    async def lines() -> AsyncGenerator[str, None]:
        async with aclosing(values):
            try:
                async for value in values:
                    yield f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
            except Exception as error:  # the status has left long ago
                yield f"data: {json.dumps(body_of(error)[1])}\n\n"
        yield DONE

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)
