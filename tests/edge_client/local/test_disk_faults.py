"""Errors of the operating system are no damage on a device: what failed says so, and works once the disk is well."""

import errno
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_client import EdgeModel
from edge_client.errors import StorageError
from edge_client.local.database import disk_errors
from memory3.codec.codec import ExactCodec
from memory3.codec.loading import load_codec
from memory3.errors import CorruptFile
from memory3.files.bundle import Bundle, replace_folder
from memory3.text.tokenizer import read_backend
from tests.disk_faults.programs import require_nothing_breaks
from tests.edge_client.cli.conftest import run


@pytest.mark.parametrize("depth", [1, pytest.param(12, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_failed_calls_at_any_file_of_a_device_are_no_damage_and_pass(tmp_path: Path, depth: int) -> None:
    require_nothing_breaks("device_store", 6, tmp_path, depth)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that shows `tmp_path`/store and cannot be written, which only root can make."""
    (tmp_path / "store").mkdir()
    folder = tmp_path / "read-only"
    folder.mkdir()
    bind = ["mount", "--bind", str(tmp_path / "store"), str(folder)]
    if os.geteuid() != 0 or subprocess.run(bind, check=False, capture_output=True).returncode:
        pytest.skip("a read-only folder needs the right to mount one")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_store_on_a_read_only_file_system_is_read_and_refuses_what_is_new(
    tiny: Bundle, read_only: Path, tmp_path: Path
) -> None:
    with EdgeModel.open(tiny.folder, offline=True, local=tmp_path / "store") as model:
        model.remember("Colour: red", key="a", title="Pump")
    subprocess.run(["mount", "-o", "remount,ro,bind", str(read_only)], check=True)
    with EdgeModel.open(tiny.folder, offline=True, local=read_only) as model:
        assert [m.document_key for m in model.ask("Pump", memory="exact", max_tokens=1).memories] == ["a"]
        with pytest.raises(StorageError) as refused:
            model.remember("Colour: blue", key="b", title="Lid")
        assert refused.value.reason == "NOT_WRITABLE"


def test_a_knowledge_base_without_room_for_its_beginning_is_filled_later(tiny: Bundle, tmp_path: Path) -> None:
    (tmp_path / "mine.memories").touch()  # what a full disk leaves
    note, local = tmp_path / "note.txt", ["--local", tmp_path]
    note.write_text("The safe opens with 4711.")
    listed = run("remembered", *local)
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert "mine.memories is empty: fill it with `edge-client remember`" in listed.stderr
    asked = run("ask", "Where is the key?", "--bundle", tiny.folder, "--max-tokens", 1, "--offline", *local)
    assert asked.exit_code == 0, asked.output
    stored = run("remember", note, "--bundle", tiny.folder, *local)
    assert (stored.exit_code, stored.stdout) == (0, "1 document: 1 stored; 1 memory\n")


def test_what_sqlite_calls_damage_is_none_where_a_check_finds_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.memories"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE a (b)")
    said = "database disk image is malformed"
    with pytest.raises(StorageError, match="a check finds the file whole") as passing, disk_errors(path):
        raise sqlite3.DatabaseError(said)
    assert passing.value.reason == "NOT_WRITABLE"
    path.write_bytes(path.read_bytes()[:100] + bytes(8092))
    with pytest.raises(CorruptFile), disk_errors(path):
        raise sqlite3.DatabaseError(said)


@pytest.mark.parametrize("message", ["disk I/O error", "out of memory", "unable to open database file"])
def test_a_disk_with_room_is_not_called_full(tmp_path: Path, message: str) -> None:
    with pytest.raises(StorageError, match="nothing that was stored is lost") as failed, disk_errors(tmp_path / "a"):
        raise sqlite3.OperationalError(message)
    assert failed.value.reason == "NOT_WRITABLE"


@pytest.mark.parametrize(("message", "free"), [("database or disk is full", 1 << 40), ("disk I/O error", 4096)])
def test_a_full_disk_is_named(tmp_path: Path, message: str, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_client.local.database.shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(StorageError, match="make room") as failed, disk_errors(tmp_path / "a"):
        raise sqlite3.OperationalError(message)
    assert failed.value.reason == "DISK_FULL"


def test_files_that_cannot_be_read_now_are_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    ExactCodec(8).save(path)

    def failing(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", failing)
    for read in (load_codec, read_backend):
        with pytest.raises(OSError, match="Too many open files"):
            read(path)


def test_a_folder_that_cannot_be_replaced_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging, folder, replaced = tmp_path / "new", tmp_path / "bundle", os.replace
    staging.mkdir()
    folder.mkdir()
    (folder / "old").touch()

    def failing(source: Path, target: Path) -> None:
        if source == staging:
            raise OSError(errno.EIO, "Input/output error")
        replaced(source, target)

    monkeypatch.setattr("memory3.files.bundle.os.replace", failing)
    with pytest.raises(OSError, match="Input/output"):
        replace_folder(staging, folder)
    assert (folder / "old").exists()
    monkeypatch.undo()
    folder.rename(tmp_path / "new.old")  # a process was killed between the two
    replace_folder(staging, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]
