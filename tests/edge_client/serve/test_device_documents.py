"""Documents that the device remembers by the page's interface, read with and without a service; nothing is sent."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from reportlab.pdfgen.canvas import Canvas

from memory3.files.bundle import Bundle
from testing.processes import AppProcess
from tests.edge_client.http_calls import Reply, call, post, refused


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
    assert answer["error"].startswith("UNREACHABLE: no service at 127.0.0.1:1")
    assert "UNREACHABLE" in answer["chunks"][0]["error"]
    told = call(alone.port, "GET", "/v1/knowledge_bases").json()
    assert (told["default"], told["data"]) == ("default", [])
    assert told["address"] in told["error"]

    assert remember(alone, "a.txt", "Code of Lima: 74")["outcome"] == "stored"
    assert remember(alone, "a.txt", "Code of Lima: 74")["outcome"] == "unchanged"
    assert remember(alone, "a.txt", "Code of Lima: 75")["outcome"] == "stored"
    again = post(alone, body).json()["memory"]  # of this device, because the service is away
    assert (again["without_memory"], again["error"].partition(":")[0]) == (False, "UNREACHABLE")
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
    memory = {"key": "b.txt", "chunk_number": 0, "text": "Code of Lima: 74"}
    assert call(alone.port, "GET", place).json() == {"data": [memory]}

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
    assert refused(call(alone.port, "GET", place)) == (404, "missing_file")


def test_memories_are_listed_and_corrected_by_the_name_of_their_document(alone: AppProcess) -> None:
    remember(alone, "codes.txt", "Code of Lima: 74")
    remember(alone, "tolls.csv", "place,toll\nLima,12\nQuito,15\n")

    def listed(name: str) -> list[tuple[str, str]]:
        reply = call(alone.port, "GET", f"/v1/local/memories?key={name}").json()
        return [(memory["key"], memory["text"].partition("\n")[0]) for memory in reply["data"]]

    def corrected(name: str) -> Reply:
        body = json.dumps({"text": "Code of Lima: 75"})
        return call(alone.port, "PUT", f"/v1/local/memories?key={name}&chunk_number=0", body)

    assert listed("Codes") == [("codes.txt", "Code of Lima: 74")]
    assert corrected("Codes").json() == {"corrected": True}
    assert listed("codes.txt") == [("codes.txt", "Code of Lima: 75")]

    rows = [key for key, _ in listed("tolls")]
    assert len(rows) == 2
    several = corrected("tolls")
    assert (*refused(several), f"name one of {rows[0]}, {rows[1]}" in several.text) == (400, "invalid_value", True)
    assert corrected(quote(rows[1])).json() == {"corrected": True}
    assert listed("tolls")[1] == (rows[1], "Code of Lima: 75")
    for name in ("codes", "tolls"):
        assert call(alone.port, "DELETE", f"/v1/local?key={name}").status == 200


def test_what_is_not_there_is_refused_and_not_listed_as_empty(alone: AppProcess) -> None:
    remember(alone, "d.txt", "Code of Lima: 74")
    for missing in ("key=nothing.txt", "knowledge_base=typo&key=d.txt"):
        reply = call(alone.port, "GET", f"/v1/local/memories?{missing}")
        assert refused(reply) == (404, "missing_file")
    assert call(alone.port, "DELETE", "/v1/local?key=d.txt").status == 200
    assert refused(call(alone.port, "GET", "/v1/local/memories?key=d.txt")) == (404, "missing_file")


def test_a_document_is_deleted_by_its_name_unless_several_have_it(alone: AppProcess) -> None:
    for key in ("c.txt", "c.md"):
        remember(alone, key, "Code of Lima: 74")
    several = call(alone.port, "DELETE", "/v1/local?key=c")
    assert (*refused(several), "name one of c.md, c.txt" in several.text) == (400, "invalid_value", True)
    assert [call(alone.port, "DELETE", f"/v1/local?key={key}").status for key in ("C.txt", "c")] == [200, 200]
