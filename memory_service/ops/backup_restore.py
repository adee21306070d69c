"""Restoring a backup into a new knowledge base: every byte verified, every id as it was, compared at the end."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import grpc

from memory_model.errors import CorruptFile
from memory_service.client.remote import RemoteError, remote_error
from memory_service.ops.backup import Manifest
from memory_service.ops.backup_shelf import Shelf
from memory_service.stores.identity import WriterIdentity, require_same
from protos.memory.v1 import (
    ingestion_pb2,
    ingestion_pb2_grpc,
    knowledge_bases_pb2_grpc,
    models_pb2,
    models_pb2_grpc,
)
from protos.memory.v1 import knowledge_bases_pb2 as pb

_WINDOW = 64
_TIMEOUT_S = 24 * 3600.0


class Restore:
    """One restoration. Use once, on one event loop; `resume` goes on with one that was interrupted."""

    def __init__(
        self, channel: grpc.aio.Channel, address: str, shelf: Shelf, name: str, *, resume: bool = False,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        """name: of the new knowledge base. on_progress: gets the documents that are stored, and all there are."""
        self._bases = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
        self._ingestion = ingestion_pb2_grpc.IngestionStub(channel)
        self._models = models_pb2_grpc.ModelsStub(channel)
        self._address = address
        self._shelf = shelf
        self._name = name
        self._resume = resume
        self._ids_stay = True
        self._on_progress = on_progress

    async def run(self) -> Manifest:
        """Restores all of it. Raises RemoteError, MissingFile, CorruptFile, an IdentityMismatch."""
        manifest = await asyncio.to_thread(Manifest.read, self._shelf)
        try:
            with tempfile.TemporaryDirectory(prefix="memory-restore-") as folder:
                await self._require_same_model(manifest)
                spool = await asyncio.to_thread(_spooled, self._shelf, manifest, Path(folder) / "spool")
                try:
                    unwritten = "SELECT count(*) FROM refs WHERE length(payload) = 0"
                    self._ids_stay = spool.execute(unwritten).fetchone()[0] == 0
                    await self._create(manifest)
                    await self._send(spool, manifest)
                finally:
                    spool.close()
            await self._compare(manifest)
        except grpc.aio.AioRpcError as error:
            raise remote_error(error, self._address) from error
        return manifest

    async def _require_same_model(self, manifest: Manifest) -> None:
        found = await self._models.Describe(models_pb2.DescribeRequest(), timeout=60)
        ours, theirs = (
            WriterIdentity(m.model_id, m.codec_id, m.memory_format_id, m.embedder_id, m.dimension)
            for m in (manifest, found)
        )
        require_same(ours, theirs, "restore it into a service that runs the model of the backup")

    async def _create(self, manifest: Manifest) -> None:
        request = pb.CreateKnowledgeBaseRequest(name=self._name, description=manifest.description)
        try:
            await self._bases.CreateKnowledgeBase(request, timeout=60)
        except grpc.aio.AioRpcError as error:
            if not (self._resume and error.code() == grpc.StatusCode.ALREADY_EXISTS):
                raise

    async def _send(self, spool: sqlite3.Connection, manifest: Manifest) -> None:
        """One Ingest stream of all documents; those that are there already are answered as unchanged."""
        window, done = asyncio.Semaphore(_WINDOW), 0
        documents = _documents(spool)

        async def messages() -> AsyncIterator[ingestion_pb2.IngestRequest]:
            start = ingestion_pb2.IngestStart(knowledge_base=self._name)
            yield ingestion_pb2.IngestRequest(start=start)
            for sequence, prepared in enumerate(documents, 1):
                await window.acquire()
                item = ingestion_pb2.IngestItem(sequence=sequence, prepared=prepared)
                yield ingestion_pb2.IngestRequest(item=item)

        async for response in self._ingestion.Ingest(messages(), timeout=_TIMEOUT_S):
            kind = response.WhichOneof("message")
            if kind == "failed":
                failed = response.failed
                code = next(c for c in grpc.StatusCode if c.value[0] == failed.code)
                raise RemoteError(f"document {failed.document_key!r}: {failed.message}", code, failed.reason)
            if kind == "acknowledged":
                window.release()
                done += 1
                self._on_progress(done, manifest.document_count)

    async def _compare(self, manifest: Manifest) -> None:
        """The new knowledge base holds the same memories: as many, and the same ids."""
        stream = self._bases.ExportKnowledgeBase(
            pb.ExportKnowledgeBaseRequest(name=self._name, limit=1), timeout=60
        )
        head, *_ = [response.head async for response in stream if response.WhichOneof("message") == "head"]
        same_ids = head.id_digest == manifest.id_digest or not self._ids_stay
        if head.memory_count != manifest.memory_count or not same_ids:
            raise CorruptFile(
                f"{self._name!r} holds {head.memory_count} memories, the backup {manifest.memory_count}, or their"
                " ids differ: delete it and restore again"
            )


def _spooled(shelf: Shelf, manifest: Manifest, file: Path) -> sqlite3.Connection:
    """All references, verified, by document: a backup has them in the order of their ids."""
    spool = sqlite3.connect(file, check_same_thread=False)
    spool.execute("PRAGMA journal_mode = OFF")
    spool.execute("CREATE TABLE refs (document TEXT, chunk INTEGER, text TEXT, vector BLOB, payload BLOB)")
    for part in manifest.parts:
        page = pb.ExportPage.FromString(part.verified(shelf))
        for memory in page.memories:
            if google_crc32c.value(memory.payload) != memory.payload_crc32c:
                raise CorruptFile(f"{shelf}/{part.name}: memory {memory.memory_id} is not what was written")
        rows = ((m.document_key, m.chunk_number, m.text, m.vector, m.payload) for m in page.memories)
        spool.executemany("INSERT INTO refs VALUES (?, ?, ?, ?, ?)", rows)
    spool.execute("CREATE INDEX by_document ON refs (document, chunk)")
    spool.execute("CREATE TABLE documents (line TEXT)")
    for line in manifest.documents.verified(shelf).decode().splitlines():
        found = json.loads(line)
        count = "SELECT count(*) FROM refs WHERE document = ?"
        if spool.execute(count, (found["key"],)).fetchone()[0] != found["references"]:
            raise CorruptFile(f"{shelf}: document {found['key']!r} lacks references: take another backup")
        spool.execute("INSERT INTO documents VALUES (?)", (line,))
    spool.commit()
    return spool


def _documents(spool: sqlite3.Connection) -> Iterator[ingestion_pb2.PreparedDocument]:
    """Every document as Ingest takes it. Must not fail: a stream whose requests fail only says it was cancelled."""
    for (line,) in spool.execute("SELECT line FROM documents ORDER BY rowid"):
        found: dict[str, Any] = json.loads(line)
        rows = spool.execute(
            "SELECT text, vector, payload FROM refs WHERE document = ? ORDER BY chunk", (found["key"],)
        )
        references = [
            ingestion_pb2.PreparedReference(text=text, embedding=vector, payload=payload)
            for text, vector, payload in rows
        ]
        yield ingestion_pb2.PreparedDocument(
            key=found["key"], title=found["title"], metadata=found["metadata"], references=references,
            # A memory that was to be written at its first retrieval is written now, and its ids begin then.
            content_hash=bytes.fromhex(found["content_hash"]) if all(r.payload for r in references) else b"",
        )  # fmt: skip
