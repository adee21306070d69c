"""Many requests at once: answers share steps, each is what it would be alone; the queue, its end, those who leave."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
from openai import OpenAI
from reportlab.pdfgen.canvas import Canvas

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


# Documents that the device remembers by the page's interface, read with and without a service; nothing is sent.


@pytest.fixture(scope="module")
def alone(tiny: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    """A server whose service is away."""
    folder = tmp_path_factory.mktemp("alone")
    settings = {"EDGE_CLIENT_MEMORY": "exact", "EDGE_CLIENT_DEADLINE_S": "20"}
    with AppProcess.start(folder, tiny.folder, "127.0.0.1:1", environment=settings) as running:
        yield running
    assert "Traceback" not in running.log.read_text()


def remember(server: AppProcess, key: str, content: str | bytes) -> dict[str, Any]:
    """What became of a file."""
    reply = call(server.port, "POST", f"/v1/local?key={quote(key)}", content)
    assert reply.status == 200, reply.text
    *_, last, read, end = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert (json.loads(read)["outcome"], end) == ("read", "[DONE]")
    found: dict[str, Any] = {**json.loads(last), "report": json.loads(read)["report"]}
    return found


def read(server: AppProcess, question: str, **memory: object) -> list[dict[str, Any]]:
    """What the question's chunk reads."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 2}
    reply = post(server, {**body, "memory": {"texts": True, **memory}}).json()
    found: list[dict[str, Any]] = reply["memory"]["chunks"][0]["read"]
    return found


def test_without_a_service_answers_say_so_until_this_device_remembers_something(alone: AppProcess) -> None:
    body = {"messages": [{"role": "user", "content": "Code of Lima?"}], "max_tokens": 2}
    answer = post(alone, body).json()["memory"]
    assert answer["without_memory"]
    assert "UNREACHABLE" in answer["chunks"][0]["error"]
    told = call(alone.port, "GET", "/v1/knowledge_bases").json()
    assert (told["default"], told["data"]) == ("default", [])
    assert told["address"] in told["error"]

    assert remember(alone, "a.txt", "Code of Lima: 74")["outcome"] == "stored"
    assert remember(alone, "a.txt", "Code of Lima: 74")["outcome"] == "unchanged"
    assert remember(alone, "a.txt", "Code of Lima: 75")["outcome"] == "stored"
    for options in ({}, {"knowledge_base": "another"}):
        [found] = read(alone, "Code of Lima?", **options)
        assert (found["knowledge_base"], found["document_key"]) == ("mine", "a.txt")
        assert "Code of Lima: 75" in found["text"]
    (listed,) = call(alone.port, "GET", "/v1/local").json()["data"]
    assert abs(listed.pop("written_at") - time.time()) < 600
    own = {"knowledge_base": "mine", "key": "a.txt", "file": "a.txt"}
    assert listed == {**own, "title": "a", "source": "a", "references": 1, "whole": 1}
    assert call(alone.port, "DELETE", "/v1/local?knowledge_base=mine&key=a.txt").json() == {"deleted": True}
    for gone in ("knowledge_base=typo&key=a.txt", "knowledge_base=mine&key=a.txt"):
        assert refused(call(alone.port, "DELETE", f"/v1/local?{gone}")) == (404, "missing_file")
    assert call(alone.port, "GET", "/v1/local").json()["data"] == []
    assert post(alone, body).json()["memory"]["without_memory"]


@pytest.mark.parametrize("path", ["/v1/local", "/v1/local?key=", "/v1/local?key=../a.txt"])
def test_a_document_needs_a_file_name(alone: AppProcess, path: str) -> None:
    assert call(alone.port, "POST", path, "x").status == 400


@pytest.mark.parametrize("key", ["..", "...", "\N{SNAKE}" * 80 + "." + "\N{SNAKE}" * 80])
def test_a_file_of_any_name_that_a_browser_sends_is_remembered(alone: AppProcess, key: str) -> None:
    assert remember(alone, key, "Code of Lima: 74")["outcome"] == "stored"
    assert call(alone.port, "DELETE", f"/v1/local?key={quote(key)}").json() == {"deleted": True}


def test_a_hostile_file_and_a_pdf_come_back_as_the_text_that_they_are(alone: AppProcess, tmp_path: Path) -> None:
    remember(alone, "<b>.log", "<script>x()</script>")
    pdf = Canvas(str(tmp_path / "leave.pdf"))
    pdf.drawString(72, 700, "Paid leave: 31 days")
    pdf.save()
    assert remember(alone, "leave.pdf", (tmp_path / "leave.pdf").read_bytes())["outcome"] == "stored"
    texts = {found["document_key"]: found["text"] for found in read(alone, "script")}
    assert texts["<b>.log"].endswith("<script>x()</script>")
    assert "Paid leave: 31 days" in texts["leave.pdf"]


def test_the_page_reads_the_same_kinds_as_the_command_and_says_what_it_assumed(alone: AppProcess) -> None:
    old = remember(alone, "old.txt", "Straße: Mühlweg 3".encode("cp1252"))
    assert old["report"]["read"] == {"text": 1}
    assert old["report"]["notes"] == [{"note": "read as cp1252, which was detected", "names": ["old.txt"]}]
    film = remember(alone, "film.mp4", b"\0\1\2")
    assert (film["outcome"], "no reader for .mp4" in film["message"]) == ("failed", True)
    assert [skipped["name"] for skipped in film["report"]["skipped"]] == ["film.mp4"]
    remember(alone, "db.yaml", "db:\n  port: 5544\n")
    assert "db.port: 5544" in read(alone, "db.port?")[0]["text"]


def test_a_document_is_asked_about_and_its_memories_are_corrected(alone: AppProcess) -> None:
    assert remember(alone, "b.txt", "Code of Lima: 74")["outcome"] == "stored"
    (found,) = read(alone, "What is this about?", document="b")
    assert (found["document_key"], "74" in found["text"]) == ("b.txt", True)
    body = {"messages": [{"role": "user", "content": "x"}], "memory": {"document": "c"}}
    assert refused(post(alone, body)) == (400, "invalid_value")
    place = "/v1/local/memories?key=b.txt"
    assert call(alone.port, "GET", place).json() == {"data": [{"chunk_number": 0, "text": "Code of Lima: 74"}]}

    def corrected(text: str, number: int = 0) -> object:
        reply = call(alone.port, "PUT", f"{place}&chunk_number={number}", json.dumps({"text": text}))
        return reply.json().get("corrected", reply.status)

    assert corrected("Code of Lima: 76")
    for missing in ("key=b.txt&chunk_number=9", "key=c.txt&chunk_number=0"):
        reply = call(alone.port, "PUT", f"/v1/local/memories?{missing}", json.dumps({"text": "Lima"}))
        assert refused(reply) == (404, "missing_file")
    assert corrected("Long. " * 99) == 400
    assert "76" in read(alone, "What is this about?", document="b")[0]["text"]
    assert corrected("")
    assert call(alone.port, "GET", place).json() == {"data": []}


def test_a_document_is_deleted_by_its_name_unless_several_have_it(alone: AppProcess) -> None:
    for key in ("c.txt", "c.md"):
        remember(alone, key, "Code of Lima: 74")
    several = call(alone.port, "DELETE", "/v1/local?key=c")
    assert (*refused(several), "name one of c.md, c.txt" in several.text) == (400, "invalid_value", True)
    assert [call(alone.port, "DELETE", f"/v1/local?key={key}").status for key in ("C.txt", "c")] == [200, 200]
