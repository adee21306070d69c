"""Backups over the wire: what is restored is what was saved, in a folder or in S3, whatever is written meanwhile."""

import contextlib
import hashlib
import itertools
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.files import knowledge_file
from memory_service.archive import Archive, Backup
from memory_service.cli import app
from memory_service.client.backup import back_up, restore
from memory_service.client.connection import RemoteError
from memory_service.encoder import EncodedReferences
from memory_service.errors import StoreUnavailable
from testing.encoders import HashEncoder
from tests.memory_service.encoders import Gated
from tests.memory_service.running import Client, contents, document, eventually, ingest_later, ingest_requests, running

DOCUMENTS = [document(f"d{n}", f"Text {n}. " * (n + 1), title=f"T{n}", number=str(n)) for n in range(12)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, str]]:
    folder = tmp_path_factory.mktemp("service")
    settings = {"store": f"file://{folder}/s", "message_limit_bytes": 1 << 20}
    with running(folder, HashEncoder(), **settings) as (client, server):
        client.ingest("facts", *DOCUMENTS)
        yield client, f"127.0.0.1:{server.port}"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="backups")
    yield
    server.stop()


def change_head(folder: Path, **values: Any) -> None:
    """Another head in the backup of a folder, which is whole otherwise."""
    archive = Archive(str(folder))
    path = folder / archive.backup().file
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        knowledge_file.replace_head(database, replace(knowledge_file.read_head(database), **values))
    staged = path.rename(folder / "changed")
    archive.add(staged)
    archive.prune(1)


def backups(archive: Archive) -> list[Backup]:
    """The complete ones, oldest first."""
    return [archive.read(file) for file in archive.files()]


@pytest.mark.parametrize("place", ["folder", "s3://backups/of/facts"])
def test_what_is_restored_is_what_was_saved(service: tuple[Client, str], tmp_path: Path, s3: None, place: str) -> None:
    client, address = service
    target = str(tmp_path / "backup") if place == "folder" else place
    name = f"from-{place[:2]}"
    for _ in range(2):  # the second takes the place of the first
        saved = CliRunner().invoke(app, ["backup", "facts", target, "--address", address])
        assert saved.exit_code == 0, saved.output
        assert "saved 12 documents" in saved.output
    restored = CliRunner().invoke(app, ["restore", target, name, "--address", address])
    assert restored.exit_code == 0, restored.output
    assert contents(client, name) == contents(client, "facts")
    # The same text again is no new document: the restored one has the hash of the first.
    assert client.ingest(name, DOCUMENTS[3])[1].acknowledged.outcome == 3
    before, after = ([hit.memory_id for hit in client.hits(kb, "x", 12)] for kb in ("facts", name))
    assert before == after


def test_a_backup_that_broke_off_leaves_the_one_before(service: tuple[Client, str], tmp_path: Path) -> None:
    _, address = service

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(address, "facts", Archive(str(tmp_path)), stop)
    with pytest.raises(MissingFile, match="no whole backup"):
        restore(address, "too-early", Archive(str(tmp_path)))
    saved = back_up(address, "facts", Archive(str(tmp_path)))
    with pytest.raises(KeyboardInterrupt):
        back_up(address, "facts", Archive(str(tmp_path)), stop)
    assert restore(address, "older", Archive(str(tmp_path))).memories == saved.memories
    assert names(tmp_path) == [saved.file.replace("memories", "json"), saved.file]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("place", ["folder", "s3://backups/of/facts"])
def test_a_failed_upload_leaves_the_last_good_backup(
    service: tuple[Client, str], tmp_path: Path, s3: None, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = service
    target = str(tmp_path / "backup") if place == "folder" else place
    saved = back_up(address, "facts", Archive(target))
    for refused in (".memories", ".json"):
        archive = Archive(target)
        with monkeypatch.context() as patched:
            patched.setattr(archive, "_store", Refusing(archive._store, refused))
            patched.setattr(Path, "replace", Refusing(Path, refused).replace)
            with pytest.raises(StoreUnavailable, match="no more room"):
                back_up(address, "facts", archive)
        assert backups(Archive(target)) == [saved]
    newer = back_up(address, "facts", Archive(target), keep=2)
    assert backups(Archive(target)) == [saved, newer]  # and what the failed ones left is gone
    assert sorted(Archive(target)._names()) == sorted(
        name for one in (saved, newer) for name in (one.file, one.file.replace("memories", "json"))
    )


class Refusing:
    """A place that does not take files of one kind."""

    def __init__(self, place: Any, suffix: str) -> None:
        self._place, self._suffix = place, suffix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def _require(self, name: str) -> None:
        if name.endswith(self._suffix):
            raise OSError("no more room")

    def put(self, name: str, content: Any) -> None:
        self._require(name)
        self._place.put(name, content)

    @property
    def replace(self) -> Any:
        refusing = self

        def moved(path: Path, target: Path) -> Path:
            refusing._require(str(target))
            path.rename(target)
            return target

        return moved


def test_what_a_killed_run_left_is_removed_and_a_run_under_way_is_not_disturbed(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path))
    with archive.staging() as held:
        (held / "half").touch()
        killed = tmp_path / ".backup-killed"
        killed.mkdir()
        (killed / "half").touch()
        (tmp_path / "20200101T000000.000Z.memories").touch()
        with Archive(str(tmp_path)).staging() as other:
            assert (held / "half").exists()
            assert not killed.exists()
            (other / "file").touch()
            Archive(str(tmp_path)).add(other / "file")
    (backup,) = backups(archive)
    assert names(tmp_path) == [backup.file.replace("memories", "json"), backup.file]


@pytest.mark.parametrize("place", ["folder", "s3://backups/at-once"])
@pytest.mark.parametrize("keep", [1, 9])
def test_two_backups_into_one_place_at_once_are_both_whole(tmp_path: Path, s3: None, place: str, keep: int) -> None:
    target = str(tmp_path) if place == "folder" else f"{place}/{keep}"
    first, second = Archive(target), Archive(target)

    def save(archive: Archive) -> Backup:
        with archive.staging() as folder:
            (folder / "staged").write_text(f"{archive is first}")
            backup = archive.add(folder / "staged")
        archive.prune(keep)
        return backup

    within = Between(first._store, lambda: save(second))
    first._store = within
    saved = save(first)
    assert backups(second) == ([saved, *within.made] if keep > 1 else within.made)
    for one in backups(second):
        with second.verified(one) as path:
            assert path.read_text() == str(one == saved)
    assert len(second._names()) == 2 * min(keep, 2)


class Between:
    """A place where another backup is made between the file and the record of the first one."""

    def __init__(self, place: Any, save: Callable[[], Backup]) -> None:
        self._place, self._save = place, save
        self.made: list[Backup] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def put(self, name: str, content: Any) -> None:
        if name.endswith(".json"):
            self.made.append(self._save())
        self._place.put(name, content)


def test_two_backups_of_one_millisecond_have_names_of_their_own(tmp_path: Path) -> None:
    ahead = tmp_path / "99990101T000000.000Z.memories"
    ahead.touch()
    archive = Archive(str(tmp_path))
    made = []
    for n in range(2):
        (tmp_path / "staged").write_text(str(n))
        made.append(archive.add(tmp_path / "staged"))
        (hidden := tmp_path / "hidden").mkdir(exist_ok=True)
        for path in tmp_path.glob(f"{made[-1].file[:-9]}*"):  # as the other run did not see it
            path.rename(hidden / path.name)
    assert made[0].file[:20] == made[1].file[:20] == "99990101T000000.001Z"
    assert len(backups(Archive(str(tmp_path / "hidden")))) == 2


def test_what_is_removed_while_it_is_listed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(str(tmp_path))

    def saved() -> Backup:
        (tmp_path / "staged").touch()
        return archive.add(tmp_path / "staged", knowledge_base="facts")

    gone, files = [saved().file], archive.files
    kept = saved()
    monkeypatch.setattr(archive, "files", lambda: files() + [gone.pop() for _ in gone])
    archive.prune(1)
    assert archive.backup() == kept
    for listing in (archive.backups, lambda: archive.require_of("facts")):
        gone.append("20200101T000000.000Z-0000.memories")
        listing()
    assert archive.backups() == ([kept], [])


def test_the_newest_backups_are_kept_and_listed(service: tuple[Client, str], tmp_path: Path) -> None:
    _, address = service
    for _ in range(4):
        saved = CliRunner().invoke(app, ["backup", "facts", str(tmp_path), "--keep", "3", "--address", address])
        assert saved.exit_code == 0, saved.output
    found = backups(Archive(str(tmp_path)))
    assert (len(found), found[-1].documents, found[-1].knowledge_base) == (3, 12, "facts")
    assert found == sorted(found, key=lambda one: one.made_at)
    listed = CliRunner().invoke(app, ["backups", str(tmp_path), "--max-age-h", "1"])
    assert (listed.exit_code, listed.output.count("facts")) == (0, 3), listed.output
    old = CliRunner().invoke(app, ["backups", str(tmp_path), "--max-age-h", "0"])
    assert (old.exit_code, "at most 0 hours" in old.output) == (1, True)
    stamp = found[0].file[:18]
    restored = CliRunner().invoke(app, ["restore", str(tmp_path), "oldest", "--backup", stamp, "--address", address])
    assert restored.exit_code == 0, restored.output


@pytest.mark.parametrize("place", ["folder", "s3://backups/all"])
def test_the_backups_of_all_knowledge_bases_are_listed_and_checked_by_one_command(
    tmp_path: Path, s3: None, place: str
) -> None:
    target = str(tmp_path / "backups") if place == "folder" else place
    made = {}
    for name, below in {"facts": "", "wiki": "/wiki", "acme/notes": "/acme/notes"}.items():
        with (archive := Archive(f"{target}{below}")).staging() as folder:
            (folder / "staged").touch()
            made[f"{below}/"] = archive.add(folder / "staged", knowledge_base=name)

    def listed(*options: str) -> tuple[int, list[str], str]:
        shown = CliRunner().invoke(app, ["backups", target, *options])
        return shown.exit_code, [line.split()[0] for line in shown.stdout.splitlines()[1:]], shown.stderr

    files = [f"{below}{made[below].file}".lstrip("/") for below in ("/", "/acme/notes/", "/wiki/")]
    assert listed("--max-age-h", "1") == (0, files, "")
    code, found, said = listed("--max-age-h", "0")
    assert (code, found) == (1, files)
    assert [line.partition(": ")[0] for line in said.splitlines()] == [
        f"backups at {target}{below}" for below in ("", "/acme/notes", "/wiki")
    ]


@pytest.mark.parametrize("options", [[], ["--max-age-h", "1"]])
def test_a_place_without_backups_is_said_to_have_none_once(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "other").mkdir()
    shown = CliRunner().invoke(app, ["backups", str(tmp_path), *options])
    assert (shown.exit_code, shown.output) == (len(options) // 2, f"there is no complete backup at {tmp_path}\n")


def test_a_clock_that_was_ahead_once_makes_later_backups_no_younger(
    service: tuple[Client, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = service
    with monkeypatch.context() as ahead:
        ahead.setattr("memory_service.archive.datetime", InAYear)
        back_up(address, "facts", Archive(str(tmp_path)))
    for _ in range(2):
        now, made = datetime.now(timezone.utc), back_up(address, "facts", Archive(str(tmp_path)), keep=9)
        assert Archive(str(tmp_path)).backup() == made
        assert abs(made.made_at - now) < timedelta(hours=1)
    assert len(backups(Archive(str(tmp_path)))) == 3
    old = CliRunner().invoke(app, ["backups", str(tmp_path), "--max-age-h", "0"])
    assert (old.exit_code, "at most 0 hours" in old.output) == (1, True)


class InAYear(datetime):
    """A clock that is a year ahead."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now(timezone.utc) + timedelta(days=365)


def test_a_backup_replaces_none_of_another_knowledge_base(service: tuple[Client, str], tmp_path: Path) -> None:
    client, address = service
    client.ingest("other", document("a", "Text."))
    archive = Archive(str(tmp_path))
    back_up(address, "facts", archive)
    newest = back_up(address, "facts", archive, keep=2)
    (tmp_path / newest.file.replace("memories", "json")).write_text("harmed")
    before = names(tmp_path)
    with pytest.raises(InvalidInput, match="has backups of 'facts'"):
        back_up(address, "other", archive)
    assert names(tmp_path) == before


@pytest.mark.parametrize("there", [True, False])
def test_a_backup_that_fails_leaves_no_folder_that_was_not_there(
    service: tuple[Client, str], tmp_path: Path, there: bool
) -> None:
    target = tmp_path / "backups" / "nothere"
    if there:
        target.mkdir(parents=True)
    failed = CliRunner().invoke(app, ["backup", "nothere", str(target), "--address", service[1]])
    assert (failed.exit_code, "no knowledge base is called 'nothere'" in failed.output) == (1, True), failed.output
    assert (target.exists(), target.parent.exists()) == (there, there)


@pytest.mark.parametrize("target", ["/proc/backups", "file", "file/below", "s3:///"])
def test_a_place_that_cannot_hold_a_backup_is_refused_in_one_line(
    service: tuple[Client, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"\A.* cannot be used for a backup: .*\Z"):
        back_up(service[1], "facts", Archive(target))


def test_every_knowledge_base_is_saved_although_one_fails(
    service: tuple[Client, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, address = service
    client.ingest("another", document("a", "Text."))
    (tmp_path / "facts").write_text("in the way")
    saved = CliRunner().invoke(app, ["backup", "*", str(tmp_path), "--address", address])
    assert (saved.exit_code, "1 of" in saved.output) == (1, True), saved.output
    assert [one.documents for one in backups(Archive(str(tmp_path / "another")))] == [1]


def test_a_run_after_one_that_failed_saves_what_that_did_not(tmp_path: Path) -> None:
    with running(tmp_path, HashEncoder()) as (client, server):
        for name in ("first", "second"):
            client.ingest(name, document("a", "Text."))
        address, target = f"127.0.0.1:{server.port}", tmp_path / "backups"
        target.mkdir()
        (target / "second").write_text("in the way")

        def save(*options: str) -> tuple[int, str]:
            command = ["backup", "*", str(target), "--keep", "9", "--address", address, *options]
            done = CliRunner().invoke(app, command)
            return done.exit_code, done.stdout

        assert save()[0] == 1
        (saved,) = backups(Archive(str(target / "first")))
        (target / "second").unlink()
        code, said = save("--min-age-h", "1")
        assert (code, f"left out first: its backup {saved.file} is 0.0 hours old\n" in said) == (0, True), said
        assert backups(Archive(str(target / "first"))) == [saved]
        assert len(backups(Archive(str(target / "second")))) == 1
        assert save("--min-age-h", "0")[0] == 0
        assert [len(backups(Archive(str(target / name)))) for name in ("first", "second")] == [2, 2]


def test_a_backup_is_of_one_moment_at_any_write_rate(service: tuple[Client, str], tmp_path: Path) -> None:
    client, address = service
    client.ingest("busy", *[document(f"b{n}", f"Text {n}. " * 400) for n in range(12)])
    before = contents(client, "busy")
    written = itertools.count()
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            n = next(written)
            client.ingest("busy", document(f"b{n % 12}", f"Version {n}."), document(f"c{n}", f"New {n}."))
            client.delete("busy", f"b{(n + 5) % 12}")

    writing = threading.Thread(target=write)

    def begin(done: int, total: int) -> None:
        if not writing.is_alive():
            writing.start()
            while next(written) < 5:
                time.sleep(0.05)

    archive = Archive(str(tmp_path))
    try:
        assert back_up(address, "busy", archive, begin).documents == 12
        again = back_up(address, "busy", archive)  # while somebody writes all the time
    finally:
        stop.set()
        writing.join()
    assert again.documents > 0
    back_up(address, "busy", archive)
    restore(address, "busy-again", archive)
    assert contents(client, "busy-again") == contents(client, "busy") != before


def test_documents_without_memories_are_saved_so_and_written_after_they_are_restored(tmp_path: Path) -> None:
    encoder = Gated()
    settings = {"store": f"file://{tmp_path}/s", "warm_up": False, "cold_wait_s": 60}
    with running(tmp_path, encoder, **settings) as (client, server):
        encoder.stopping = server._draining.is_set
        address = f"127.0.0.1:{server.port}"
        ingest_later(client, "kb", document("a", "A text. " * 200, title="T", color="red"), document("b", "Another."))
        saved = back_up(address, "kb", Archive(str(tmp_path / "backup")))
        assert (saved.documents, saved.unwritten_documents) == (2, 2)
        restore(address, "restored", Archive(str(tmp_path / "backup")))
        assert client.statistics("restored").unwritten_document_count == 2
        encoder.let_go.set()
        eventually(lambda: not client.statistics("kb").unwritten_document_count)
        eventually(lambda: not client.statistics("restored").unwritten_document_count)
        assert contents(client, "restored") == contents(client, "kb")


def test_what_was_ingested_can_be_restored_however_often_title_and_overlap_are_repeated(tmp_path: Path) -> None:
    settings = {"store": f"file://{tmp_path}/s", "document_limit_bytes": 5000}
    with running(tmp_path, HashEncoder(), **settings) as (client, server):
        address = f"127.0.0.1:{server.port}"
        text, title = " ".join(f"Item {n} was agreed." for n in range(235)), " ".join(f"subject{n}" for n in range(59))
        request = ingest_requests("long", [document("a", text, title=title)])
        request[0].start.overlap_tokens = 64
        (answer,) = [one for one in client.ingestion.Ingest(iter(request), timeout=60) if one.HasField("acknowledged")]
        assert client.statistics("long").text_bytes > 10 * len(text)
        back_up(address, "long", Archive(str(tmp_path / "backup")))
        restore(address, "again", Archive(str(tmp_path / "backup")))
        assert contents(client, "again") == contents(client, "long")
        assert answer.acknowledged.reference_count == client.counts("again")[1]


def test_a_text_whose_references_would_be_too_much_to_restore_is_refused_when_it_is_ingested(tmp_path: Path) -> None:
    settings = {"store": f"file://{tmp_path}/s", "document_limit_bytes": 300}
    with running(tmp_path, HashEncoder(), **settings) as (client, _):
        long = document("a", "Yes. " * 60, title=" ".join(["w" * 9] * 95))
        request = ingest_requests("kb", [long])
        request[0].start.overlap_tokens = 64
        (answer,) = [one for one in client.ingestion.Ingest(iter(request), timeout=60) if one.HasField("failed")]
        assert "shorten" in answer.failed.status.message


def test_of_a_backup_with_a_document_that_is_refused_the_others_are_restored(
    service: tuple[Client, str], tmp_path: Path
) -> None:
    client, address = service
    back_up(address, "facts", Archive(str(tmp_path / "backup")))
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s", document_limit_bytes=1) as (small, server):
        with pytest.raises(RemoteError, match=r"of 12 were refused.*'d11'"):
            restore(f"127.0.0.1:{server.port}", "facts", Archive(str(tmp_path / "backup")))
        assert 0 < small.counts("facts")[0] < client.counts("facts")[0]


def test_a_backup_of_the_format_before_is_restored_listed_and_replaced(
    service: tuple[Client, str], tmp_path: Path
) -> None:
    client, address = service
    path = tmp_path / "backup.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript((Path(__file__).parents[1] / "fixtures" / "backup_4.sql").read_text())
    (tmp_path / "backup.sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    assert restore(address, "from-4", Archive(str(tmp_path))).documents == 2
    shown = client.document("from-4", "written")
    assert (shown.title, dict(shown.metadata)) == ("Title", {"color": "red"})
    assert Archive(str(tmp_path)).files() == ["backup.sqlite3"]
    newer = back_up(address, "facts", Archive(str(tmp_path)))
    assert names(tmp_path) == [newer.file.replace("memories", "json"), newer.file]


class LargeMemories(HashEncoder):
    """Payloads of 64 KiB: those of a large model that was not tuned have megabytes."""

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        made = super().encode(references)
        return EncodedReferences(made.vectors, [payload.ljust(1 << 16, b"0") for payload in made.payloads])


def test_a_page_of_a_snapshot_is_about_a_mebibyte_however_large_memories_and_metadata_are(tmp_path: Path) -> None:
    notes = {f"note{n}": "x" * 4000 for n in range(60)}
    with running(tmp_path, LargeMemories()) as (client, _):
        client.ingest("kb", document("a", "One two three four five. " * 2000), document("b", "Small."))
        responses = list(client.export("kb", snapshot=True))
        assert sum(len(one.page.memories) for one in responses) == client.counts("kb")[1] > 64
        assert max(one.ByteSize() for one in responses) < 5 << 18
        client.ingest("text", *(document(f"b{n}", ".", **notes) for n in range(9)))
        assert max(one.ByteSize() for one in client.export("text", snapshot=True)) < 6 << 18


def test_a_document_larger_than_a_message_is_saved_and_restored(service: tuple[Client, str], tmp_path: Path) -> None:
    client, address = service
    text = " ".join(f"Sentence {n} has quite a few words in it." for n in range(20_000))
    client.ingest("large", document("a", text), document("b", "Small."))
    back_up(address, "large", Archive(str(tmp_path)))
    assert Archive(str(tmp_path)).backup().bytes > 1 << 20
    restore(address, "large-again", Archive(str(tmp_path)))
    assert contents(client, "large-again") == contents(client, "large")


@pytest.mark.parametrize("suffix", ["json", "memories"])
@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_a_damaged_backup_restores_nothing(service: tuple[Client, str], tmp_path: Path, suffix: str, harm: str) -> None:
    _, address = service
    path = tmp_path / back_up(address, "facts", Archive(str(tmp_path))).file.replace("memories", suffix)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x40
    path.write_bytes(raw if harm == "flipped" else raw[:-7])
    if harm == "gone":
        path.unlink()
    with pytest.raises((CorruptFile, MissingFile)):
        restore(address, "damaged", Archive(str(tmp_path)))


def test_a_damaged_record_is_named_and_stands_in_the_way_of_no_other_backup(
    service: tuple[Client, str], tmp_path: Path
) -> None:
    client, address = service
    bad, good = (back_up(address, "facts", Archive(str(tmp_path)), keep=2) for _ in range(2))
    record = tmp_path / bad.file.replace("memories", "json")
    record.write_text(record.read_text()[:40])
    assert Archive(str(tmp_path)).backup() == good
    restore(address, "newest", Archive(str(tmp_path)))
    restore(address, "named", Archive(str(tmp_path)), stamp=good.file[:22])
    assert contents(client, "newest") == contents(client, "named") == contents(client, "facts")
    listed = CliRunner().invoke(app, ["backups", str(tmp_path)], env={"COLUMNS": "200"})
    assert (listed.exit_code, listed.stdout.count("facts"), good.file in listed.stdout) == (1, 1, True), listed.output
    assert f"{record.name} at {tmp_path} is not what was written" in listed.stderr
    with pytest.raises(CorruptFile, match=record.name):
        restore(address, "damaged", Archive(str(tmp_path)), stamp=bad.file)


def test_a_missing_certificate_is_not_reported_as_a_missing_backup(
    service: tuple[Client, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_SERVICE_CLIENT_CA", str(tmp_path / "ca.crt"))
    with pytest.raises(MissingFile, match=r"ca\.crt"):
        back_up(service[1], "facts", Archive(str(tmp_path / "backup")))


def test_a_backup_of_another_model_or_format_or_none_is_refused(service: tuple[Client, str], tmp_path: Path) -> None:
    _, address = service
    saved = back_up(address, "facts", Archive(str(tmp_path / "first")))
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    with contextlib.closing(sqlite3.connect(tmp_path / "first" / saved.file)) as database:
        database.execute("PRAGMA user_version = 99")
    change_head(tmp_path / "second", model_id="0" * 64)
    with pytest.raises(CorruptFile, match="not what was written"):
        restore(address, "third", Archive(str(tmp_path / "first")))
    staged = (tmp_path / "first" / saved.file).rename(tmp_path / "first" / "staged")
    Archive(str(tmp_path / "first")).add(staged)
    with pytest.raises(CorruptFile, match="this release"):
        restore(address, "third", Archive(str(tmp_path / "first")))
    refused = CliRunner().invoke(app, ["restore", str(tmp_path / "second"), "other", "--address", address])
    assert refused.exit_code == 1
    assert "runs the model of the backup" in refused.output
    with pytest.raises(InvalidInput, match="no location for a backup"):
        Archive("ftp://somewhere/else")
    none = CliRunner().invoke(app, ["restore", str(tmp_path / "none"), "other", "--address", address])
    assert (none.exit_code, "no backup at" in none.output, (tmp_path / "none").exists()) == (1, True, False)
