"""Many requests at once: answers share steps, each is what it would be alone; the queue, its end, those who leave."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from openai import OpenAI

from edge_client import EdgeModel, RetrievalError
from edge_client.serve.completions import Answering, Queue
from edge_client.serve.refusals import ApiError
from edge_client.serve.requests import ChatRequest
from edge_client.settings import EdgeSettings
from memory3.files.bundle import Bundle
from testing.processes import AppProcess
from tests.edge_client.fake_service import FakeService
from tests.edge_client.http_calls import MESSAGES, MODEL, call, post, refused
from tests.memory_service.running import eventually


@pytest.fixture
def gate(server: AppProcess, memories: FakeService) -> Iterator[threading.Event]:
    """Until it is set, no memories come; at the end the server is idle again."""
    opened = threading.Event()
    memories.before = lambda *_: opened.wait(30) and None
    yield opened
    opened.set()
    memories.before = None
    eventually(lambda: answers(server) == (0, 0))


def answers(server: AppProcess) -> tuple[int, int]:
    """Those that are computed, and those that wait."""
    found = call(server.port, "GET", "/health").json()["answers"]
    return found["running"], found["waiting"]


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
        eventually(lambda place=place: answers(server) == place)  # type: ignore[misc]
    sockets[1].close()
    eventually(lambda: answers(server) == (1, 1))
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
        eventually(lambda: sum(reply.done() for reply in replies) == 37)
        gate.set()
    found = [reply.result() for reply in replies]
    assert sorted(reply.status for reply in found) == [200] * 3 + [429] * 37
    for reply in found:
        if reply.status == 429:
            assert refused(reply) == (429, "queue_full")
            assert reply.headers["retry-after"] == "2"


AT_ONCE = 8
PLACES = ("Oslo", "Rome", "Lima", "Cairo", "Quito", "Paris", "Delhi", "Bern")
# Different lengths, so that answers join and leave; some without memory.
REQUESTS: list[dict[str, Any]] = [
    {
        "messages": [{"role": "user", "content": f"{'What is it? ' * n}The code of {place}?"}],
        "max_tokens": 24 + 8 * n,
        "memory": {"mode": "off" if n % 3 == 2 else "exact"},
    }
    for n, place in enumerate(PLACES)
]


@pytest.fixture(scope="module")
def wide(tiny: Bundle, memories: FakeService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    waits = {"EDGE_CLIENT_DEADLINE_S": "20", "EDGE_CLIENT_THREADS": "1"}
    folder, options = tmp_path_factory.mktemp("wide"), ("--parallel", str(AT_ONCE))
    with AppProcess.start(folder, tiny.folder, memories.address, *options, environment=waits) as running:
        yield running
    assert "Traceback" not in running.log.read_text()


def answer(server: AppProcess, request: dict[str, Any], start: threading.Barrier | None = None) -> str:
    """The text, after all others are ready to start."""
    if start is not None:
        start.wait()
    text: str = post(server, request).json()["choices"][0]["message"]["content"]
    return text


def all_at_once(server: AppProcess) -> list[str]:
    start = threading.Barrier(AT_ONCE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda request: answer(server, request, start), REQUESTS))


def steps(server: AppProcess) -> dict[int, int]:
    """Steps by batch size."""
    found = call(server.port, "GET", "/health").json()["steps_by_batch_size"]
    return {int(size): number for size, number in found.items()}


def test_eight_at_once_say_what_each_says_alone_and_share_steps(wide: AppProcess) -> None:
    alone = [answer(wide, request) for request in REQUESTS]
    assert set(steps(wide)) == {1}
    assert all_at_once(wide) == alone
    found = steps(wide)
    assert max(found) >= AT_ONCE // 2, found
    assert len(set(alone)) == AT_ONCE


def test_one_that_hangs_up_does_not_disturb_the_others(wide: AppProcess) -> None:
    expected = all_at_once(wide)
    with OpenAI(base_url=f"{wide.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Say much"}],
            max_tokens=400,
            stream=True,
            logit_bias={"257": -100},
        )
        next(iter(stream))
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(all_at_once, wide)
            next(iter(stream))
            stream.close()
            assert others.result(60) == expected


@pytest.mark.parametrize(("started", "named"), [({}, {"knowledge_base": "typo"}), ({"knowledge_base": "typo"}, {})])
def test_a_knowledge_base_that_nobody_could_look_up_is_looked_up_again(
    model: EdgeModel, monkeypatch: pytest.MonkeyPatch, started: dict[str, str], named: dict[str, str]
) -> None:
    answering = Answering(model, EdgeSettings(**started), Queue(1, 0))
    request, off = (ChatRequest(messages=MESSAGES, memory={**named, **more}) for more in ({}, {"mode": "off"}))
    answering.prepare(off).close()
    with monkeypatch.context() as away:
        away.setattr(model.engine.recaller.client, "knowledge_bases", Mock(side_effect=RetrievalError("away")))
        answering.prepare(request).close()
    with pytest.raises(ApiError, match="'typo'"):
        answering.prepare(request)
