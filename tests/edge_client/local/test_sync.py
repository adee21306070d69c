"""Documents follow their files: one name for a file, what is gone is dropped, changes are followed."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from unittest.mock import Mock

import pytest

from edge_client.cli.remember import POLITENESS, _watch
from edge_client.errors import StorageError
from edge_client.local.folder import DocumentOutcome, LocalKnowledgeBases, remember
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.sync import FileSync
from edge_client.local.writer import MemoryWriter
from edge_client.model import EdgeModel
from edge_client.settings import EdgeSettings
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory3.formats import FileDocument, Report, find_sources, read_documents
from memory3.formats.naming import Naming
from tests.edge_client.cli.conftest import run
from tests.edge_client.local.conftest import remembered


def keys(tiny: Bundle, name: str = "mine") -> list[str]:
    bases = LocalKnowledgeBases(Path(os.environ["EDGE_CLIENT_LOCAL"]), tiny)
    try:
        return [document.key for document in bases.documents().get(name, [])]
    finally:
        bases.close()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "rent.md").write_text("The rent is 700.")
    (folder / "deep" / "key.txt").write_text("The key lies below the mat.")
    return folder


def test_a_file_is_one_document_however_it_is_typed_and_two_folders_have_two(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = notes.parent / "other" / "rent.md"
    other.parent.mkdir()
    other.write_text("The rent is 1,200.")
    (notes.parent / "link").symlink_to(notes)
    monkeypatch.chdir(notes)
    for typed in ("rent.md", "../notes/rent.md", "../link/rent.md", notes / "rent.md"):
        remembered(tiny, typed)
    monkeypatch.chdir(other.parent)
    remembered(tiny, "rent.md")
    assert keys(tiny) == [str(notes / "rent.md"), str(other)]


def test_a_name_stands_in_for_a_file_or_a_folder(tiny: Bundle, notes: Path) -> None:
    remembered(tiny, notes, "--name", "flat")
    remembered(tiny, notes / "rent.md", "--name", "rent")
    assert keys(tiny) == ["flat/deep/key.txt", "flat/rent.md", "rent"]
    (notes / "rent.md").unlink()
    assert "1 dropped, 1 unchanged" in remembered(tiny, notes, "--name", "flat")
    assert keys(tiny) == ["flat/deep/key.txt", "rent"]
    refused = run("remember", notes, notes / "deep", "--name", "x", "--bundle", tiny.folder)
    assert (refused.exit_code, "a name is for one" in refused.stderr) == (1, True)


def test_what_left_a_folder_is_dropped_unless_it_shall_be_kept(tiny: Bundle, notes: Path) -> None:
    outside = notes.parent / "notes2.txt"
    outside.write_text("Not in the folder.")
    remembered(tiny, notes, outside)
    (notes / "rent.md").rename(notes / "lease.md")
    (notes / "deep" / "key.txt").unlink()
    assert "1 stored" in remembered(tiny, notes, "--keep")
    assert len(keys(tiny)) == 4
    result = run("remember", notes, "--bundle", tiny.folder)
    assert "2 dropped, 1 unchanged" in result.stdout
    assert f"dropped {notes}/rent.md" in result.stderr
    assert "1 of 1 document," in result.stderr, "what is dropped is not counted as read"
    assert keys(tiny) == [str(notes / "lease.md"), str(outside)]
    (notes / "lease.md").unlink()
    assert "1 dropped" in remembered(tiny, notes)
    outside.unlink()
    gone = run("remember", outside, "--bundle", tiny.folder)
    assert (gone.exit_code, f"edge-client forget {outside}" in gone.stderr) == (1, True)
    assert run("forget", outside).exit_code == 0
    assert keys(tiny) == []


def test_a_document_is_forgotten_by_each_name_that_a_question_about_it_takes(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(notes)
    cafe = notes / "cafe\u0301.md"  # as macOS writes it
    cafe.write_text("# Breakfast\n\nThe café opens at 7.")
    for name in (f"../notes/{cafe.name}", cafe.name, "café.md", "CAFÉ", "breakfast", f"mine: {cafe}"):
        remembered(tiny, notes)
        with closing(LocalKnowledgeBases(Path(os.environ["EDGE_CLIENT_LOCAL"]), tiny)) as bases:
            assert bases.document(name)[1] == [str(cafe)], name
        assert run("forget", name).stdout == f"forgot {cafe}\n", name
    assert len(keys(tiny)) == 2


def test_a_name_that_several_documents_have_forgets_none_of_them(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(notes)
    (notes / "deep" / "rent.md").write_text("The rent is 800.")
    remembered(tiny, notes)
    several = run("forget", "RENT.md")
    assert (several.exit_code, f"name one of {notes}/deep/rent.md, {notes}/rent.md" in several.stderr) == (1, True)
    assert len(keys(tiny)) == 3
    assert run("forget", "rent.md").stdout == f"forgot {notes}/rent.md\n", "the one of the working folder"


def test_an_empty_name_and_one_that_no_file_can_have_forget_nothing(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(notes)
    remembered(tiny, notes)
    for name in ("", " ", "~nobody-is-called-so/rent.md", "x" * 5000):
        result = run("forget", name)
        assert (result.exit_code, result.stderr.partition(":")[0]) == (1, "MISSING_FILE")
    assert len(keys(tiny)) == 2


def test_a_folder_is_forgotten_by_the_name_that_stands_in_for_it(tiny: Bundle, notes: Path) -> None:
    remembered(tiny, notes, "--name", "flat")
    assert run("forget", "flat").stdout == "forgot flat/deep/key.txt\nforgot flat/rent.md\n"


def test_a_file_that_cannot_be_read_now_keeps_its_document_and_an_empty_one_loses_it(tiny: Bundle, notes: Path) -> None:
    remembered(tiny, notes)
    (notes / "rent.md").write_bytes(b"\x00\x00")
    (notes / "deep" / "key.txt").write_text("\n")
    remembered(tiny, notes, code=1)
    assert keys(tiny) == [str(notes / "rent.md")]


def test_what_is_in_a_folder_that_cannot_be_opened_now_stays(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered(tiny, notes)
    listed = Path.iterdir

    def refused(folder: Path) -> Iterator[Path]:
        if folder.name == "deep":
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refused)
    (notes / "rent.md").write_text("The rent is 750.")
    result = run("remember", notes, "--bundle", tiny.folder)
    assert (result.exit_code, "1 stored" in result.stdout) == (0, True)
    assert f"skipped 1 not opened: {notes}/deep (Permission denied)" in result.stderr
    assert keys(tiny) == [str(notes / "deep/key.txt"), str(notes / "rent.md")]
    with pytest.raises(InvalidInput, match="deep is not opened: Permission denied"):
        find_sources([notes / "deep"])


def test_a_file_is_forgotten_with_all_its_records_and_what_was_begun_of_it(tiny: Bundle, notes: Path) -> None:
    (notes / "prices.csv").write_text("item,price\nmug,4\ncup,5\n")
    (notes / "deep" / "staff.csv").write_text("key,phone\nanna,1\nbob,2\n")
    remembered(tiny, notes)
    base = LocalKnowledgeBases(Path(os.environ["EDGE_CLIENT_LOCAL"]), tiny).base("mine")
    base.begin(str(notes / "prices.csv"))  # as if writing it had broken off
    base.close()
    assert len(run("forget", notes / "prices.csv").stdout.splitlines()) == 3
    assert sorted(keys(tiny)) == [str(notes / "deep/key.txt"), str(notes / "rent.md"), "anna", "bob"]
    assert run("forget", notes / "deep" / "staff.csv", "--kb", "mine").stdout == "forgot anna\nforgot bob\n"
    assert run("forget", notes).exit_code == 0
    assert keys(tiny) == []


def test_a_correction_stays_when_its_unchanged_file_is_remembered_again(
    tiny: Bundle, other: Bundle, notes: Path
) -> None:
    rent = notes / "rent.md"
    remembered(tiny, rent)
    with EdgeModel.open(tiny.folder, offline=True) as model:
        assert model.correct(str(rent), 0, "The rent is 750.")
    assert remembered(tiny, rent) == "1 document: 1 unchanged; 1 memory"
    assert "1 stored" in remembered(other, "--anew")
    assert remembered(other, rent) == "1 document: 1 unchanged; 1 memory", "what was written anew is corrected too"
    rent.write_text("The rent is 780.")
    assert "1 stored" in remembered(other, rent)


def test_records_that_left_their_file_are_dropped(tiny: Bundle, notes: Path) -> None:
    records = [{"key": name, "text": f"{name} is here."} for name in ("a", "b", "c")]
    facts = notes / "facts.jsonl"
    facts.write_text("\n".join(map(json.dumps, records)))
    remembered(tiny, notes)
    facts.write_text("\n".join(map(json.dumps, records[:2])))
    assert "1 dropped, 4 unchanged" in remembered(tiny, notes)
    facts.write_text("{")  # what its lines were cannot be known
    remembered(tiny, notes, code=1)
    assert [key for key in keys(tiny) if len(key) == 1] == ["a", "b"]
    facts.unlink()
    assert "2 dropped" in remembered(tiny, notes)


def test_the_key_of_an_earlier_release_gives_way_to_the_path_of_the_same_text(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(notes)
    writer = MemoryWriter(tiny)
    bases = LocalKnowledgeBases(Path(os.environ["EDGE_CLIENT_LOCAL"]), tiny)
    for name in ("rent.md", "deep/key.txt"):
        list(remember(bases.base("mine", writer.embedder.dim), writer, read_documents(Path(name))))
    bases.close()
    assert keys(tiny) == ["deep/key.txt", "rent.md"]
    (notes / "rent.md").write_text("The rent is 750.")
    remembered(tiny, "rent.md", "deep/key.txt")
    assert keys(tiny) == [str(notes / "deep/key.txt"), str(notes / "rent.md"), "rent.md"]


def test_a_pattern_drops_what_no_longer_exists(notes: Path) -> None:
    naming = Naming((notes / "**" / "*.md",))
    stored = {str(path): str(path) for path in (notes / "gone.md", notes / "deep" / "key.txt")}
    assert naming.gone(stored, {str(notes / "rent.md")}, Report()) == [str(notes / "gone.md")]


def test_a_folder_is_watched_until_it_is_interrupted(tiny: Bundle, notes: Path) -> None:
    command = [sys.executable, "-m", "edge_client.cli.main", "remember", str(notes), "--watch"]
    with subprocess.Popen([*command, "--bundle", str(tiny.folder)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        seen = ""
        while "watching" not in seen:
            seen += process.stderr.readline()
        priority = os.getpriority(os.PRIO_PROCESS, process.pid)
        (notes / "new.txt").write_text("A new one.")
        (notes / "rent.md").unlink()
        while not ("stored" in seen and "dropped" in seen):
            seen += process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert keys(tiny) == [str(notes / "deep" / "key.txt"), str(notes / "new.txt")]
    assert priority == min(19, os.getpriority(os.PRIO_PROCESS, 0) + POLITENESS), "it steps back behind others"


def test_what_a_full_disk_left_undone_is_done_once_there_is_room(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("no room", reason="DISK_FULL")

    writer = MemoryWriter(tiny)
    with closing(LocalKnowledgeBases(Path(os.environ["EDGE_CLIENT_LOCAL"]), tiny)) as bases:
        sync = FileSync(lambda _: bases.base("mine", writer.embedder.dim), writer, Naming((notes,)))
        list(sync.bring(sync.look()))
        for spoiled in ("add", "delete"):
            (notes / "rent.md").unlink(missing_ok=True)
            (notes / f"{spoiled}.md").write_text("New.")
            with monkeypatch.context() as patched:
                patched.setattr(LocalKnowledgeBase, spoiled, full)
                with pytest.raises(StorageError):
                    list(sync.bring(sync.look()))
        outcomes = [one.outcome for one in sync.bring(sync.look()) if one.outcome != "writing"]
        assert sorted(outcomes) == ["dropped", "unchanged", "unchanged"]
    assert keys(tiny) == [str(notes / name) for name in ("add.md", "deep/key.txt", "delete.md")]


def test_decomposed_letters_are_found_as_they_are_typed(tiny: Bundle, tmp_path: Path) -> None:
    (tmp_path / unicodedata.normalize("NFD", "Büro.txt")).write_text(unicodedata.normalize("NFD", "Der Schlüssel."))
    remembered(tiny, tmp_path)
    with EdgeModel.open(tiny.folder, offline=True) as model:
        (document,) = model.local.documents()["mine"]
        assert document.title == "Büro"
        assert model.ask("Büro?", max_tokens=1).memories[0].text == "Büro\nDer Schlüssel."
        assert model.correct(document.key, 0, unicodedata.normalize("NFD", "Die Tür."))
        assert model.ask("Büro?", max_tokens=1).memories[0].text == "Büro\nDie Tür."


def test_two_processes_may_write_the_same_document(tiny: Bundle, tmp_path: Path) -> None:
    writer = MemoryWriter(tiny)
    long = FileDocument("long", "long", "", " ".join(f"Fact {n} is here." for n in range(24)))
    with closing(LocalKnowledgeBases(tmp_path, tiny)) as bases:
        base = bases.base("mine", writer.embedder.dim)
        both = [remember(base, writer, [long]) for _ in range(2)]
        together = [one for pair in zip_longest(*both) for one in pair if one is not None]
        assert [one.outcome for one in together if one.outcome != "writing"] == ["stored", "stored"]
        assert [hit.chunk_number for hit in base.memories_of(["long"])] == [*range(together[-1].references)]


def test_a_watch_outlives_an_error_of_the_disk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = Mock()
    folders.look.side_effect = [StorageError("no room", reason="DISK_FULL"), [], KeyboardInterrupt]
    folders.bring.return_value = [DocumentOutcome("a.md", "a.md", "stored", 1, 1)]
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        _watch(folders)
    assert re.search(r"DISK_FULL: no room.*stored a\.md", capsys.readouterr().err, re.DOTALL)


def test_a_file_of_the_same_size_and_time_is_seen_to_have_changed(notes: Path) -> None:
    sync = FileSync(Mock(), Mock(), Naming((notes,)))
    sync.look()
    before = (notes / "rent.md").stat()
    (notes / "rent.md").write_text("The rent is 800.")
    os.utime(notes / "rent.md", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sync.look() == [notes / "rent.md"]


def test_a_running_model_sees_bases_that_others_make_replace_and_remove(tiny: Bundle, notes: Path) -> None:
    with EdgeModel.open(tiny.folder, offline=True) as model:
        assert model.local.documents() == {}
        remembered(tiny, notes, "--kb", "late")
        assert [*model.local.documents()] == ["late"]
        (read, *_) = model.ask("Where is the key?", max_tokens=1).memories
        assert read.knowledge_base == "late"
        assert run("forget", "--all", "--yes", "--kb", "late").exit_code == 0
        remembered(tiny, notes / "rent.md", "--kb", "late")
        assert len(model.local.documents()["late"]) == 1
        assert run("forget", "--all", "--yes", "--kb", "late").exit_code == 0
        assert model.ask("Where is the key?", max_tokens=1).memories == ()


def test_the_store_is_the_users_and_nobody_elses(
    tiny: Bundle, notes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("EDGE_CLIENT_LOCAL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    remembered(tiny, notes)
    folder = EdgeSettings().local
    assert folder == tmp_path / "share" / "memory3-edge" / "local"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*/*")} == {0o600}
