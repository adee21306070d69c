"""`memory-service ingest`, `kb` and `documents` as a user types them, against the service as a real process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import Result
from reportlab.pdfgen.canvas import Canvas
from typer.testing import CliRunner

from memory_service.cli import app
from testing.programs import ROOT
from tests.memory_service.processes import Service, service

PROGRAM = [
    sys.executable,
    "-c",
    "from memory_service.client import ingest; ingest._WINDOW = 16\n"  # few documents are under way
    "from memory_service.cli import app; app(prog_name='memory-service')",
]


ENVIRONMENT = {"COLUMNS": "200"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("service"), seconds_per_reference=0.02) as running:
        yield running


def command(running: Service, *arguments: object, said: str | None = None) -> Result:
    line = [*map(str, arguments), "--address", running.address]
    return CliRunner().invoke(app, line, input=said, env=ENVIRONMENT, catch_exceptions=False)


def write_jsonl(path: Path, *documents: object) -> Path:
    path.write_text("".join(f"{json.dumps(document)}\n" for document in documents), encoding="utf-8")
    return path


def test_files_of_every_kind_are_ingested_and_errors_named(running: Service, tmp_path: Path) -> None:
    good = {"key": "a", "title": "A", "text": "First fact.", "metadata": {"year": 1999, "kind": "x"}}
    facts = write_jsonl(tmp_path / "facts.jsonl", good, {"key": "b", "text": ""}, {"key": "c"}, ["no object"])
    with facts.open("ab") as file:
        file.write(b'{"key": "d", "text": "\xff"}\n\n{"key": "e", "text": "Last fact."}\n')
    (tmp_path / "page.md").write_text("---\nx: y\n---\n# Page\n\nSee [this](http://x) page.\n")
    (tmp_path / "note.txt").write_text("A note.")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    done = command(running, "ingest", tmp_path, "--kb", "kinds")
    assert done.exit_code == 1
    assert done.stdout == "9 documents: 5 failed, 4 stored; 4 references\n"
    assert "created knowledge base kinds\n" in done.stderr
    for part in (
        "facts.jsonl, line 2, key b: DOCUMENT_EMPTY",
        "facts.jsonl, line 3: UNREADABLE: `text` is missing",
        "line 4",
        "facts.jsonl, line 5: UNREADABLE: not valid UTF-8",
        "bad.txt",
        "read: 1 JSON lines (3 documents), 1 Markdown, 1 text",
        "front matter became metadata and text: x",
    ):
        assert part in done.stderr, part
    again = command(running, "ingest", tmp_path / "note.txt", "--kb", "kinds")
    assert (again.exit_code, again.stdout) == (0, "1 document: 1 unchanged; 1 reference\n")
    assert "created" not in again.stderr


def test_a_file_whose_name_or_text_is_not_unicode_fails_alone(running: Service, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xe9.txt")).write_text("A letter of 1998.")
    (tmp_path / "b.json").write_text('{"letter": "cut in half: \\ud83d"}')
    (tmp_path / "c.txt").write_text("A letter of today.")
    done = command(running, "ingest", tmp_path, "--kb", "names")
    assert (done.exit_code, done.stdout) == (1, "3 documents: 2 failed, 1 stored; 1 reference\n"), done.output
    for why in ("its name is not UTF-8: rename it", "b.json: UNREADABLE: it holds half of a surrogate pair"):
        assert why in done.stderr


def test_a_page_without_text_is_reported_and_not_counted(running: Service, tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "scan.pdf"))
    canvas.drawString(72, 700, "The pump is red.")
    canvas.showPage()
    canvas.showPage()
    canvas.save()
    done = command(running, "ingest", tmp_path, "--kb", "scans")
    assert (done.exit_code, done.stdout) == (0, "1 document: 1 stored; 1 reference\n")
    assert "1 of 1 document done, 1 reference" in done.stderr
    assert "scan.pdf: no text on page 2 of 2" in done.stderr


def test_files_are_named_by_their_path_or_a_name_and_pruned_when_they_are_gone(
    running: Service, tmp_path: Path
) -> None:
    notes = tmp_path.resolve() / "notes"
    (notes / "deep").mkdir(parents=True)
    for file in ("a.txt", "deep/a.txt"):
        (notes / file).write_text(f"This is {file}.")
    write_jsonl(notes / "facts.jsonl", {"key": "fact", "text": "A record."})

    def listed() -> list[str]:
        found = command(running, "documents", "list", "named").stdout
        return [line.split("\t")[0] for line in found.splitlines()]

    assert command(running, "ingest", notes, "--kb", "named").exit_code == 0
    assert command(running, "ingest", notes, "--kb", "named", "--name", "wiki").exit_code == 0
    both = [f"{notes}/a.txt", f"{notes}/deep/a.txt", "fact", "wiki/a.txt", "wiki/deep/a.txt"]
    assert listed() == both
    (notes / "a.txt").rename(notes / "b.txt")
    assert command(running, "ingest", notes, "--kb", "named").exit_code == 0
    assert listed() == sorted([*both, f"{notes}/b.txt"])
    pruned = command(running, "ingest", notes, "--kb", "named", "--prune")
    assert f"deleted {notes}/a.txt\n" in pruned.stdout
    assert command(running, "ingest", notes, "--kb", "named", "--name", "wiki", "--prune").exit_code == 0
    assert listed() == [f"{notes}/b.txt", f"{notes}/deep/a.txt", "fact", "wiki/b.txt", "wiki/deep/a.txt"]
    alone = command(running, "ingest", notes / "b.txt", "--kb", "named", "--prune")
    assert (alone.exit_code, "--prune is for folders" in alone.stderr) == (1, True)


def test_a_file_that_became_shorter_leaves_no_old_row(running: Service, tmp_path: Path) -> None:
    rooms, other = tmp_path.resolve() / "rooms.csv", tmp_path.resolve() / "rooms.csv.csv"

    def ingested(*arguments: object) -> tuple[str, list[str]]:
        done = command(running, "ingest", *arguments, "--kb", "rooms")
        assert done.exit_code == 0, done.output
        listed = command(running, "documents", "list", "rooms").stdout.splitlines()
        return done.stdout, [line.split("\t")[0] for line in listed]

    for path in (rooms, other):
        path.write_text("room,floor\nOak,1\nElm,2\nAsh,3\n")
    ingested(rooms, other)
    ingested(rooms, "--name", "halls")
    rooms.write_text("room,floor\nOak,1\nElm,2\n")
    said, keys = ingested(rooms)
    assert f"deleted {rooms}#row=3" in said
    ingested(rooms, "--name", "halls")
    left = [f"{rooms}#row=1", f"{rooms}#row=2", *(f"{other}#row={n}" for n in (1, 2, 3)), "halls#row=1", "halls#row=2"]
    assert ingested(rooms)[1] == sorted(left)
    assert keys == sorted([*left, "halls#row=3"])


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(running: Service, tmp_path: Path) -> None:
    facts = write_jsonl(tmp_path / "many.jsonl", *({"key": f"k{n}", "text": f"Text {n}."} for n in range(100)))
    process = subprocess.Popen(
        [*PROGRAM, "ingest", str(facts), "--kb", "many", "--address", running.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
    )
    while "document_count: 0" in (shown := command(running, "kb", "show", "many").stdout) or not shown:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    stored = int(out.split(": ")[1].split(" stored")[0])
    assert f"interrupted: {stored} of 100 documents done, run the same command again to go on" in err
    assert 0 < stored < 100
    rest = command(running, "ingest", facts, "--kb", "many")
    assert rest.stdout == f"100 documents: {100 - stored} stored, {stored} unchanged; 100 references\n"
    assert "document_count: 100" in command(running, "kb", "show", "many").stdout


def test_memories_may_come_later(running: Service, tmp_path: Path) -> None:
    facts = write_jsonl(tmp_path / "f.jsonl", *({"key": key, "text": f"Text {key}."} for key in "ab"))
    done = command(running, "ingest", facts, "--kb", "later", "--memories", "later", "--overlap", 8)
    assert (done.exit_code, done.stdout) == (0, "2 documents: 2 stored; 2 references\n")
    while "without_memories_yet: 0" not in command(running, "kb", "show", "later").stdout:
        time.sleep(0.05)


def test_knowledge_bases_are_created_listed_shown_and_deleted(running: Service) -> None:
    created = command(running, "kb", "create", "empty", "--description", "nothing yet")
    assert created.stdout == "created empty\n"
    again = command(running, "kb", "create", "empty")
    assert (again.exit_code, "there already" in again.stderr) == (1, True)
    listed = command(running, "kb", "list").stdout
    assert "empty" in listed
    assert "nothing yet" in listed
    shown = command(running, "kb", "show", "empty").stdout
    assert "state: ready" in shown
    assert "reference_count: 0" in shown
    assert command(running, "kb", "delete", "empty", "--yes").exit_code == 0
    gone = command(running, "kb", "show", "empty")
    assert (gone.exit_code, "no knowledge base is called 'empty'" in gone.stderr) == (1, True)


def test_a_service_that_is_not_there_is_named(running: Service, tmp_path: Path) -> None:
    nobody = Service(running.process, "127.0.0.1:1", running.log)
    done = command(nobody, "kb", "list")
    assert done.exit_code == 1
    assert "memory-service serve" in done.stderr
    useless = command(running, "ingest", tmp_path, "--model", "m", "--bundle", "b")
    assert (useless.exit_code, "--model, --bundle: only with --workers" in useless.stderr) == (1, True)
    missing = command(running, "ingest", tmp_path / "none.jsonl")
    assert missing.exit_code == 1
    assert "does not exist" in missing.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--bundle", "none"], "/none: name its folder with --bundle"),
        (["--model", "nowhere"], "nowhere"),
        (["--store", "ftp://x"], "ftp://x"),
        ([], "no embedder"),
        (["--port-file", "nowhere/port"], "nowhere/port"),
    ],
)
def test_serve_says_what_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["serve", "--listen", "127.0.0.1:0", "--store", f"file://{tmp_path}/x", *options])
    assert refused.exit_code == 1
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith("error: ")]
    assert says in line
    assert "listening" not in refused.output
    assert not (tmp_path / "x").exists() or "none" not in options, "a wrong bundle leaves no store"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_taken_address_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr("memory_service.write.model_encoder.ModelEncoder.open", None)  # must not be called
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"{host}:{taken.getsockname()[1]}"
        refused = CliRunner().invoke(app, ["serve", "--listen", listen, "--store", f"file://{tmp_path}/x"])
    assert refused.exit_code == 1
    assert f"error: cannot listen on {listen}: the address is taken or not ours; choose" in refused.stderr
    assert not (tmp_path / "x").exists()


def test_documents_are_listed_shown_and_deleted(running: Service, tmp_path: Path) -> None:
    notes = [{"key": f"notes/{n}", "title": "T", "text": f"Note {n}.", "metadata": {"n": n}} for n in range(4)]
    facts = write_jsonl(tmp_path / "notes.jsonl", *notes, {"key": "other", "text": "Something else."})
    assert command(running, "ingest", facts, "--kb", "docs").exit_code == 0
    listed = command(running, "documents", "list", "docs", "--prefix", "notes/")
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    assert [(row[0], row[1], row[3]) for row in rows] == [(f"notes/{n}", "1", "written") for n in range(4)]
    shown = command(running, "documents", "show", "docs", "notes/2").stdout
    assert shown.startswith("key: notes/2\ntitle: T\n")
    assert shown.endswith("T\nNote 2.\n")
    assert "metadata n: 2\n" in shown
    asked = command(running, "documents", "delete", "docs", "notes/0", said="n\n")
    assert (asked.exit_code, "delete 1 document " in asked.output) == (1, True)
    some = command(running, "documents", "delete", "docs", "notes/0", "none", "--yes")
    assert (some.exit_code, some.stdout) == (1, "deleted 1 document from docs\n")
    assert "not there: none\n" in some.stderr
    nothing = command(running, "documents", "delete", "docs", "none")  # and no question about it
    assert (nothing.exit_code, nothing.output) == (1, "not there: none\ndeleted 0 documents from docs\n")
    rest = command(running, "documents", "delete", "docs", "--prefix", "notes/", "-y")
    assert (rest.exit_code, rest.stdout) == (0, "deleted 3 documents from docs\n")
    assert command(running, "documents", "list", "docs").stdout.split("\t")[0] == "other"
    assert command(running, "documents", "delete", "docs", "--yes").exit_code == 2
    gone = command(running, "documents", "show", "docs", "notes/2")
    assert (gone.exit_code, "no document" in gone.stderr) == (1, True)


def test_a_file_is_deleted_with_its_rows_and_a_folder_with_its_files(
    running: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms, inner = tmp_path.resolve() / "rooms.csv", tmp_path.resolve() / "inner"
    inner.mkdir()
    rooms.write_text("room,floor\nOak,1\nElm,2\n")
    (tmp_path / "rooms.csv.txt").write_text("About the rooms.")
    (inner / "a.txt").write_text("One note.")
    (inner / "b.txt").write_text("Another note.")
    (inner / "rooms.csv").write_text("room\nAsh\n")
    monkeypatch.chdir(tmp_path)

    def ingest() -> None:
        assert command(running, "ingest", tmp_path, "--kb", "files").exit_code == 0

    def delete(*names: object) -> tuple[int, str]:
        done = command(running, "documents", "delete", "files", *names, "--yes")
        return done.exit_code, done.stderr if done.exit_code else done.stdout

    def left() -> set[str]:
        lines = command(running, "documents", "list", "files").stdout.splitlines()
        return {Path(line.split("\t")[0]).relative_to(tmp_path.resolve()).as_posix() for line in lines}

    ingest()
    every = left()
    assert len(every) == 6
    assert delete("./rooms.csv") == (0, "deleted 2 documents from files\n")  # its path, though another is called so
    assert every - left() == {"rooms.csv#row=1", "rooms.csv#row=2"}
    assert delete("rooms.csv") == (0, "deleted 1 document from files\n")
    ingest()
    code, said = delete("ROOMS.CSV")
    assert (code, f"name one of {inner}/rooms.csv, {rooms}\n" in said) == (1, True), said
    assert left() == every
    assert delete(f"{rooms}#row=2", "b") == (0, "deleted 2 documents from files\n")
    assert delete(inner) == (0, "deleted 2 documents from files\n")
    assert left() == {"rooms.csv#row=1", "rooms.csv.txt"}
    assert delete("room") == (1, "not there: room\n")


LONG = "k" * 3000


@pytest.mark.parametrize(
    "arguments",
    [
        ("ingest", "long.jsonl", "--kb", "long"),
        ("ingest", "long.jsonl", "--share", LONG),
        ("documents", "show", "long", LONG),
        ("documents", "delete", "long", LONG, "--yes"),
        ("kb", "create", LONG),
        ("backup", "long", f"s4://{LONG}"),
        ("restore", ".", "again", "--backup", LONG),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_what_is_refused_is_shown_by_its_beginning(
    running: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "long.jsonl", {"key": LONG, "text": "A text."})
    (tmp_path / "page.md").write_text("A page.")
    command(running, "ingest", "page.md", "--kb", "long")
    refused = command(running, *arguments)
    assert refused.exit_code == 1
    assert (80 * "k" in refused.output, 201 * "k" in refused.output) == (True, False), refused.output


def test_lists_are_whole_on_a_narrow_terminal(running: Service, tmp_path: Path) -> None:
    name, backups, keys = "a-knowledge-base-of-a-team", str(tmp_path / "backups"), ["--keys", str(tmp_path / "keys")]
    command(running, "kb", "create", name, "--description", "what the team has written down until now")
    saved = command(running, "backup", name, backups).stdout

    def lines(*arguments: str) -> list[str]:
        done = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "40"}, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return [" ".join(line.split()) for line in done.stdout.splitlines()]

    backup = saved.split("/")[-1].strip()
    assert lines("backups", backups)[1:] == [f"{backup} {name} 0 0 0.0"]
    assert len(f"{backup} {name} 0 0 0.0") < 80
    (base,) = [one for one in lines("kb", "list", "--address", running.address) if one.startswith(name)]
    assert base.endswith("what the team has written down until now")
    created = CliRunner().invoke(app, ["keys", "create", "nightly", "--grant", f"{name}:read", *keys])
    key = created.stdout.split("_")[1]
    assert any(one.startswith(f"{key} nightly {name}:read ") for one in lines("keys", "list", *keys))
    usage = lines("kb", "usage", name, "--address", running.address)
    assert "of these, never read 0 0 0 0" in usage


def test_what_others_wrote_sends_no_commands_to_a_terminal(running: Service, tmp_path: Path) -> None:
    assert command(running, "kb", "create", "hostile", "--description", "[/red]\x1b[2J").exit_code == 0
    for shown in (command(running, "kb", "list"), command(running, "kb", "show", "hostile")):
        assert "[/red]\u241b[2J" in "".join(shown.stdout.split())
    hostile = write_jsonl(tmp_path / "h.jsonl", {"key": "h\x1b[2J", "title": "\x07", "text": "a\x1b]0;x"})
    assert command(running, "ingest", hostile, "--kb", "hostile").exit_code == 0
    said = command(running, "documents", "list", "hostile").stdout
    said += command(running, "documents", "show", "hostile", "h\x1b[2J").stdout
    assert "h\u241b[2J\t" in said
    assert not set(said) & {"\x1b", "\x07"}
