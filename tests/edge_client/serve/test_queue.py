"""Many requests at the local server: the queue, its end, and those who leave it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from deploy.processes import AppProcess
from edge_client import EdgeModel, RetrievalError
from edge_client.serve.completions import Answering, Queue
from edge_client.serve.refusals import ApiError
from edge_client.serve.requests import ChatRequest
from tests.edge_client.fake_service import FakeService
from tests.edge_client.http_calls import MESSAGES, call, post, refused


@pytest.fixture
def gate(server: AppProcess, memories: FakeService) -> Iterator[threading.Event]:
    """Until it is set, no memories come; at the end the server is idle again."""
    opened = threading.Event()
    memories.before = lambda *_: opened.wait(30) and None
    yield opened
    opened.set()
    memories.before = None
    wait_for(lambda: answers(server) == (0, 0))


def answers(server: AppProcess) -> tuple[int, int]:
    """Those that are computed, and those that wait."""
    found = call(server.port, "GET", "/health").json()["answers"]
    return found["running"], found["waiting"]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sent(server: AppProcess) -> socket.socket:
    """A request whose answer is not waited for."""
    body = json.dumps({"messages": MESSAGES, "max_tokens": 2})
    opened = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    opened.sendall((head + body).encode())
    return opened


def test_who_leaves_the_line_is_forgotten(server: AppProcess, gate: threading.Event) -> None:
    sockets = []
    for place in ((1, 0), (1, 1), (1, 2)):
        sockets.append(sent(server))
        wait_for(lambda place=place: answers(server) == place)  # type: ignore[misc]
    sockets[1].close()
    wait_for(lambda: answers(server) == (1, 1))
    sockets[0].close()  # the one whose memories do not come
    gate.set()
    with sockets[2] as last:
        assert b'"finish_reason":"length"' in b"".join(iter(lambda: last.recv(65536), b""))


@pytest.mark.parametrize("stream", [False, True])
def test_of_a_burst_the_queue_takes_three_and_the_others_are_told_when_to_come_back(
    server: AppProcess, gate: threading.Event, *, stream: bool
) -> None:
    body = {"messages": [{"role": "user", "content": f"Say it {stream}"}], "max_tokens": 2, "stream": stream}
    with ThreadPoolExecutor(40) as pool:
        replies = [pool.submit(post, server, body) for _ in range(40)]
        wait_for(lambda: sum(reply.done() for reply in replies) == 37)
        gate.set()
    found = [reply.result() for reply in replies]
    assert sorted(reply.status for reply in found) == [200] * 3 + [429] * 37
    for reply in found:
        if reply.status == 429:
            assert refused(reply) == (429, "queue_full")
            assert reply.headers["retry-after"] == "2"


def test_a_knowledge_base_that_nobody_could_look_up_is_looked_up_again(
    model: EdgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering = Answering(model, "default", Queue(1, 0))
    request = ChatRequest.model_validate({"messages": MESSAGES, "memory": {"knowledge_base": "typo"}})
    with monkeypatch.context() as away:
        away.setattr(model.recaller.client, "knowledge_bases", lambda: called(RetrievalError("away")))
        answering.prepare(request).close()
    with pytest.raises(ApiError, match="'typo'"):
        answering.prepare(request)


def called(error: Exception) -> None:
    raise error
