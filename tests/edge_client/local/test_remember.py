"""`remember`: files and texts become memories of this device, are read in answers, and are never sent."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.local.folder import LocalKnowledgeBases
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.model import EdgeModel
from edge_client.retrieval import RetrievalResult
from edge_client.stream import Statistics, Token
from memory3.errors import InvalidInput, MissingFile, ModelMismatch
from memory3.files.bundle import Bundle
from memory3.text.chat import Message
from testing.tcp_proxy import TcpProxy
from tests.edge_client.answers import finished, recalls_of
from tests.edge_client.cli.conftest import run
from tests.edge_client.conftest import TEXTS
from tests.edge_client.fake_service import FakeService
from tests.edge_client.local.conftest import remembered

NOTES = {"safe.txt": "The safe opens with 4711.", "deep/key.md": "# Key\n\nThe key lies below the mat."}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of notes below the working folder, so that keys are short."""
    monkeypatch.chdir(tmp_path)
    for name, text in NOTES.items():
        path = tmp_path / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Path("notes")


def base_of(bundle: Bundle, name: str = "mine") -> LocalKnowledgeBase:
    return LocalKnowledgeBases(Path(os.environ["EDGE_CLIENT_LOCAL"]), bundle).base(name)


def test_files_are_remembered_read_offline_listed_and_forgotten(tiny: Bundle, notes: Path) -> None:
    assert remembered(tiny, notes) == "2 documents: 2 stored; 2 memories"
    for options, why in ((["--offline"], ""), (["--service", "127.0.0.1:1"], "UNREACHABLE")):
        asked = run("ask", "Where is the key?", "--bundle", tiny.folder, "--max-tokens", 3, "--json", *options)
        chunks = json.loads(asked.stdout)["memories"]
        told = {(chunk["state"], chunk["error"], chunk["service_error"].partition(":")[0]) for chunk in chunks}
        assert told == {("offline", "", why)}
    read = [hit for chunk in chunks for hit in chunk["read"]]
    found = {hit["document_key"]: (hit["title"], hit["text"], hit["knowledge_base"]) for hit in read}
    assert found[str(notes.resolve() / "deep/key.md")] == ("Key", "Key\nThe key lies below the mat.", "mine")
    assert "mine: 2 documents, 2 memories" in run("remembered").stdout
    assert [line.split()[:2] for line in run("remembered", "--kb", "mine").stdout.splitlines()] == [
        ["memories", "document"],
        ["1", str(notes.resolve() / "deep/key.md")],
        ["1", str(notes.resolve() / "safe.txt")],
    ]
    assert run("forget", "notes/safe.txt").stdout == f"forgot {notes.resolve()}/safe.txt\n"
    again = run("forget", "notes/safe.txt")
    assert (again.exit_code, "remembered --kb mine" in again.stderr) == (1, True)
    assert [d.key for d in base_of(tiny).documents()] == [str(notes.resolve() / "deep/key.md")]
    assert run("forget", "--all").exit_code == 1, "nobody said yes"
    assert run("forget", "--all", "--yes").stdout == "forgot mine with all its documents\n"
    assert run("remembered").stdout == ""


@pytest.mark.parametrize("command", [("forget", "safe.txt"), ("remembered",), ("remember", "--anew")])
def test_a_local_knowledge_base_that_is_not_there_is_refused_with_those_that_are(
    tiny: Bundle, notes: Path, command: tuple[str, ...]
) -> None:
    typed = [*command, "--kb", "mien", *(["--bundle", tiny.folder] if command[0] == "remember" else [])]
    message = run(*typed).stderr
    assert "no local knowledge base is called 'mien'" in message
    assert "make one with `edge-client remember`" in message
    remembered(tiny, notes)
    refused = run(*typed)
    assert (refused.exit_code, refused.stderr.strip().endswith("; there are: mine")) == (1, True), refused.stderr


def test_a_program_is_told_which_local_knowledge_bases_there_are(tiny: Bundle, notes: Path) -> None:
    remembered(tiny, notes)
    with pytest.raises(MissingFile, match="there are: mine"):
        base_of(tiny, "mien")


def test_a_knowledge_base_without_documents_is_not_listed(tiny: Bundle, notes: Path) -> None:
    assert "this device remembers nothing yet" in run("remembered").stderr
    remembered(tiny, notes)
    assert run("remembered").stdout.startswith("mine: 2 documents")
    assert run("forget", notes).exit_code == 0
    emptied = run("remembered")
    assert (emptied.stdout, "this device remembers nothing yet" in emptied.stderr) == ("", True)


def test_what_is_remembered_is_counted_while_another_program_has_it_open(tiny: Bundle, notes: Path) -> None:
    with EdgeModel.open(tiny.folder, offline=True) as model:
        model.remember("The key lies below the mat. " * 200, key="key")
        file = model.local.base("mine").path
        written = file.with_name(f"{file.name}-wal").stat().st_size
        assert written > 10 * file.stat().st_size, "not yet in the file itself"
        shown = float(run("remembered").stdout.partition(" MB")[0].rpartition(" ")[2])
        assert shown >= round(written / 1e6, 1) > 0


def test_a_prompt_waits_for_memories_of_this_device_longer_than_for_a_service(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered(tiny, notes)
    retrieve = LocalKnowledgeBase.retrieve

    def delayed(*given: Any, **options: Any) -> RetrievalResult:
        time.sleep(0.5)  # as where other programs take all processors
        return retrieve(*given, **options)

    monkeypatch.setattr(LocalKnowledgeBase, "retrieve", delayed)
    with EdgeModel.open(tiny.folder, offline=True, deadline_s=0.05, minimum_score=-1) as model:
        result = model.ask("Where is the key?", max_tokens=1)
    assert len(result.memories) == 2, result.errors


def test_a_question_asked_again_reads_what_was_remembered_changed_and_forgotten_meanwhile(tiny: Bundle) -> None:
    talk = [{"role": "user", "content": "Good day."}, {"role": "assistant", "content": "Good day."}]
    question = {"role": "user", "content": "Where is the key of the shed?"}  # of several chunks

    def answered(model: EdgeModel, *before: Message) -> tuple[list[float | None], set[str | None], Statistics]:
        events = list(model.generate([*before, question], max_tokens=6, logprobs=0))
        read = {memory.text for recalled in recalls_of(events) for memory in recalled.recall.read}
        return [e.logprob for e in events if isinstance(e, Token)], read, finished(events).statistics

    with EdgeModel.open(tiny.folder, offline=True, minimum_score=-1) as model:
        answered(model)
        for text in ("The key lies below the mat.", "The key is with Anna.", None):
            model.remember(text, key="key") if text else model.forget("key")
            again, same = answered(model), answered(model)
            with EdgeModel.open(tiny.folder, offline=True, minimum_score=-1) as fresh:
                want = answered(fresh)
            assert again[0] == pytest.approx(want[0], abs=1e-4)
            assert same[0] == pytest.approx(want[0], abs=1e-4)
            assert again[1] == want[1] == ({text} if text else set())
            assert (again[2].reused_tokens, same[2].reused_tokens) == (0, same[2].prompt_tokens - 1)
        answered(model, *talk)
        model.remember("The key is lost.", key="key")
        _, read, statistics = answered(model, *talk)
        assert read == {"The key is lost."}
        assert 0 < statistics.reused_tokens < statistics.prompt_tokens // 2, "what was said before it is kept"


def test_what_is_unchanged_costs_nothing_and_what_changed_is_replaced(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered(tiny, notes)
    (notes / "safe.txt").write_text("The safe opens with 1234.")
    assert remembered(tiny, notes) == "2 documents: 1 stored, 1 unchanged; 2 memories"
    monkeypatch.setattr("edge_client.local.writer.MemoryWriter.write", None)  # must not be called
    assert remembered(tiny, notes) == "2 documents: 2 unchanged; 2 memories"


def test_files_that_cannot_be_read_fail_alone_and_say_why(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_client.local.folder.TEXT_LIMIT", 1000)
    (notes / "a.docx").write_bytes(b"PK cut")
    (notes / "old.txt").write_bytes("Größe: 5".encode("latin-1"))
    (notes / "film.mp4").write_bytes(b"\0\1\2")
    (notes / "b.txt").write_bytes(b"GIF89a\0\0\1")
    (notes / "c.txt").write_text("long " * 300)
    (notes / "d.txt").write_text(" \n")
    result = run("remember", notes, "--bundle", tiny.folder)
    assert result.exit_code == 1
    assert "4 failed, 3 stored" in result.stdout
    whys = {
        "a.docx": "no readable DOCX",
        "b.txt": "binary",
        "c.txt": "at most 1,000",
        "d.txt": "no text",
        "old.txt": "read as cp1252, which was detected",
        "film.mp4": "skipped 1 of an unsupported kind",
    }
    for name, why in whys.items():
        (line,) = [line for line in result.stderr.splitlines() if f"notes/{name}" in line]
        assert why in line
    assert len(base_of(tiny).documents()) == 3


def test_what_is_no_file_of_text_or_no_name_is_refused(tiny: Bundle, notes: Path) -> None:
    (notes / "x.bin").write_bytes(bytes(99))
    for arguments, why in (
        ([notes / "x.bin"], "unsupported kind"),
        ([notes, "--kb", "../x"], "letters"),
        (["none.txt"], "not exist"),
        ([], "name the files"),
        (["--anew"], "no local knowledge base"),
    ):
        result = run("remember", *arguments, "--bundle", tiny.folder)
        assert (result.exit_code, why in result.stderr) == (1, True), result.stderr


def test_a_killed_process_loses_nothing_that_was_stored_and_the_next_goes_on(tiny: Bundle, notes: Path) -> None:
    text = " ".join(f"Word {n} is said." for n in range(400))
    (notes / "book.txt").write_text(text)
    script = """
import sys
from pathlib import Path
from edge_client.local.folder import LocalKnowledgeBases, remember
from edge_client.local.writer import MemoryWriter
from memory3.files.bundle import Bundle
from memory3.formats import read_documents
bundle = Bundle.open(sys.argv[1])
writer = MemoryWriter(bundle)
base = LocalKnowledgeBases(Path(sys.argv[2]), bundle).base("mine", writer.embedder.dim)
for one in remember(base, writer, read_documents(Path("notes/book.txt"), Path("notes/book.txt").resolve())):
    print(one.done, flush=True)
"""
    folder = os.environ["EDGE_CLIENT_LOCAL"]
    command = [sys.executable, "-c", script, str(tiny.folder), folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(3)][-1]
        process.send_signal(signal.SIGKILL)
    base = base_of(tiny)
    stored = len(base)
    assert acknowledged <= stored < 200
    kept = base.retrieve(np.eye(1, 16, dtype=np.float32), k=stored).hits[0]
    base.close()
    outcome = remembered(tiny, notes / "book.txt")
    whole = int(outcome.split()[-2])
    assert outcome == f"1 document: 1 stored; {whole} memories"
    assert whole == len(base_of(tiny)) > stored
    found = {hit.memory_id for hit in base_of(tiny).retrieve(np.eye(1, 16, dtype=np.float32), k=whole).hits[0]}
    assert {hit.memory_id for hit in kept} < found  # they were not written again


def test_a_knowledge_base_of_another_bundle_is_refused_until_it_is_written_anew(
    tiny: Bundle, other: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered(tiny, notes)
    monkeypatch.setattr("edge_client.engine.BatchingDecoder.open", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(ModelMismatch, match="'mine' was written by"):
        EdgeModel.open(other.folder)
    assert "--anew --kb mine" in run("remember", notes, "--bundle", other.folder).stderr
    assert remembered(other, "--anew") == "2 documents: 2 stored; 2 memories"
    assert {d.key: d.title for d in base_of(other).documents()} == {
        str(notes.resolve() / "safe.txt"): "safe",
        str(notes.resolve() / "deep/key.md"): "Key",
    }
    assert [path.name for path in Path(os.environ["EDGE_CLIENT_LOCAL"]).iterdir() if "anew" in path.name] == []


def test_a_text_is_remembered_by_a_running_model_and_read_by_the_next_answer(tiny: Bundle) -> None:
    with EdgeModel.open(tiny.folder, offline=True) as model:
        assert model.ask("Where is the key?", max_tokens=1).memories == ()
        assert model.remember("The key lies below the mat.", key="key", title="Key") == 1
        (read,) = model.ask("Where is the key?", max_tokens=1).memories
        assert (read.document_key, read.knowledge_base, read.text) == (
            "key",
            "mine",
            "Key\nThe key lies below the mat.",
        )
        with pytest.raises(InvalidInput, match="no text"):
            model.remember(" ", key="empty")
        for key in ("", " "):
            with pytest.raises(InvalidInput, match="no key"):
                model.remember("The key lies below the mat.", key=key)
        for text, key in (("\ud800", "half"), ("whole", "\ud800")):
            with pytest.raises(InvalidInput, match="surrogate"):
                model.remember(text, key=key)
        assert model.forget("key")
        assert model.ask("Where is the key?", max_tokens=1).memories == ()


def test_a_title_longer_than_a_memory_is_remembered_by_its_beginning(tiny: Bundle) -> None:
    subject = "Re: the pump, the lid and the valve " * 40
    with EdgeModel.open(tiny.folder, offline=True) as model:
        assert model.remember("The key.", key="mail", title=subject) == 1
        assert model.remember("The key.", key="mail", title=subject) == 1, "it is unchanged"
        ((one,),) = model.local.documents().values()
        assert subject.startswith(one.title)
        (memory,) = model.local.base("mine").memories_of(["mail"])
        assert memory.text == f"{one.title}\nThe key."
        assert model.correct("mail", 0, "The door.")
        (memory,) = model.local.base("mine").memories_of(["mail"])
        assert memory.text == f"{one.title}\nThe door."


@pytest.fixture
def secrets(tiny: Bundle, notes: Path) -> Iterator[list[bytes]]:
    """Every string, number and vector of what the device remembers, as bytes that a request could hold."""
    remembered(tiny, notes)
    base = base_of(tiny)
    queries = tiny.embedder().embed(list(NOTES.values()))
    found = [hit for hits in base.retrieve(queries, k=9).hits for hit in hits if hit.payload]
    assert len(found) == 2
    spelled = [part for hit in found for part in (hit.document_key, hit.title, hit.text or "")]
    payloads = [hit.payload[start : start + 16] for hit in found for start in range(64, len(hit.payload) - 16, 997)]
    vectors = [row.astype("<f4").tobytes() for row in tiny.embedder().embed([hit.text or "" for hit in found])]
    ids = [varint(hit.memory_id) for hit in found]
    yield [*(s.encode() for s in spelled), b"mine", *payloads, *(v[i : i + 16] for v in vectors for i in (0, 32)), *ids]
    base.close()


def test_a_memory_is_corrected_and_removed_by_the_documents_name_and_its_number(tiny: Bundle, tmp_path: Path) -> None:
    (tmp_path / "code.txt").write_text("Code of Lima: 74")
    remembered(tiny, tmp_path / "code.txt")

    def correct(*arguments: object, stdin: str = "") -> tuple[int, str]:
        result = run("correct", *arguments, "--bundle", tiny.folder, stdin=stdin)
        return result.exit_code, result.stdout.replace(str(tmp_path.resolve()), "…") or result.stderr

    assert correct("code") == (0, "…/code.txt 0: Code of Lima: 74\n")
    assert correct("code.txt", 0, "Code of Lima: 75") == (0, "corrected …/code.txt 0\n")
    assert correct("code.txt", 0, "-", stdin="Code of Lima: 76") == (0, "corrected …/code.txt 0\n")
    assert correct("code") == (0, "…/code.txt 0: Code of Lima: 76\n")
    for wrong, said in (
        (["typo", 0, "x"], "mine has no document typo"),
        (["code", 9, "x"], "has no memory 9"),
        (["code", 9, "--remove"], "has no memory 9"),
        (["code", 0], "give the number of a memory and its new text"),
        (["code", "--remove"], "give the number of a memory"),
        (["code", 0, "x", "--remove"], "give the number of a memory"),
        (["code", 0, " "], "it has no text"),
        (["code", 0, "Long. " * 99], "one memory holds"),
    ):
        code, shown = correct(*wrong)
        assert (code, said in " ".join(shown.split())) == (1, True), wrong
    assert correct("code", 0, "--remove") == (0, "removed …/code.txt 0\n")
    assert correct("code")[0] == 1


def varint(number: int) -> bytes:
    """As protobuf writes an unsigned number."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def test_nothing_local_is_sent_to_a_service_whose_memories_are_read_beside_it(
    tiny: Bundle, service: FakeService, secrets: list[bytes]
) -> None:
    with (
        TcpProxy(service.address) as line,
        EdgeModel.open(tiny.folder, line.address, memory="exact", deadline_s=20) as model,
    ):
        question = "Where does the key lie?"
        for _ in range(2):  # the second request names what the device holds
            result = model.ask(question, max_tokens=40)
    read = {memory.knowledge_base for memory in result.memories}
    assert read == {"mine", "default"}
    assert result.statistics.recalls == len(result.recalls) > 1
    sent = bytes(line.sent)
    assert all(request.query_vectors in sent for request in service.requests)  # the proxy sees what is sent as it is
    assert any(request.held_ids for request in service.requests)
    assert set(service.requests[-1].held_ids) <= {n + 1 for n in range(len(TEXTS))}
    assert [secret for secret in secrets if secret in sent] == []


@pytest.mark.parametrize(
    ("names", "requested"), [("house", []), ("house,default", ["default"]), ("atlas", ["atlas"]), ("none", ["none"])]
)
def test_a_service_is_not_asked_for_what_this_device_alone_has(
    tiny: Bundle, service: FakeService, names: str, requested: list[str]
) -> None:
    with EdgeModel.open(tiny.folder, service.address, knowledge_base=names, memory="exact", deadline_s=20) as model:
        for own in ("house", "atlas"):  # the service has an atlas, too
            model.remember("Code of Lima: 74", key=own, knowledge_base=own)
        result = model.ask("What is the code of Lima?", max_tokens=2)
    assert [request.knowledge_base for request in service.requests] == requested
    assert (result.errors, result.memory_error) == ((), "")
    assert {memory.document_key for memory in result.memories} & {"house", "atlas"}
