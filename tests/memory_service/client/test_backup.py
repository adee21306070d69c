"""Backups over the wire: what is restored is what was saved, in a folder or in S3, also while it is written to."""

import contextlib
import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory_service.cli import app
from memory_service.client.backup import CHECKSUM, DATABASE, Archive, back_up, restore
from testing.encoders import HashEncoder
from tests.memory_service.running import Client, document, running

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


def change_manifest(folder: Path, **values: Any) -> None:
    """Another manifest in a backup that is whole otherwise."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as database, database:
        ((raw,),) = database.execute("SELECT json FROM manifest")
        database.execute("UPDATE manifest SET json = ?", (json.dumps(json.loads(raw) | values),))
    (folder / CHECKSUM).write_text(hashlib.sha256((folder / DATABASE).read_bytes()).hexdigest())


def contents(client: Client, name: str) -> list[bytes]:
    """All memories and all documents, as bytes."""
    found, keys = [], set()
    for response in client.export(name):
        for memory in response.page.memories:
            keys.add(memory.document_key)
            memory.ClearField("vector")  # restored to float precision
            found.append(memory.SerializeToString(deterministic=True))
    for key in sorted(keys):
        shown = client.document(name, key)
        shown.ClearField("stored_at")
        found.append(shown.SerializeToString(deterministic=True))
    return found


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
    assert restore(address, "older", Archive(str(tmp_path))) == saved
    assert sorted(file.name for file in tmp_path.iterdir()) == [CHECKSUM, DATABASE]


def test_a_backup_ends_whole_although_documents_change_meanwhile(service: tuple[Client, str], tmp_path: Path) -> None:
    client, address = service
    client.ingest("busy", *[document(f"b{n}", f"Text {n}. " * 400) for n in range(12)])
    pages: list[int] = []

    def write(done: int, total: int) -> None:
        pages.append(done)
        client.ingest("busy", document("b0", f"Version {done}."), document(f"c{done}", f"New {done}."))
        client.delete("busy", "b5")

    archive = Archive(str(tmp_path))
    assert back_up(address, "busy", archive, write).document_count == 11 + len(pages)
    restore(address, "busy-again", archive)
    assert contents(client, "busy-again") == contents(client, "busy")


def test_a_document_larger_than_a_message_is_saved_and_restored(service: tuple[Client, str], tmp_path: Path) -> None:
    client, address = service
    text = " ".join(f"Sentence {n} has quite a few words in it." for n in range(20_000))
    client.ingest("large", document("a", text), document("b", "Small."))
    back_up(address, "large", Archive(str(tmp_path)))
    assert (tmp_path / DATABASE).stat().st_size > 1 << 20
    restore(address, "large-again", Archive(str(tmp_path)))
    assert contents(client, "large-again") == contents(client, "large")


@pytest.mark.parametrize("name", [CHECKSUM, DATABASE])
@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_a_damaged_backup_restores_nothing(service: tuple[Client, str], tmp_path: Path, name: str, harm: str) -> None:
    _, address = service
    back_up(address, "facts", Archive(str(tmp_path)))
    raw = bytearray((tmp_path / name).read_bytes())
    raw[len(raw) // 2] ^= 0x40
    (tmp_path / name).write_bytes(raw if harm == "flipped" else raw[:-7])
    if harm == "gone":
        (tmp_path / name).unlink()
    with pytest.raises((CorruptFile, MissingFile)):
        restore(address, "damaged", Archive(str(tmp_path)))


def test_a_backup_of_another_model_or_format_or_none_is_refused(service: tuple[Client, str], tmp_path: Path) -> None:
    _, address = service
    back_up(address, "facts", Archive(str(tmp_path / "first")))
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    change_manifest(tmp_path / "first", format=5)
    with pytest.raises(CorruptFile, match="this release"):
        restore(address, "third", Archive(str(tmp_path / "first")))
    identity = dict.fromkeys(("model_id", "codec_id", "memory_format_id", "embedder_id"), "0" * 64)
    change_manifest(tmp_path / "second", identity={**identity, "dimension": 32})
    refused = CliRunner().invoke(app, ["restore", str(tmp_path / "second"), "other", "--address", address])
    assert refused.exit_code == 1
    assert "runs the model of the backup" in refused.output
    with pytest.raises(InvalidInput, match="no place for a backup"):
        Archive("ftp://somewhere/else")
    none = CliRunner().invoke(app, ["restore", str(tmp_path / "none"), "other", "--address", address])
    assert (none.exit_code, "no backup at" in none.output, (tmp_path / "none").exists()) == (1, True, False)
