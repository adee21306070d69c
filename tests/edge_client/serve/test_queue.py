"""Many requests at the local server: the queue, its end, and those who leave it."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from deploy.processes import AppProcess
from tests.edge_client.fake_service import FakeService
from tests.edge_client.http_calls import MESSAGES, MODEL, Reply, call, post, refused


def test_who_leaves_the_line_is_forgotten_and_a_full_line_refuses(
    server: AppProcess, client: OpenAI, memories: FakeService
) -> None:
    gate = threading.Event()
    memories.before = lambda *_: gate.wait(30) and None
    body = json.dumps({"messages": MESSAGES, "max_tokens": 2, "stream": False})
    try:
        sockets = [_send(server.port, body) for _ in range(3)]  # one is answered, two stand in line
        _wait_for(lambda: _answers(server) == {"running": 1, "waiting": 2})
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
        sockets[1].close()
        _wait_for(lambda: _answers(server) == {"running": 1, "waiting": 1})
        sockets[0].close()  # the one whose memories do not come
        gate.set()
        assert b'"finish_reason":"length"' in _read(sockets[2])
    finally:
        gate.set()
        memories.before = None
    _wait_until_idle(server)


@pytest.mark.parametrize("stream", [False, True])
def test_of_a_burst_the_queue_takes_three_and_the_others_are_told_when_to_come_back(
    server: AppProcess, memories: FakeService, *, stream: bool
) -> None:
    gate, start = threading.Event(), threading.Barrier(40)
    memories.before = lambda *_: gate.wait(30) and None
    body = {"messages": [{"role": "user", "content": f"Say it {stream}"}], "max_tokens": 2, "stream": stream}

    def at_once() -> Reply:
        start.wait()
        return post(server, body)

    try:
        with ThreadPoolExecutor(40) as pool:
            replies = [pool.submit(at_once) for _ in range(40)]
            _wait_for(lambda: sum(reply.done() for reply in replies) == 37)
            gate.set()
    finally:
        gate.set()
        memories.before = None
    found = [reply.result() for reply in replies]
    assert sorted(reply.status for reply in found) == [200] * 3 + [429] * 37
    assert {reply.headers["retry-after"] for reply in found if reply.status == 429} == {"2"}
    assert {refused(reply) for reply in found if reply.status == 429} == {(429, "queue_full")}
    _wait_until_idle(server)


def _send(port: int, body: str) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    )
    opened.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
    time.sleep(0.05)  # they stand in line in the order in which they came
    return opened


def _read(opened: socket.socket) -> bytes:
    pieces = []
    while piece := opened.recv(65536):
        pieces.append(piece)
    opened.close()
    return b"".join(pieces)


def _answers(server: AppProcess) -> dict[str, int]:
    found: dict[str, int] = call(server.port, "GET", "/health").json()["answers"]
    return found


def _wait_until_idle(server: AppProcess) -> None:
    _wait_for(lambda: _answers(server) == {"running": 0, "waiting": 0})


def _wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
