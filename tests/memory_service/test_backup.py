"""Backups over the wire: what is restored is what was saved, in a folder or in S3, also after interruptions."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import boto3
import grpc
import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from memory_model.errors import CorruptFile, MissingFile
from memory_service.cli import app
from memory_service.client.remote import RemoteError
from memory_service.ops import backup
from memory_service.ops.backup import Backup, Manifest
from memory_service.ops.backup_restore import Restore
from memory_service.ops.backup_shelf import FolderShelf, Shelf, open_shelf
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


def save(address: str, shelf: Shelf, name: str = "facts") -> Manifest:
    async def run() -> Manifest:
        async with grpc.aio.insecure_channel(address) as channel:
            return await Backup(channel, address, name, shelf).run()

    return asyncio.run(run())


def bring_back(address: str, shelf: Shelf, name: str, *, resume: bool = False) -> Manifest:
    async def run() -> Manifest:
        async with grpc.aio.insecure_channel(address) as channel:
            return await Restore(channel, address, shelf, name, resume=resume).run()

    return asyncio.run(run())


def contents(client: Client, name: str) -> list[bytes]:
    """All memories with ids, texts and payloads, and all documents, as bytes."""
    found = []
    for response in client.bases.ExportKnowledgeBase(pb.ExportKnowledgeBaseRequest(name=name), timeout=60):
        for memory in response.page.memories:
            memory.ClearField("vector")  # restored to float precision
            found.append(memory.SerializeToString(deterministic=True))
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


def test_an_interrupted_backup_goes_on_where_it_was(
    service: tuple[Client, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, address = service
    monkeypatch.setattr(backup, "_PART_BYTES", 1)  # a part for every page

    class Interrupted(FolderShelf):
        parts = 0

        def put(self, name: str, data: bytes) -> None:
            self.parts += name.startswith("parts/")
            if self.parts > self.limit:
                raise KeyboardInterrupt
            super().put(name, data)

    many = [document(f"e{n}", f"Long {n}. " * 400) for n in range(40)]
    client.ingest("many", *many)
    whole = save(address, FolderShelf(tmp_path / "whole"), "many")
    assert len(whole.parts) > 1, "the test needs parts"
    shelf = Interrupted(tmp_path / "cut")
    shelf.limit = 1  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        save(address, shelf, "many")
    with pytest.raises(MissingFile):
        Manifest.read(shelf)
    shelf.limit = 10**6  # type: ignore[attr-defined]
    before = shelf.parts
    resumed = save(address, shelf, "many")
    assert shelf.parts - before == len(whole.parts) - 1
    assert (resumed.memory_count, resumed.id_digest) == (whole.memory_count, whole.id_digest)
    assert bring_back(address, shelf, "many-again").document_count == 40


def test_an_interrupted_restoration_goes_on_where_it_was(service: tuple[Client, str], tmp_path: Path) -> None:
    client, address = service
    shelf = FolderShelf(tmp_path / "whole")
    save(address, shelf)

    async def interrupted(name: str, after: int) -> None:
        def stop(done: int, total: int) -> None:
            if done == after:
                raise KeyboardInterrupt

        async with grpc.aio.insecure_channel(address) as channel:
            await Restore(channel, address, shelf, name, on_progress=stop).run()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted("resumed", 3))
    with pytest.raises(RemoteError, match="there already"):
        bring_back(address, shelf, "resumed")
    assert bring_back(address, shelf, "resumed", resume=True).document_count == len(DOCUMENTS)
    assert contents(client, "resumed") == contents(client, "facts")


def test_a_write_meanwhile_makes_the_backup_begin_anew(service: tuple[Client, str], tmp_path: Path) -> None:
    client, address = service

    class Written(FolderShelf):
        writes = 0

        def put(self, name: str, data: bytes) -> None:
            if name.startswith("parts/") and self.writes < self.limit:
                self.writes += 1
                client.ingest("busy", document("b", f"Version {os.urandom(4).hex()}."))
            super().put(name, data)

    client.ingest("busy", document("a", "A."), document("b", "B."))
    shelf = Written(tmp_path / "some")
    shelf.limit = 2  # type: ignore[attr-defined]
    assert save(address, shelf, "busy").document_count == 2
    bring_back(address, shelf, "busy-again")
    shelf.limit = 10**6  # type: ignore[attr-defined]
    with pytest.raises(RemoteError, match="stop writing"):
        save(address, shelf, "busy")


def test_a_damaged_backup_restores_nothing(service: tuple[Client, str], tmp_path: Path) -> None:
    _, address = service
    save(address, FolderShelf(tmp_path / "whole"))
    files = [f.relative_to(tmp_path / "whole") for f in (tmp_path / "whole").rglob("*") if f.is_file()]
    assert {str(f) for f in files} == {
        "manifest.json", "manifest.sha256", "documents.jsonl", "parts/000000.pb",
    }  # fmt: skip
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
                bring_back(address, FolderShelf(copy), f"damaged-{number}-{damage}")


def test_a_backup_of_another_model_is_refused_by_name(service: tuple[Client, str], tmp_path: Path) -> None:
    _, address = service
    save(address, FolderShelf(tmp_path / "b"))
    manifest = tmp_path / "b" / "manifest.json"
    values = json.loads(manifest.read_text())
    values["codec_id"] = "0" * 64
    manifest.write_text(json.dumps(values))
    checksum = hashlib.sha256(manifest.read_bytes()).hexdigest()
    manifest.with_name("manifest.sha256").write_text(checksum)
    refused = CliRunner().invoke(app, ["restore", str(tmp_path / "b"), "other", "--address", address])
    assert refused.exit_code == 1
    assert "runs the model of the backup" in refused.output
    assert open_shelf(str(tmp_path / "b")).get("nothing") is None
