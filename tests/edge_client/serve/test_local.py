"""Documents that the device remembers by the page's interface, read with and without a service; nothing is sent."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deploy.processes import AppProcess
from memory_model.bundle import Bundle
from tests.edge_client.http_calls import call, post, refused
from tests.memory_model.formats.test_formats import write_pdf


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
    *_, last, end = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert end == "[DONE]"
    found: dict[str, Any] = json.loads(last)
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
    listed = call(alone.port, "GET", "/v1/local").json()["data"]
    assert listed == [{"knowledge_base": "mine", "key": "a.txt", "title": "a", "references": 1}]
    gone = call(alone.port, "DELETE", "/v1/local?knowledge_base=mine&key=a.txt")
    assert gone.json() == {"deleted": True}
    unknown = call(alone.port, "DELETE", "/v1/local?knowledge_base=typo&key=a.txt")
    assert refused(unknown) == (404, "missing_file")
    assert call(alone.port, "GET", "/v1/local").json()["data"] == []
    assert post(alone, body).json()["memory"]["without_memory"]


@pytest.mark.parametrize("path", ["/v1/local", "/v1/local?key=", "/v1/local?key=../a.txt"])
def test_a_document_needs_a_file_name(alone: AppProcess, path: str) -> None:
    assert call(alone.port, "POST", path, "x").status == 400


def test_a_hostile_file_and_a_pdf_come_back_as_the_text_that_they_are(alone: AppProcess, tmp_path: Path) -> None:
    remember(alone, "<b>.log", "<script>x()</script>")
    write_pdf(tmp_path / "leave.pdf", "Paid leave: 31 days")
    assert remember(alone, "leave.pdf", (tmp_path / "leave.pdf").read_bytes())["outcome"] == "stored"
    texts = {found["document_key"]: found["text"] for found in read(alone, "script")}
    assert texts["<b>.log"].endswith("<script>x()</script>")
    assert "Paid leave: 31 days" in texts["leave.pdf"]
