"""Backups over the wire: what is restored is what was saved, in a folder or in S3, also after interruptions."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import grpc
import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_service.cli import app
from memory_service.client.connection import RemoteError
from memory_service.ops import backup
from memory_service.ops.backup import Archive, Backup, BackupFile, Manifest, Restore
from protos.memory.v1 import ingestion_pb2
from protos.memory.v1 import knowledge_bases_pb2 as pb
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.running import Client, document, running

DOCUMENTS = [document(f"d{n}", f"Text {n}. " * (n + 1), title=f"T{n}", number=str(n)) for n in range(12)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, str]]:
    folder = tmp_path_factory.mktemp("service")
    with running(folder, HashEncoder(), store=f"file://{folder}/s") as (client, server):
        client.ingest("facts", *DOCUMENTS)
        yield client, f"127.0.0.1:{server.port}"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="backups")
    yield
    server.stop()


def save(address: str, archive: Archive, name: str = "facts") -> Manifest:
    with grpc.insecure_channel(address) as channel:
        return Backup(channel, address, name, archive).run()


def bring_back(address: str, archive: Archive, name: str, resume: bool = False, **more: Any) -> Manifest:
    with grpc.insecure_channel(address) as channel:
        return Restore(channel, address, name, archive, **more).run(resume=resume)


def write_manifest(folder: Path, values: dict[str, Any]) -> None:
    raw = json.dumps(values).encode()
    (folder / "manifest.json").write_bytes(raw)
    (folder / "manifest.sha256").write_text(hashlib.sha256(raw).hexdigest())


def memories(client: Client, name: str) -> list[bytes]:
    """All memories with ids, texts and payloads, as bytes."""
    found = []
    for response in client.bases.ExportKnowledgeBase(pb.ExportKnowledgeBaseRequest(name=name), timeout=60):
        for memory in response.page.memories:
            memory.ClearField("vector")  # restored to float precision
            found.append(memory.SerializeToString(deterministic=True))
    return found


def contents(client: Client, name: str) -> list[bytes]:
    """All memories and all documents, as bytes."""
    found = memories(client, name)
    for one in DOCUMENTS:
        request = ingestion_pb2.GetDocumentRequest(knowledge_base=name, document_key=one.key)
        shown = client.ingestion.GetDocument(request, timeout=60)
        shown.ClearField("stored_at")
        found.append(shown.SerializeToString(deterministic=True))
    return found


@pytest.mark.parametrize("place", ["folder", "s3://backups/of/facts"])
def test_what_is_restored_is_what_was_saved(
    service: tuple[Client, str], tmp_path: Path, s3: None, place: str
) -> None:
    client, address = service
    target = str(tmp_path / "backup") if place == "folder" else place
    name = f"from-{place[:2]}"
    saved = CliRunner().invoke(app, ["backup", "facts", target, "--address", address])
    assert saved.exit_code == 0, saved.output
    assert "saved 12 documents" in saved.output
    restored = CliRunner().invoke(app, ["restore", target, name, "--address", address])
    assert restored.exit_code == 0, restored.output
    assert contents(client, name) == contents(client, "facts")
    # The same text again is no new document: the restored one has the hash of the first.
    assert client.ingest(name, DOCUMENTS[3])[1].acknowledged.outcome == 3
    hits = [client.retrieve(kb, vector_of("x")[None], k=12).results[0].hits for kb in ("facts", name)]
    assert [hit.memory_id for hit in hits[0]] == [hit.memory_id for hit in hits[1]]


class Watched(Archive):
    """Calls back before each part is saved."""

    def __init__(self, place: Path, before_part: Callable[[int], None]) -> None:
        super().__init__(str(place))
        self.parts = 0
        self._before_part = before_part

    def put(self, name: str, data: bytes) -> BackupFile:
        if name.startswith("parts/"):
            self._before_part(self.parts)
            self.parts += 1
        return super().put(name, data)


@pytest.mark.parametrize("written_meanwhile", [False, True])
def test_an_interrupted_backup_goes_on_where_it_was(
    service: tuple[Client, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_meanwhile: bool
) -> None:
    client, address = service
    monkeypatch.setattr(backup, "_PART_BYTES", 1)  # a part for every page
    kb = f"many-{written_meanwhile}"
    client.ingest(kb, *[document(f"e{n}", f"Long {n}. " * 400) for n in range(40)])

    def interrupt(part: int) -> None:
        if part == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(address, Watched(tmp_path, interrupt), kb)
    with pytest.raises(MissingFile):
        Manifest.read(Archive(str(tmp_path)))
    if written_meanwhile:
        client.ingest(
            kb, document("e3", "Other text."), *[document(f"new{n}", f"New {n}.") for n in range(9)]
        )
        client.ingestion.Delete(
            ingestion_pb2.DeleteRequest(knowledge_base=kb, document_keys=["e5"]), timeout=60
        )
    (tmp_path / "parts" / "half.pb").write_bytes(b"cut off")
    again = Watched(tmp_path, lambda part: None)
    saved = save(address, again, kb)
    assert 0 < again.parts < len(saved.parts)
    head = next(client.bases.ExportKnowledgeBase(pb.ExportKnowledgeBaseRequest(name=kb), timeout=60)).head
    assert (saved.memory_count, saved.id_digest) == (head.memory_count, head.id_digest)
    bring_back(address, Archive(str(tmp_path)), f"{kb}-again")
    assert memories(client, f"{kb}-again") == memories(client, kb)


def test_a_backup_ends_whole_although_documents_change_meanwhile(
    service: tuple[Client, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, address = service
    monkeypatch.setattr(backup, "_PART_BYTES", 1)
    client.ingest("busy", *[document(f"b{n}", f"Text {n}. " * 400) for n in range(40)])

    def write(part: int) -> None:
        client.ingest("busy", document("b0", f"Version {part}."), document(f"c{part}", f"New {part}."))

    archive = Watched(tmp_path, write)
    assert save(address, archive, "busy").document_count == 40 + archive.parts
    bring_back(address, archive, "busy-again")
    assert memories(client, "busy-again") == memories(client, "busy")


def test_a_document_larger_than_a_message_is_saved_and_restored(tmp_path: Path) -> None:
    settings = {"store": f"file://{tmp_path}/s", "message_limit_bytes": 1 << 20}
    with running(tmp_path, HashEncoder(), **settings) as (client, server):
        text = " ".join(f"Sentence {n} has quite a few words in it." for n in range(20_000))
        client.ingest("large", document("a", text), document("b", "Small."))
        address, archive = f"127.0.0.1:{server.port}", Archive(str(tmp_path / "backup"))
        saved = save(address, archive, "large")
        assert sum(part.size_bytes for part in saved.parts) > 1 << 20
        bring_back(address, archive, "again")
        assert memories(client, "again") == memories(client, "large")


def test_an_interrupted_restoration_goes_on_where_it_was(service: tuple[Client, str], tmp_path: Path) -> None:
    client, address = service
    archive = Archive(str(tmp_path))
    save(address, archive)

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring_back(address, archive, "resumed", on_progress=stop)
    with pytest.raises(RemoteError, match="there already"):
        bring_back(address, archive, "resumed")
    assert bring_back(address, archive, "resumed", resume=True).document_count == len(DOCUMENTS)
    assert contents(client, "resumed") == contents(client, "facts")


def test_a_backup_of_another_format_is_refused(service: tuple[Client, str], tmp_path: Path) -> None:
    _, address = service
    save(address, Archive(str(tmp_path)))
    values = json.loads((tmp_path / "manifest.json").read_text())
    write_manifest(tmp_path, {**values, "format": 3})
    with pytest.raises(CorruptFile, match="this release"):
        bring_back(address, Archive(str(tmp_path)), "third")


def test_a_damaged_backup_restores_nothing(service: tuple[Client, str], tmp_path: Path) -> None:
    _, address = service
    save(address, Archive(str(tmp_path / "whole")))
    files = [f.relative_to(tmp_path / "whole") for f in (tmp_path / "whole").rglob("*") if f.is_file()]
    assert sorted(str(f).partition("/")[0] for f in files) == [
        "documents.jsonl", "manifest.json", "manifest.sha256", "parts",
    ]  # fmt: skip
    for number, name in enumerate(files):
        for damage in ("flipped", "cut", "gone"):
            copy = tmp_path / f"{number}-{damage}"
            shutil.copytree(tmp_path / "whole", copy)
            raw = bytearray((copy / name).read_bytes())
            raw[len(raw) // 2] ^= 0x40
            (copy / name).write_bytes(raw if damage == "flipped" else raw[:-7])
            if damage == "gone":
                (copy / name).unlink()
            with pytest.raises((CorruptFile, MissingFile)):
                bring_back(address, Archive(str(copy)), f"damaged-{number}-{damage}")


def test_a_backup_of_another_model_and_a_place_that_is_none_are_refused_by_name(
    service: tuple[Client, str], tmp_path: Path
) -> None:
    _, address = service
    save(address, Archive(str(tmp_path)))
    values = json.loads((tmp_path / "manifest.json").read_text())
    write_manifest(tmp_path, {**values, "codec_id": "0" * 64})
    refused = CliRunner().invoke(app, ["restore", str(tmp_path), "other", "--address", address])
    assert refused.exit_code == 1
    assert "runs the model of the backup" in refused.output
    with pytest.raises(InvalidInput, match="no place for a backup"):
        Archive("ftp://somewhere/else")
