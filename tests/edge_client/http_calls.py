"""HTTP without a library's manners: any header, any body, any path."""

import contextlib
import http.client
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from testing.processes import AppProcess


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


def call(
    port: int,
    method: str,
    path: str,
    body: str | bytes | Iterable[bytes] | None = None,
    *,
    host: str = "127.0.0.1",
    **headers: str,
) -> Reply:
    """One request to this machine."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        content = body.encode() if isinstance(body, str) else body
        sent = {"Content-Type": "application/json", **headers}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before the body was sent
            connection.request(method, path, content, sent)
        answer = connection.getresponse()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


QUESTION = "What is the code of Lima?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
MODEL = "tiny"


def post(server: AppProcess, body: object, **headers: str) -> Reply:
    """A chat of any shape."""
    return call(server.port, "POST", "/v1/chat/completions", json.dumps(body), **headers)


def refused(reply: Reply) -> tuple[int, str | None]:
    """Status and code of an error, whose body is OpenAI's."""
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return reply.status, error["code"]
