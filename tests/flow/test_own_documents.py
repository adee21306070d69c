"""Documents written into the service from the device, by the page's interface and in the terminal, then asked about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from openai import OpenAI
from typer.testing import CliRunner

from deploy.processes import AppProcess
from edge_client import EdgeModel
from edge_client.cli.main import app
from edge_client.pull.pack import pull_pack
from edge_client.recall.recaller import Recaller
from edge_client.wire.channel import ChannelSettings
from memory_model.bundle import Bundle
from tests.edge_client.http_calls import call
from tests.edge_client.tiny_bundle import tiny_bundle
from tests.flow.tiny_service import tiny_service

PATIENT = {
    "EDGE_CLIENT_DEADLINE_S": "60",
    "EDGE_CLIENT_MEMORY": "exact",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return tiny_bundle(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def address(tiny: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with tiny_service(tmp_path_factory.mktemp("service"), tiny.folder) as running:
        yield running


@pytest.fixture(scope="module")
def server(tiny: Bundle, address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    folder = tmp_path_factory.mktemp("app")
    with AppProcess.start(folder, tiny.folder, address, environment=PATIENT) as running:
        yield running
    assert "Traceback" not in running.log.read_text()


def signed(server: AppProcess) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.key}"}


def upload(server: AppProcess, base: str, key: str, text: str, title: str = "") -> list[dict[str, object]]:
    """The steps that were told."""
    path = f"/v1/knowledge_bases/{base}/documents?key={quote(key)}&title={quote(title)}"
    reply = call(server.port, "POST", path, text.encode(), **{"Content-Type": "text/plain", **signed(server)})
    assert reply.status == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def read(server: AppProcess, question: str, **memory: object) -> list[dict[str, str]]:
    """What the question's chunk reads, with its texts."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": question}], max_tokens=2,
            extra_body={"memory": {"texts": True, **memory}},
        )  # fmt: skip
    told = (answer.model_extra or {})["memory"]["chunks"][0]
    assert told["error"] == ""
    found: list[dict[str, str]] = told["read"]
    return found


def test_a_text_and_a_markdown_file_are_uploaded_and_read_by_the_next_question(server: AppProcess) -> None:
    steps = upload(server, "firm", "leave.txt", "Paid leave: 31 days", title="Handbook")
    assert [steps[0]["state"], steps[-1]["state"]] == ["sent", "done"]
    assert steps[-1]["outcome"] == "stored"
    upload(server, "firm", "rooms.md", "# Rooms\n\n- *Oak*: 12")
    listed = call(server.port, "GET", "/v1/knowledge_bases").json()["data"]
    assert next(base["documents"] for base in listed if base["name"] == "firm") == 2
    found = read(server, "How many days of paid leave are there?", knowledge_base="firm")
    assert {memory["document_key"] for memory in found} == {"leave.txt", "rooms.md"}
    handbook = [memory for memory in found if memory["document_key"] == "leave.txt"]
    assert any("Paid leave" in memory["text"] for memory in handbook)
    assert {memory["title"] for memory in handbook} == {"Handbook"}


def test_the_same_file_changes_nothing_another_one_replaces_it_and_it_can_be_removed(
    server: AppProcess,
) -> None:
    assert upload(server, "notes", "a.txt", "Code of Lima: 74")[-1]["outcome"] == "stored"
    assert upload(server, "notes", "a.txt", "Code of Lima: 74")[-1]["outcome"] == "unchanged"
    assert upload(server, "notes", "a.txt", "Code of Lima: 75")[-1]["outcome"] == "replaced"
    assert [m["text"] for m in read(server, "Code of Lima?", knowledge_base="notes")] == ["Code of Lima: 75"]
    gone = call(server.port, "DELETE", "/v1/knowledge_bases/notes/documents?key=a.txt", **signed(server))
    assert gone.json() == {"deleted": 1}
    assert read(server, "Code of Lima?", knowledge_base="notes") == []


def test_a_hostile_document_comes_back_as_the_text_that_it_is(server: AppProcess) -> None:
    upload(server, "hostile", "<b>.md", "<script>x()</script>", title="<svg>")
    [found] = read(server, "script", knowledge_base="hostile")
    assert found["title"] == "<svg>"
    assert found["document_key"] == "<b>.md"
    assert found["text"].endswith("<script>x()</script>")


def test_two_knowledge_bases_are_read_together(server: AppProcess) -> None:
    upload(server, "north", "oslo.txt", "Code of Oslo: 11")
    upload(server, "south", "lima.txt", "Code of Lima: 22")
    found = read(server, "Code of?", knowledge_bases=["north", "south"])
    assert {(m["knowledge_base"], m["text"]) for m in found} == {
        ("north", "Code of Oslo: 11"),
        ("south", "Code of Lima: 22"),
    }


def test_the_pack_of_a_knowledge_base_is_there_again_when_it_is_read_again(
    server: AppProcess, tiny: Bundle, address: str, tmp_path: Path
) -> None:
    upload(server, "packed", "oslo.txt", "Code of Oslo: 11")
    pull_pack(ChannelSettings(address), "packed", tmp_path / "pack")
    with (
        EdgeModel.open(tiny.folder, address, knowledge_base="packed", pack=tmp_path / "pack") as model,
        model.with_knowledge_base("default") as other,
        other.with_knowledge_base("packed") as again,
    ):
        packs = []
        for each in (model, other, again):
            assert isinstance(each.recaller, Recaller)
            packs.append(each.recaller.pack)
        assert packs[0] is not None
        assert packs == [packs[0], None, packs[0]]


def test_a_file_is_added_in_the_terminal_and_the_question_asked_again_reads_it(
    tiny: Bundle, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PATIENT.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "quito.txt"
    file.write_text("The code of Quito is 148.")
    lines = [f"/add {file}", "Code of Quito?", "/history", "/retry", "/memories", "/history", f"/add {file}"]
    options = ["--bundle", str(tiny.folder), "--service", address, "--kb", "mine", "--max-tokens", "2"]
    result = CliRunner().invoke(app, ["chat", *options], input="\n".join(lines))
    assert result.exit_code == 0, result.output
    said = result.stderr
    assert "ready: 1 memory of quito.txt in mine" in said
    assert "nothing new" in said
    assert "The code of Quito is 148." in said
    assert said.count("user> Code of Quito?") == 2, "asked again, not once more"


def test_what_cannot_be_added_is_refused_by_name_and_the_chat_goes_on(
    tiny: Bundle, address: str, tmp_path: Path
) -> None:
    pdf = tmp_path / "a.pdf"
    pdf.write_bytes(b"%PDF-1.7 ...")
    lines = ["/add", "/add nowhere.txt", f"/add {pdf}", "/retry", "/kb mine,nosuch", "/foo", "/save", "/kb"]
    options = ["--bundle", str(tiny.folder), "--service", address, "--kb", "mine"]
    result = CliRunner().invoke(app, ["chat", *options], input="\n".join(lines))
    assert result.exit_code == 0, result.output
    said = result.stderr
    for expected in (
        "/add needs the name of a file: /add FILE", "nowhere.txt cannot be read", "the PDF cannot be read",
        "there is no question to take back", "there is no knowledge base 'nosuch'; there are:", "firm",
        "there is no command /foo; there are: /kb, /memory", "/save needs the name of a file", "* mine",
    ):  # fmt: skip
        assert expected in said
