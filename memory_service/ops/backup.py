"""Backup and restore of a knowledge base over the wire, while the service runs; both go on when run again.

parts/<last id>-<sha256>.pb   memories in ascending order of their ids, a serialized ExportPage each, about 16 MiB
late/<last id>-<sha256>.pb    memories that were written while the backup ran, behind the place where it was
documents.jsonl               key, title, metadata, content hash and references of every document
manifest.json                 written last: ids, counts, and SHA-256 of every file; without it there is no backup
manifest.sha256               its own SHA-256

A backup holds every document whole. When the knowledge base is written to meanwhile, the documents are compared again
at the end and what is missing is fetched, until nothing changed in between; a document that was replaced meanwhile
names its memories in `documents.jsonl`, and the older ones in the parts are left out by a restore.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import grpc
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store
from pydantic import BaseModel, ConfigDict

from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_service.client.connection import RemoteError, details_of, remote_error
from memory_service.client.destination import pieces
from memory_service.errors import StoreUnavailable
from memory_service.stores import digest
from memory_service.stores.identity import WriterIdentity, require_same
from protos.memory.v1 import (
    ingestion_pb2,
    ingestion_pb2_grpc,
    knowledge_bases_pb2_grpc,
    models_pb2,
    models_pb2_grpc,
)
from protos.memory.v1 import knowledge_bases_pb2 as pb

MANIFEST, CHECKSUM, DOCUMENTS = "manifest.json", "manifest.sha256", "documents.jsonl"
_PART_BYTES = 16 << 20
_ROUNDS = 20
_TOGETHER = 16
_WINDOW = 64
_TIMEOUT_S = 24 * 3600.0


class Archive:
    """Named files in a folder or in S3-compatible storage (endpoint, region, credentials: AWS_… variables).

    A file is there whole or not at all. Methods raise StoreUnavailable, and `get` MissingFile.
    """

    def __init__(self, place: str) -> None:
        """place: a folder, or s3://bucket/prefix. Raises InvalidInput."""
        self._place = place
        kind, separator, _ = place.partition("://")
        if separator and kind != "s3":
            raise InvalidInput(f"{place!r} is no place for a backup: expected a folder or s3://bucket/prefix")
        self._local = not separator
        try:
            if self._local:
                self._store: Any = LocalStore(Path(place).absolute(), mkdir=True)
            else:
                plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
                self._store = S3Store.from_url(place, client_options={"allow_http": plain})
        except (BaseError, OSError, ValueError) as error:
            raise InvalidInput(f"{place!r} cannot be used for a backup: {error}") from error

    def __str__(self) -> str:
        return self._place

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise MissingFile(f"the backup at {self} has no file {what}") from None
        except (BaseError, OSError) as error:
            first_line = str(error).partition("\n")[0]
            raise StoreUnavailable(f"{self}/{what} cannot be used: {first_line}") from error

    def put(self, name: str, data: bytes) -> BackupFile:
        """Writes a file; an older one of the name is replaced."""
        with self._errors(name):
            self._store.put(name, data)
        return BackupFile(name=name, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))

    def get(self, name: str) -> bytes:
        """The file."""
        with self._errors(name):
            return bytes(self._store.get(name).bytes())

    def names(self, folder: str) -> list[str]:
        """Files below a folder, sorted."""
        with self._errors(folder):
            return sorted(one["path"] for page in self._store.list(folder) for one in page)

    def remove(self, name: str) -> None:
        """Removes the file if it is there."""
        with contextlib.suppress(MissingFile), self._errors(name):
            self._store.delete(name)

    def flush(self) -> None:
        """What was put is durable afterwards; S3 has it when it answers."""
        if self._local:
            os.sync()


class BackupFile(BaseModel):
    """One file of the backup."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str
    size_bytes: int

    def verified(self, archive: Archive) -> bytes:
        """Its content; raises MissingFile, CorruptFile."""
        data = archive.get(self.name)
        if len(data) != self.size_bytes or hashlib.sha256(data).hexdigest() != self.sha256:
            raise CorruptFile(f"{archive}/{self.name} is not what was written: take another backup")
        return data


class Manifest(BaseModel):
    """A whole backup. The ids are those of the knowledge base's model, codec, memory format and embedder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[2] = 2
    knowledge_base: str
    description: str
    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    dimension: int
    revision: int
    memory_count: int
    id_digest: int
    document_count: int
    documents: BackupFile
    parts: list[BackupFile]

    @staticmethod
    def read(archive: Archive) -> Manifest:
        """Raises MissingFile, CorruptFile."""
        raw = archive.get(MANIFEST)
        try:
            if hashlib.sha256(raw).hexdigest() != archive.get(CHECKSUM).decode():
                raise CorruptFile(f"{archive}/{MANIFEST} is not what was written: take another backup")
            return Manifest.model_validate_json(raw)
        except ValueError as error:
            raise CorruptFile(
                f"{archive}/{MANIFEST} is no manifest of a backup that this release reads"
            ) from error


class _Transfer:
    """What a backup and a restoration share. on_progress: gets what is done and all there is."""

    def __init__(
        self, channel: grpc.Channel, address: str, name: str, archive: Archive,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        self._bases = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
        self._ingestion = ingestion_pb2_grpc.IngestionStub(channel)
        self._models = models_pb2_grpc.ModelsStub(channel)
        self._address = address
        self._name = name
        self._archive = archive
        self._on_progress = on_progress

    def _head(self) -> pb.ExportHead:
        """What the knowledge base holds now."""
        request = pb.ExportKnowledgeBaseRequest(name=self._name, limit=1)
        responses = self._bases.ExportKnowledgeBase(request, timeout=60)
        return next(one.head for one in responses if one.HasField("head"))


class Backup(_Transfer):
    """One backup of one knowledge base; progress counts memories. Use once; run again it goes on where it was."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._parts: list[BackupFile] = []
        self._saved_count = 0
        self._saved: dict[str, set[int]] = {}  # ids of the memories in the parts, by document

    def run(self) -> Manifest:
        """Makes it. Raises RemoteError and the archive's errors."""
        try:
            self._archive.remove(MANIFEST)
            after_id = self._go_on("parts")
            self._go_on("late")
            self._save("parts", self._pages(after_id=after_id))
            return self._finish()
        except grpc.RpcError as error:
            raise remote_error(error, self._address) from error

    def _go_on(self, folder: str) -> int | None:
        """Takes the parts that an earlier run left, and returns the last id in them; a damaged one is made again."""
        last = None
        for name in self._archive.names(folder):
            data = self._archive.get(name)
            if not name.endswith(f"-{hashlib.sha256(data).hexdigest()}.pb"):
                self._archive.remove(name)
                continue
            page = pb.ExportPage.FromString(data)
            self._take(page, BackupFile(name=name, sha256=name[-67:-3], size_bytes=len(data)))
            last = page.memories[-1].memory_id
        return last

    def _take(self, page: pb.ExportPage, file: BackupFile) -> None:
        self._parts.append(file)
        self._saved_count += len(page.memories)
        for memory in page.memories:
            self._saved.setdefault(memory.document_key, set()).add(memory.memory_id)

    def _pages(self, **more: Any) -> Iterator[pb.ExportPage]:
        request = pb.ExportKnowledgeBaseRequest(name=self._name, while_written=True, **more)
        total = 0
        for response in self._bases.ExportKnowledgeBase(request, timeout=_TIMEOUT_S):
            total = total or response.head.memory_count
            if response.HasField("page"):
                self._on_progress(min(self._saved_count, total), total)
                yield response.page

    def _save(self, folder: str, pages: Iterator[pb.ExportPage]) -> None:
        """Saves memories as parts of about 16 MiB."""
        part, size = pb.ExportPage(), 0
        for page in pages:
            part.memories.extend(page.memories)
            size += page.ByteSize()
            if size >= _PART_BYTES:
                self._put(folder, part)
                part, size = pb.ExportPage(), 0
        if part.memories:
            self._put(folder, part)

    def _put(self, folder: str, part: pb.ExportPage) -> None:
        data = part.SerializeToString()
        name = f"{folder}/{part.memories[-1].memory_id:020d}-{hashlib.sha256(data).hexdigest()}.pb"
        self._take(part, self._archive.put(name, data))

    def _finish(self) -> Manifest:
        """Compares the documents with what is saved, and fetches what is missing, until nothing changed meanwhile."""
        for _ in range(_ROUNDS):
            head = self._head()
            documents = self._documents()
            wanted = {d.document_key: {r.memory_id for r in d.references} for d in documents}
            missing = sorted(
                memory_id for key, ids in wanted.items() for memory_id in ids - self._saved.get(key, set())
            )
            self._save("late", (page for memory_id in missing for page in self._one(memory_id)))
            whole = all(ids <= self._saved.get(key, set()) for key, ids in wanted.items())
            if whole and head.revision == self._head().revision:
                return self._write_manifest(head, documents, wanted)
        raise RemoteError(
            f"knowledge base {self._name!r} was written to all the time: run the backup again to go on",
            grpc.StatusCode.ABORTED, "KNOWLEDGE_BASE_CHANGED",
        )  # fmt: skip

    def _one(self, memory_id: int) -> Iterator[pb.ExportPage]:
        """The page with one memory; none where it is gone."""
        after = {"after_id": memory_id - 1} if memory_id else {}
        for page in self._pages(limit=1, **after):
            if page.memories[0].memory_id == memory_id:
                yield page

    def _documents(self) -> list[ingestion_pb2.GetDocumentResponse]:
        """All documents with the ids of their memories; those that are deleted meanwhile are left out."""

        def found(key: str) -> ingestion_pb2.GetDocumentResponse | None:
            request = ingestion_pb2.GetDocumentRequest(knowledge_base=self._name, document_key=key)
            try:
                return self._ingestion.GetDocument(request, timeout=60)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.NOT_FOUND:
                    return None
                raise

        with ThreadPoolExecutor(_TOGETHER, "documents") as pool:
            return [one for one in pool.map(found, self._keys()) if one is not None]

    def _keys(self) -> Iterator[str]:
        request = ingestion_pb2.ListDocumentsRequest(knowledge_base=self._name)
        while True:
            page = self._ingestion.ListDocuments(request, timeout=60)
            yield from (document.document_key for document in page.documents)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _write_manifest(
        self, head: pb.ExportHead, documents: Sequence[ingestion_pb2.GetDocumentResponse],
        wanted: dict[str, set[int]],
    ) -> Manifest:  # fmt: skip
        lines = []
        for document in documents:
            key = document.document_key
            line: dict[str, Any] = {
                "key": key, "title": document.title, "metadata": dict(document.metadata),
                "content_hash": document.content_hash.hex(), "references": len(document.references),
            }  # fmt: skip
            if self._saved[key] != wanted[key]:
                line["memory_ids"] = sorted(wanted[key])
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        base, ids = head.knowledge_base, [memory_id for one in wanted.values() for memory_id in one]
        manifest = Manifest(
            knowledge_base=base.name, description=base.description, model_id=base.model_id, codec_id=base.codec_id,
            memory_format_id=base.memory_format_id, embedder_id=base.embedder_id, dimension=base.dimension,
            revision=head.revision, memory_count=len(ids), id_digest=digest(ids), document_count=len(documents),
            documents=self._archive.put(DOCUMENTS, "".join(lines).encode()), parts=self._parts,
        )  # fmt: skip
        raw = manifest.model_dump_json(indent=1).encode()
        self._archive.put(CHECKSUM, hashlib.sha256(raw).hexdigest().encode())
        self._archive.flush()
        self._archive.put(MANIFEST, raw)
        self._archive.flush()
        return manifest


class Restore(_Transfer):
    """One restoration into a new knowledge base; progress counts documents. Use once."""

    def run(self, *, resume: bool = False) -> Manifest:
        """Restores all of it. Raises RemoteError, MissingFile, CorruptFile, an IdentityMismatch.

        resume: goes on with a restoration that was interrupted.
        """
        manifest = Manifest.read(self._archive)
        try:
            found = self._models.Describe(models_pb2.DescribeRequest(), timeout=60)
            ours, theirs = (
                WriterIdentity(m.model_id, m.codec_id, m.memory_format_id, m.embedder_id, m.dimension)
                for m in (manifest, found)
            )
            require_same(ours, theirs, "restore it into a service that runs the model of the backup")
            with (
                tempfile.TemporaryDirectory(prefix="memory-restore-") as folder,
                contextlib.closing(_spooled(self._archive, manifest, Path(folder) / "spool")) as spool,
            ):
                self._create(manifest, resume)
                self._send(spool, manifest, found.limits.request_bytes)
            head = self._head()
            if (head.memory_count, head.id_digest) != (manifest.memory_count, manifest.id_digest):
                raise CorruptFile(
                    f"{self._name!r} holds {head.memory_count} memories, the backup {manifest.memory_count}, or"
                    " their ids differ: delete it and restore again"
                )
        except grpc.RpcError as error:
            raise remote_error(error, self._address) from error
        return manifest

    def _create(self, manifest: Manifest, resume: bool) -> None:
        request = pb.CreateKnowledgeBaseRequest(name=self._name, description=manifest.description)
        try:
            self._bases.CreateKnowledgeBase(request, timeout=60)
        except grpc.RpcError as error:
            if not (resume and error.code() == grpc.StatusCode.ALREADY_EXISTS):
                raise

    def _send(self, spool: sqlite3.Connection, manifest: Manifest, message_bytes: int) -> None:
        """One Ingest stream of all documents; those that are there already are answered as unchanged."""
        window, over, done = threading.Semaphore(_WINDOW), threading.Event(), 0

        def messages() -> Iterator[ingestion_pb2.IngestRequest]:
            start = ingestion_pb2.IngestStart(knowledge_base=self._name)
            yield ingestion_pb2.IngestRequest(start=start)
            for sequence, prepared in enumerate(_documents(spool), 1):
                while not window.acquire(timeout=1):
                    if over.is_set():
                        return
                whole = ingestion_pb2.IngestItem(sequence=sequence, prepared=prepared)
                yield from (ingestion_pb2.IngestRequest(item=item) for item in pieces(whole, message_bytes))

        try:
            for response in self._ingestion.Ingest(messages(), timeout=_TIMEOUT_S):
                if response.HasField("failed"):
                    failed = response.failed
                    reason, _ = details_of(failed.status)
                    code = next(c for c in grpc.StatusCode if c.value[0] == failed.status.code)
                    again = ": run it again with --resume" if failed.retryable else ""
                    raise RemoteError(
                        f"document {failed.document_key!r}: {failed.status.message}{again}", code, reason
                    )
                if response.HasField("acknowledged"):
                    window.release()
                    done += 1
                    self._on_progress(done, manifest.document_count)
        finally:
            over.set()


def _spooled(archive: Archive, manifest: Manifest, file: Path) -> sqlite3.Connection:
    """All references, verified, by document: a backup has them in the order of their ids."""
    spool = sqlite3.connect(file, check_same_thread=False)
    spool.execute("PRAGMA journal_mode = OFF")
    spool.execute(
        "CREATE TABLE refs (document TEXT, chunk INTEGER, id TEXT, text TEXT, vector BLOB, payload BLOB)"
    )
    spool.execute("CREATE TABLE documents (line TEXT)")
    for part in manifest.parts:
        page = pb.ExportPage.FromString(part.verified(archive))
        for memory in page.memories:
            if google_crc32c.value(memory.payload) != memory.payload_crc32c:
                raise CorruptFile(f"{archive}/{part.name}: memory {memory.memory_id} is not what was written")
        rows = (
            (m.document_key, m.chunk_number, str(m.memory_id), m.text, m.vector, m.payload)
            for m in page.memories
        )
        spool.executemany("INSERT INTO refs VALUES (?, ?, ?, ?, ?, ?)", rows)
    spool.execute("CREATE INDEX by_document ON refs (document, chunk)")
    for line in manifest.documents.verified(archive).decode().splitlines():
        found = json.loads(line)
        if "memory_ids" in found:
            ids = json.dumps([str(memory_id) for memory_id in found["memory_ids"]])
            older = "DELETE FROM refs WHERE document = ? AND id NOT IN (SELECT value FROM json_each(?))"
            spool.execute(older, (found["key"], ids))
        count = "SELECT count(*) FROM refs WHERE document = ?"
        if spool.execute(count, (found["key"],)).fetchone()[0] != found["references"]:
            raise CorruptFile(f"{archive}: document {found['key']!r} lacks references: take another backup")
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
            content_hash=bytes.fromhex(found["content_hash"]),
        )  # fmt: skip
