"""The commands: the answer on standard output, everything around it on standard error, exit codes as documented."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest

from edge_client.cli.options import verdict_of
from edge_client.generate import loop
from edge_client.model import EdgeModel
from edge_client.recall.outcome import MemoryRead, Recall
from edge_client.settings import EdgeSettings
from edge_client.stream import AnswerAttention, Recalled, Result, Span, Statistics
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory3.text.verdict import Verdict
from tests.edge_client.cli.conftest import run
from tests.edge_client.conftest import TEXTS
from tests.edge_client.fake_service import FakeService

QUESTION = "What is the code of Lima?"


def test_ask_answers_and_shows_memories_and_statistics(places: list[object], service: FakeService) -> None:
    service.title = "[/red] [bold]x"
    result = run("ask", QUESTION, *places, "--max-tokens", 5, "--details")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()
    assert "tokens/s" not in result.stdout
    for shown in ("Memories read", "[/red]", "Fact", "tokens/s", "embed ms", "decompress ms", "inject ms"):
        assert shown in result.stderr


def test_ask_says_what_an_answer_rests_on_and_no_details(places: list[object]) -> None:
    result = run("ask", QUESTION, *places, "--max-tokens", 5)
    assert result.stdout.strip()
    assert result.stderr.strip(), "the verdict, whichever it is of so small a model"
    for detail in ("Memories read", "tokens/s", "embed ms"):
        assert detail not in result.stderr


def test_a_document_of_the_service_and_one_of_this_device_that_are_called_alike_are_told_apart(
    tiny: Bundle, places: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lima = next(n for n, text in enumerate(TEXTS) if "Lima" in text)
    (tmp_path / f"title {lima}.md").write_text(f"# Title {lima}\n\nThe code of Lima is 75.")
    assert run("remember", tmp_path / f"title {lima}.md", "--bundle", tiny.folder).exit_code == 0
    monkeypatch.setattr(loop, "is_refusal", lambda *_: True)
    line = " ".join(run("ask", QUESTION, *places, "--max-tokens", 1).stderr.split())
    assert f"default: Title {lima}" in line
    assert f"mine: Title {lima}" in line


def test_ask_as_json_tells_documents_scores_texts_and_times(places: list[object]) -> None:
    result = run("ask", QUESTION, *places, "--max-tokens", 20, "--json")
    data = json.loads(result.stdout)
    assert data["answer"]
    assert (data["without_memory"], data["refused"]) == (False, False)
    read = data["memories"][0]["read"][0]
    assert (read["document_key"], read["text"]) == (f"doc-{TEXTS.index(read['text'])}", read["text"])
    assert -1 <= read["score"] <= 1
    assert {"embed_ms", "call_ms", "server_ms", "decompress_ms"} < set(data["memories"][0]["times"])
    assert data["statistics"]["generated_tokens"] == 20


def test_ask_shows_what_the_answer_was_read_from_when_requested(places: list[object]) -> None:
    asked = ("ask", "What is the code of Lima?", *places, "--max-tokens", 4, "--explain")
    result = run(*asked, "--citations", "--json")
    data = json.loads(result.stdout)
    ids = {m["memory_id"] for recalled in data["memories"] for m in recalled["read"]}
    assert {one["memory_id"] for one in data["contributions"]} == ids
    assert {one["memory_id"] for one in data["spans"]} <= ids
    assert " contributed " in run(*asked).stderr


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_the_line_below_an_answer_names_what_was_read_and_not_all_that_was_retrieved(
    places: list[object], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def spans(attention: AnswerAttention, *_: object) -> tuple[Span, ...]:
        little, most = attention.memories[1], attention.memories[3]
        return Span(0, 1, replace(little, title="Bell"), 0.9), Span(1, 4, replace(most, title="Lease, page 2"), 0.4)

    monkeypatch.setattr(loop, "spans_of", spans)
    monkeypatch.setattr(loop.Answer, "_verdict", lambda *_: Verdict.grounded)
    options = [*places, "--max-tokens", 4]
    asked = {"ask": (["ask", QUESTION, *options], ""), "chat": (["chat", *options], QUESTION)}[command]
    shown = run(*asked[0], stdin=asked[1]).stderr
    assert "read from: Lease, page 2; Bell\n" in shown
    assert " from Title" not in shown, "spans are printed on request"
    assert "” from " in run(*asked[0], "--citations", stdin=asked[1]).stderr


def test_what_was_retrieved_is_not_called_the_source_where_no_part_has_one() -> None:
    memories = tuple(MemoryRead(n, f"d{n}", f"Title {n}", 0, 0.5, "x") for n in range(5))
    recalls = (Recalled(0, False, Recall("q", read=memories)),)
    finished = Result("74", "end", Statistics(), False, verdict=Verdict.grounded, recalls=recalls)
    shown = verdict_of(finished).plain
    assert shown.startswith("read from memories, without a sign of which; retrieved: Title 0; Title 1; ")
    one = replace(finished, recalls=(Recalled(0, False, Recall("q", read=memories[:1])),))
    assert verdict_of(one).plain == "read from: Title 0"
    assert verdict_of(replace(finished, recalls=())).plain == "read from: the conversation"


@pytest.mark.parametrize(("given", "waits_s"), [("", 10.0), ("3", 3.0)], ids=["not given", "given"])
def test_ask_waits_longer_for_memories_than_a_conversation_unless_it_is_told(
    tiny: Bundle, monkeypatch: pytest.MonkeyPatch, given: str, waits_s: float
) -> None:
    monkeypatch.delenv("EDGE_CLIENT_DEADLINE_S", raising=False)
    if given:
        monkeypatch.setenv("EDGE_CLIENT_DEADLINE_S", given)
    seen = []

    def noted(*, settings: EdgeSettings) -> EdgeModel:
        seen.append(settings.deadline_s)
        raise InvalidInput("enough is known")

    monkeypatch.setattr(EdgeModel, "open", noted)
    assert run("ask", QUESTION, "--bundle", tiny.folder).exit_code == 1
    assert seen == [waits_s]


def test_ask_says_what_a_refusal_rests_on_also_as_json(places: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "is_refusal", lambda *_: True)
    options = [QUESTION, *places, "--max-tokens", 1]
    assert "found no answer in what it read (Title" in run("ask", *options).stderr
    data = json.loads(run("ask", *options, "--json").stdout)
    assert (data["refused"], data["verdict"]) == (True, "not_in_what_was_read")


def test_ask_refuses_an_answer_of_the_model_itself_if_it_is_told_to(places: list[object]) -> None:
    options = [QUESTION, *places, "--max-tokens", 8, "--memory", "off"]
    assert "the model's own words" in run("ask", *options).stderr
    result = run("ask", *options, "--only-documents")
    assert result.stdout == "I don't know.\n"
    assert "nothing was read: memory is off" in result.stderr
    compared = run("ask", *options[:-2], "--only-documents", "--memory", "compare", "--json")
    assert json.loads(compared.stdout)["without_memory"]["answer"] != "I don't know.", "it is what is compared with"


@pytest.mark.parametrize("lines", [2, 200])
def test_ask_reads_a_file_of_any_length(places: list[object], tmp_path: Path, lines: int) -> None:
    book = tmp_path / "keys.md"
    book.write_text("# Keys\n\n" + "\n".join(f"The code of room {n} is {n * 7}." for n in range(lines)))
    result = run("ask", "What is the code of room 1?", *places, "--file", book, "--max-tokens", 3, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    read = [m for chunk in data["memories"] for m in chunk["read"] if m["knowledge_base"] == "conversation"]
    assert bool(read) == (lines == 200), "a short one is text in the prompt"
    assert (data["statistics"]["prompt_tokens"] > book.stat().st_size) == (lines == 2)
    assert "does not exist" in run("ask", QUESTION, *places, "--file", tmp_path / "none.txt").stderr


@pytest.mark.parametrize("mode", ["overlap", "exact", "off", "compare"])
def test_ask_reads_memories_as_it_is_told(places: list[object], mode: str) -> None:
    options = [*places, "--memory", mode, "--max-tokens", 20]
    data = json.loads(run("ask", QUESTION, *options, "--json").stdout)
    if mode != "compare":
        assert bool(data["memories"]) == (mode != "off")
        return
    assert data["with_memory"]["answer"] != data["without_memory"]["answer"]
    assert data["without_memory"]["memories"] == []
    shown = run("ask", QUESTION, *options).stdout
    assert shown.index("without memory") < shown.rindex("with memory")


def test_ask_without_service_answers_warns_and_can_be_strict(tiny: Bundle, nobody: str) -> None:
    places = ["--bundle", tiny.folder, "--service", nobody, "--max-tokens", 5]
    result = run("ask", QUESTION, *places)
    assert result.exit_code == 0
    assert result.stdout.strip()
    for said in ("answered without memory", "memory-service serve", "UNREACHABLE"):
        assert said in " ".join(result.stderr.split())
    assert run("ask", QUESTION, *places, "--require-memory").exit_code == 3
    assert "UNREACHABLE" not in run("ask", QUESTION, *places, "--memory", "off").stderr


def test_a_refusal_while_the_service_is_away_says_so_and_gives_no_advice_about_documents(
    tiny: Bundle, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "is_refusal", lambda *_: True)
    given = ["--bundle", tiny.folder, "--service", nobody, "--max-tokens", 5]
    for remembers in (False, True):
        if remembers:
            with EdgeModel.open(tiny.folder, offline=True) as model:
                model.remember("Code of Lima: 74", key="a.txt")
        for command in (["ask", QUESTION], ["chat"]):
            said = " ".join(run(*command, *given, stdin=f"{QUESTION}\n").stderr.split())
            assert "the service was not reached, so nothing of it was read: ask again when it answers" in said
            assert ("found no answer in what else it read (a.txt)" in said) == remembers
            for advice in ("add a document", "own words", "remembers nothing yet"):
                assert advice not in said


@pytest.mark.parametrize("command", [["ask", QUESTION], ["ask", QUESTION, "--details"], ["chat"]])
def test_who_asks_offline_without_documents_is_told_to_remember_a_file(
    tiny: Bundle, tmp_path: Path, command: list[str]
) -> None:
    given = ["--bundle", tiny.folder, "--local", tmp_path / "none", "--offline", "--max-tokens", 5]
    said = " ".join(run(*command, *given, stdin=f"{QUESTION}\n/memories\n").stderr.split())
    assert "this device remembers nothing yet:" in said
    assert "OFFLINE:" not in said
    assert "answered without memory" not in said
    assert "knowledge base has nothing" not in said


def test_ask_fails_where_memories_are_refused_for_a_reason_that_lasts(
    places: list[object], service: FakeService
) -> None:
    service.abort = (grpc.StatusCode.NOT_FOUND, "there is no knowledge base 'default'")
    for question, options in ((QUESTION, []), (QUESTION * 9, []), (QUESTION, ["--json"])):
        result = run("ask", question, *places, "--max-tokens", 2, *options)
        assert result.exit_code == 3
        assert result.stdout.strip(), "the answer is given all the same"
        assert "none will be until this is mended" in result.stderr
        assert result.stderr.count("INVALID_REQUEST:") == 1, "it is said once"


def test_ask_names_the_knowledge_bases_there_are_for_one_that_there_is_not(places: list[object]) -> None:
    result = run("ask", QUESTION, *places, "--kb", "towns,typo")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no knowledge base 'typo'; there are: atlas, default, towns" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["ask", QUESTION, "--kb", "mien"], "there is no knowledge base 'mien'; there are: atlas, default, towns"),
        (["chat", "--kb", "mien"], "there is no knowledge base 'mien'; there are: atlas, default, towns"),
        (["ask", QUESTION, "--document", "handbok.md"], "there is no document 'handbok.md' on this device"),
        (["chat", "--top-p", 7], "top_p"),
    ],
)
def test_what_is_wrong_is_said_before_the_model_is_loaded(
    places: list[object], monkeypatch: pytest.MonkeyPatch, command: list[object], said: str
) -> None:
    monkeypatch.setattr(EdgeModel, "open", Mock(side_effect=AssertionError("loaded")))
    monkeypatch.setattr(Bundle, "verify", Mock(side_effect=AssertionError("read whole")))
    result = run(*command, *places)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize("command", [("serve", "--port", 0), ("mcp",)])
def test_a_server_warns_of_a_knowledge_base_that_is_not_there_yet(
    places: list[object], monkeypatch: pytest.MonkeyPatch, command: tuple[object, ...]
) -> None:
    monkeypatch.setattr(EdgeModel, "open", Mock(side_effect=InvalidInput("not loaded here")))
    said = "warning: there is no knowledge base 'mien'; there are: atlas, default, towns; requests are refused until"
    assert said in " ".join(run(*command, "--kb", "mien", *places).stderr.split())
    assert "warning" not in run(*command, "--kb", "towns", *places).stderr
    assert "warning" not in run(*command, *places).stderr


def test_ask_reads_standard_input_and_the_environment(
    tiny: Bundle, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_CLIENT_BUNDLE", str(tiny.folder))
    monkeypatch.setenv("EDGE_CLIENT_SERVICE", service.address)
    monkeypatch.setenv("EDGE_CLIENT_KNOWLEDGE_BASE", "atlas")
    assert run("ask", "-", "--max-tokens", 2, stdin=QUESTION).exit_code == 0
    assert service.requests[0].knowledge_base == "atlas"


@pytest.mark.parametrize("name", ["decoder.onnx.data", "codec.npz", "manifest.json"])
def test_a_damaged_bundle_is_named_in_one_line(tiny: Bundle, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(tiny.folder, tmp_path / "bundle"))
    data = bytearray((folder / name).read_bytes())
    data[3] ^= 0xFF
    (folder / name).write_bytes(data)
    result = run("ask", QUESTION, "--bundle", folder)
    assert result.exit_code == 1
    assert result.stderr.startswith("CORRUPT_FILE:")
    assert name in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("question", "options", "code", "said"),
    [
        ("x", ["--bundle", "/nowhere"], 1, "make one with `make bundle` in a clone or `memory-model export`"),
        ("x" * 3000, [], 1, "CONTEXT_FULL"),
        ("  ", [], 1, "empty"),
        ("x", ["--temperature", "nan"], 1, "temperature"),
        ("x", ["--max-tokens", "0"], 1, "max_tokens"),
        ("x", ["--max-tokens", "many"], 2, "--max-tokens"),
        ("x", ["--service", "http://127.0.0.1:7430"], 1, "must be host:port, such as 127.0.0.1:7430"),
    ],
)
def test_wrong_input_exits_as_documented_and_says_what(
    tiny: Bundle, question: str, options: list[str], code: int, said: str
) -> None:
    result = run("ask", question, "--bundle", tiny.folder, *options)
    assert result.exit_code == code
    assert said in " ".join(result.stderr.split())
    assert not result.stdout
