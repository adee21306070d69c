"""Backup and restore of a knowledge base over the wire, while the service runs.

A backup is one SQLite file and, beside it and written last, its SHA-256: without that there is no backup.

    memories    as ExportKnowledgeBase sends them, in the order of their ids
    documents   key, title, metadata and content hash
    manifest    one row: the ids of model, codec, format and embedder, and counts

When the knowledge base is written to meanwhile, the documents are compared again at the end and what is missing is
fetched, until nothing changed in between: a backup holds every document whole, in its newest version.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import grpc
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store
from pydantic import BaseModel, ConfigDict

from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.printable import counted
from memory_service.client.connection import RemoteError, connected
from memory_service.client.ingest import Destination, Ingestion, Row, listed
from memory_service.errors import StoreUnavailable
from memory_service.stores.store import WriterIdentity, digest, require_same
from protos.memory.v1 import ingestion_pb2, ingestion_pb2_grpc, knowledge_bases_pb2_grpc
from protos.memory.v1 import knowledge_bases_pb2 as pb

DATABASE, CHECKSUM = "backup.sqlite3", "backup.sha256"
_TABLES = """
CREATE TABLE memories (
    id BLOB PRIMARY KEY, document TEXT NOT NULL, chunk INTEGER NOT NULL, text TEXT NOT NULL, vector BLOB NOT NULL,
    payload BLOB NOT NULL
);
CREATE INDEX by_document ON memories (document, chunk);
CREATE TABLE documents (key TEXT PRIMARY KEY, title TEXT, metadata TEXT, content_hash BLOB);
CREATE TABLE manifest (json TEXT);
CREATE TEMP TABLE wanted (id BLOB PRIMARY KEY);
"""
_ROUNDS = 20
_TOGETHER = 16
_TIMEOUT_S = 24 * 3600.0

Progress = Callable[[int, int], None]
"""Gets what is done and all there is: memories of a backup, documents of a restoration."""


class Manifest(BaseModel):
    """What a backup holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[4] = 4
    description: str
    identity: WriterIdentity
    memory_count: int
    id_digest: int
    document_count: int


class Archive:
    """Where a backup is: a folder, or S3-compatible storage (endpoint, region, credentials: AWS_… variables)."""

    def __init__(self, place: str, *, create: bool = True) -> None:
        """place: a folder, or s3://bucket/prefix. create: the folder. Raises InvalidInput, MissingFile."""
        self._place = place
        kind, separator, _ = place.partition("://")
        if separator and kind != "s3":
            raise InvalidInput(f"{place!r} is no place for a backup: expected a folder or s3://bucket/prefix")
        self._folder = None if separator else Path(place).absolute()
        if self._folder is not None and not (create or self._folder.is_dir()):
            raise MissingFile(f"there is no backup at {place}: it is no folder")
        try:
            if self._folder is not None:
                self._store: Any = LocalStore(self._folder, mkdir=True)
            else:
                plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
                self._store = S3Store.from_url(place, client_options={"allow_http": plain})
        except (BaseError, OSError, ValueError) as error:
            raise InvalidInput(f"{place!r} cannot be used for a backup: {error}") from error

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise MissingFile(f"there is no whole backup at {self._place}") from None
        except (BaseError, OSError, sqlite3.Error) as error:
            first_line = str(error).partition("\n")[0]
            raise StoreUnavailable(f"{self._place} cannot be used: {first_line}") from error

    @contextlib.contextmanager
    def replaced(self) -> Iterator[Path]:
        """An empty folder for the files of a new backup, which take the old ones' place when the block ends."""
        with self._errors(), tempfile.TemporaryDirectory(prefix=".backup-", dir=self._folder) as folder:
            yield Path(folder)
            checksum = file_sha256(Path(folder) / DATABASE).encode()
            with contextlib.suppress(FileNotFoundError):
                self._store.delete(CHECKSUM)
            if self._folder is None:
                self._store.put(DATABASE, Path(folder) / DATABASE)
            else:
                (Path(folder) / DATABASE).replace(self._folder / DATABASE)
            self._store.put(CHECKSUM, checksum)
            os.sync()

    @contextlib.contextmanager
    def verified(self) -> Iterator[Path]:
        """The file of a whole backup. Raises MissingFile, CorruptFile."""
        with tempfile.TemporaryDirectory(prefix="memory-restore-") as folder:
            with self._errors():
                expected = bytes(self._store.get(CHECKSUM).bytes())
                path = (self._folder or Path(folder)) / DATABASE
                if self._folder is None:
                    with path.open("wb") as file:
                        for piece in self._store.get(DATABASE).stream():
                            file.write(piece)
                found = file_sha256(path).encode()
            if found != expected:
                raise CorruptFile(f"the backup at {self._place} is not what was written: take another one")
            yield path


# Making one


def back_up(address: str, name: str, archive: Archive, on_progress: Progress = lambda done, total: None) -> Manifest:
    """Saves a knowledge base. Raises RemoteError and the archive's errors."""
    with (
        archive.replaced() as folder,
        connected(address) as channel,
        contextlib.closing(sqlite3.connect(folder / DATABASE)) as database,
    ):
        return _Backup(channel, name, database, on_progress).run()


class _Backup:
    def __init__(self, channel: grpc.Channel, name: str, database: sqlite3.Connection, on_progress: Progress) -> None:
        self._bases = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
        self._ingestion = ingestion_pb2_grpc.IngestionStub(channel)
        self._name = name
        self._database = database
        self._on_progress = on_progress

    def run(self) -> Manifest:
        self._database.executescript(_TABLES)
        self._save()
        for _ in range(_ROUNDS):
            head = _head(self._bases, self._name)
            self._save_documents()
            for memory_id in self._missing():
                self._save(memory_id)
            if not self._missing() and head.revision == _head(self._bases, self._name).revision:
                return self._finished(head.knowledge_base)
        raise RemoteError(
            f"knowledge base {self._name!r} was written to all the time: try again when it is quieter",
            grpc.StatusCode.ABORTED,
            "KNOWLEDGE_BASE_CHANGED",
        )

    def _save(self, memory_id: int | None = None) -> None:
        """Saves exported memories, one or all, a page in each transaction."""
        request = pb.ExportKnowledgeBaseRequest(name=self._name, while_written=True)
        if memory_id is not None:
            request.limit = 1
        if memory_id:
            request.after_id = memory_id - 1
        done = total = 0
        for response in self._bases.ExportKnowledgeBase(request, timeout=_TIMEOUT_S):
            total = total or response.head.memory_count
            rows = [
                (m.memory_id.to_bytes(8, "big"), m.document_key, m.chunk_number, m.text, m.vector, m.payload)
                for m in response.page.memories
            ]
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO memories VALUES (?, ?, ?, ?, ?, ?)", rows)
            if rows and memory_id is None:
                done += len(rows)
                self._on_progress(min(done, total), total)

    def _save_documents(self) -> None:
        """All documents as they are now, and the ids of their memories."""

        def found(key: str) -> ingestion_pb2.GetDocumentResponse | None:
            request = ingestion_pb2.GetDocumentRequest(knowledge_base=self._name, document_key=key)
            try:
                return self._ingestion.GetDocument(request, timeout=60)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.NOT_FOUND:  # deleted meanwhile
                    return None
                raise

        run = self._database.execute
        with self._database, ThreadPoolExecutor(_TOGETHER, "documents") as pool:
            run("DELETE FROM documents")
            run("DELETE FROM wanted")
            keys = (one.document_key for one in listed(self._ingestion, self._name))
            for one in filter(None, pool.map(found, keys)):
                metadata = json.dumps(dict(one.metadata))
                row = one.document_key, one.title, metadata, one.content_hash
                run("INSERT INTO documents VALUES (?, ?, ?, ?)", row)
                ids = [(reference.memory_id.to_bytes(8, "big"),) for reference in one.references]
                self._database.executemany("INSERT INTO wanted VALUES (?)", ids)

    def _missing(self) -> list[int]:
        rows = self._database.execute("SELECT id FROM wanted EXCEPT SELECT id FROM memories")
        return [int.from_bytes(one, "big") for (one,) in rows.fetchall()]

    def _finished(self, base: pb.KnowledgeBase) -> Manifest:
        with self._database:
            self._database.execute("DELETE FROM memories WHERE id NOT IN (SELECT id FROM wanted)")
            ((documents,),) = self._database.execute("SELECT count(*) FROM documents")
            ids = [int.from_bytes(one, "big") for (one,) in self._database.execute("SELECT id FROM wanted")]
            identity = WriterIdentity(
                base.model_id, base.codec_id, base.memory_format_id, base.embedder_id, base.dimension
            )
            manifest = Manifest(
                description=base.description,
                identity=identity,
                memory_count=len(ids),
                id_digest=digest(ids),
                document_count=documents,
            )
            self._database.execute("INSERT INTO manifest VALUES (?)", (manifest.model_dump_json(),))
        return manifest


# Bringing one back


def restore(address: str, name: str, archive: Archive, on_progress: Progress = lambda done, total: None) -> Manifest:
    """Restores a backup into a new knowledge base.

    Raises RemoteError, MissingFile, CorruptFile, an IdentityMismatch.
    """
    with archive.verified() as path, contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as database:
        try:
            ((raw,),) = database.execute("SELECT json FROM manifest")
            manifest = Manifest.model_validate_json(raw)
        except ValueError as error:
            raise CorruptFile("this is no backup that this release reads") from error
        to = Destination(address, name)
        require_same(manifest.identity, to.identity(), "restore it into a service that runs the model of the backup")
        with connected(address) as channel:
            bases = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
            request = pb.CreateKnowledgeBaseRequest(name=name, description=manifest.description)
            bases.CreateKnowledgeBase(request, timeout=60)
            for done, row in enumerate(Ingestion(to).run(_documents(database)), 1):
                if row.outcome == "failed":
                    raise RemoteError(
                        f"document {row.key!r}: {row.message}: delete {name!r} and restore again",
                        grpc.StatusCode.ABORTED,
                        row.reason,
                    )
                on_progress(done, manifest.document_count)
            head = _head(bases, name)
    if (head.memory_count, head.id_digest) != (manifest.memory_count, manifest.id_digest):
        raise CorruptFile(
            f"{name!r} holds {counted(head.memory_count, 'memory')}, the backup {manifest.memory_count}, or their ids"
            " differ: delete it and restore again"
        )
    return manifest


def _documents(database: sqlite3.Connection) -> Iterator[Row]:
    """Every document as Ingest takes it."""
    for key, title, metadata, content_hash in database.execute("SELECT * FROM documents"):
        rows = database.execute("SELECT text, vector, payload FROM memories WHERE document = ? ORDER BY chunk", (key,))
        references = [ingestion_pb2.PreparedReference(text=t, embedding=v, payload=p) for t, v, p in rows]
        prepared = ingestion_pb2.PreparedDocument(
            key=key, title=title, metadata=json.loads(metadata), references=references, content_hash=content_hash
        )
        yield Row("backup", "", key, ingestion_pb2.IngestItem(prepared=prepared))


def _head(bases: knowledge_bases_pb2_grpc.KnowledgeBasesStub, name: str) -> pb.ExportHead:
    """What the knowledge base holds now."""
    request = pb.ExportKnowledgeBaseRequest(name=name, limit=1)
    responses = bases.ExportKnowledgeBase(request, timeout=60)
    return next(one.head for one in responses if one.HasField("head"))
