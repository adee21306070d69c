"""Backup and restore of a knowledge base over the wire, while the service runs.

a snapshot of the service --ExportKnowledgeBase--> one file (`memory3.files.knowledge_file`) --> an archive
an archive --> its newest file, compared with its checksum --Ingest--> a new knowledge base
"""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np

from memory3.errors import CorruptFile, shortened
from memory3.files import knowledge_file
from memory3.files.knowledge_file import DocumentRecord, Head, Reference
from memory3.printable import counted
from memory_service.archive import FILE_4, Archive, Backup
from memory_service.client import bases
from memory_service.client.connection import RemoteError, connected
from memory_service.client.ingest import Destination, Ingestion, Upload
from memory_service.stores.store import WriterIdentity, digest, require_same
from protos.memory.v1 import ingestion_pb2, knowledge_bases_pb2_grpc
from protos.memory.v1 import knowledge_bases_pb2 as pb

_FILE = "snapshot.memories"
_ATTEMPTS = 3
_TIMEOUT_S = 24 * 3600.0
_SHOWN_FAILURES = 5

Progress = Callable[[int, int], None]
"""Gets what is done and all there is: memories of a backup, documents of a restoration."""


# Making one


def back_up(
    address: str, name: str, archive: Archive, on_progress: Progress = lambda done, total: None, *, keep: int = 1
) -> Backup:
    """Saves a knowledge base as it is at this moment; of the archive's backups the newest `keep` stay.

    Raises RemoteError and the archive's errors, InvalidInput for an archive of another knowledge base.
    """
    archive.require_of(name)
    with archive.staging() as folder:
        attempt = 1
        while True:
            path = folder / f"{attempt}-{_FILE}"
            try:
                with connected(address) as channel:
                    head = _saved(channel, name, path, on_progress)
                break
            except RemoteError as error:
                if attempt == _ATTEMPTS or not (error.retryable or error.reason == "KNOWLEDGE_BASE_CHANGED"):
                    raise
            path.unlink(missing_ok=True)
            attempt += 1
        backup = archive.add(
            path,
            knowledge_base=head.name,
            documents=head.documents,
            memories=head.memories,
            unwritten_documents=head.unwritten,
        )
    archive.prune(keep)
    return backup


def _saved(channel: grpc.Channel, name: str, path: Path, on_progress: Progress) -> Head:
    """Writes a snapshot into a new file."""
    stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
    responses = stub.ExportKnowledgeBase(pb.ExportKnowledgeBaseRequest(name=name, snapshot=True), timeout=_TIMEOUT_S)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        for pragma in ("journal_mode = OFF", "synchronous = OFF"):  # a file that is not whole is thrown away
            database.execute(f"PRAGMA {pragma}")
        sent = next(responses).head
        head = _head_of(sent)
        database.execute("BEGIN")
        knowledge_file.create(database, head)
        writing = _Writing(database, head)
        for response in responses:
            writing.add(response.page)
            on_progress(len(writing.ids), max(sent.memory_count, len(writing.ids)))
        head = writing.finished()
        knowledge_file.replace_head(database, head)
        database.execute("COMMIT")
    return head


def _head_of(sent: pb.ExportHead) -> Head:
    if sent.memory_count and not sent.document_count:
        message = "the service is older than this command and exports no snapshots: update it"
        raise RemoteError(message, grpc.StatusCode.UNIMPLEMENTED)
    return replace(Head.of_export(sent), description=sent.knowledge_base.description)


class _Writing:
    """A snapshot on its way into a file. ids: of the memories that came."""

    def __init__(self, database: sqlite3.Connection, head: Head) -> None:
        self.ids: list[int] = []
        self._database = database
        self._head = head
        self._rows: dict[str, int] = {}  # of documents of which more is to come
        self._missing: dict[str, int] = {}
        self._documents = self._unwritten = 0

    def add(self, page: pb.ExportPage) -> None:
        for one in page.documents:
            document = DocumentRecord(
                one.document_key,
                one.title,
                dict(one.metadata),
                one.content_hash,
                one.reference_count,
                written=one.memories_written,
            )
            self._rows[document.key] = knowledge_file.add_document(self._database, document)
            self._missing[document.key] = document.references
            self._documents += 1
            self._unwritten += not document.written
        for memory in page.memories:
            vector = np.frombuffer(memory.vector, "<f4")
            reference = Reference(
                memory.memory_id,
                memory.document_key,
                memory.title,
                memory.chunk_number,
                memory.text,
                vector,
                memory.payload,
                memory.payload_crc32c,
            )
            knowledge_file.add_reference(self._database, self._rows[memory.document_key], reference)
            self.ids.append(memory.memory_id)
            self._missing[memory.document_key] -= 1
            if not self._missing[memory.document_key]:
                del self._rows[memory.document_key], self._missing[memory.document_key]

    def finished(self) -> Head:
        """The head of what came; raises CorruptFile where some of it did not."""
        if self._missing:
            key = shortened(next(iter(self._missing)))
            raise CorruptFile(f"the service sent document {key!r} in part: back up again")
        return replace(
            self._head,
            memories=len(self.ids),
            id_digest=digest(self.ids),
            documents=self._documents,
            unwritten=self._unwritten,
        )


# Bringing one back


def restore(
    address: str, name: str, archive: Archive, on_progress: Progress = lambda done, total: None, *, stamp: str = ""
) -> Head:
    """Restores a backup, the newest if none is named by its `stamp`, into a new knowledge base.

    Documents whose memories were not written are stored so; the service writes them. Raises RemoteError, also where
    documents were refused, MissingFile, CorruptFile, an IdentityMismatch.
    """
    backup = archive.backup(stamp)
    with archive.verified(backup) as path, _opened(path) as saved:
        head = saved.head
        to = Destination(address, name, memory_writing=ingestion_pb2.MEMORY_WRITING_LATER)
        made_by = WriterIdentity(head.model_id, head.codec_id, head.memory_format_id, head.embedder_id, head.dimension)
        require_same(made_by, to.identity(), "restore it into a service that runs the model of the backup")
        with connected(address) as channel:
            stub = knowledge_bases_pb2_grpc.KnowledgeBasesStub(channel)
            bases.create(stub, name, head.description)
            refused: list[Upload] = []
            for done, upload in enumerate(Ingestion(to).run(map(_upload, saved.documents())), 1):
                if upload.outcome == "failed":
                    refused.append(upload)
                on_progress(done, head.documents)
            _require_restored(stub, name, head, refused)
    return head


def _require_restored(
    stub: knowledge_bases_pb2_grpc.KnowledgeBasesStub, name: str, head: Head, refused: list[Upload]
) -> None:
    if refused:
        shown = "; ".join(f"document {shortened(one.key)!r}: {one.message}" for one in refused[:_SHOWN_FAILURES])
        raise RemoteError(
            f"{counted(len(refused), 'document')} of {head.documents} were refused, the others are restored ({shown})",
            grpc.StatusCode.ABORTED,
            refused[0].reason,
        )
    counts = stub.GetStatistics(pb.GetStatisticsRequest(name=name), timeout=60)
    same = (counts.document_count, counts.reference_count) == (head.documents, head.memories)
    if same and not head.unwritten:  # ids of memories that are written meanwhile change
        request = pb.ExportKnowledgeBaseRequest(name=name, limit=1)
        responses = stub.ExportKnowledgeBase(request, timeout=60)
        found = next(one.head for one in responses if one.HasField("head"))
        same = found.id_digest == head.id_digest
    if not same:
        raise CorruptFile(
            f"{name!r} holds {counted(counts.reference_count, 'memory')}, the backup {head.memories}, or their ids"
            " differ: delete it and restore again"
        )


def _upload(saved: tuple[DocumentRecord, _References]) -> Upload:
    """A document as Ingest takes it."""
    document, references = saved

    def prepared_references() -> Iterator[ingestion_pb2.PreparedReference]:
        for one in references():
            yield ingestion_pb2.PreparedReference(text=one.text, embedding=one.vector.tobytes(), payload=one.payload)

    prepared = ingestion_pb2.PreparedDocument(
        key=document.key, title=document.title, metadata=document.metadata, content_hash=document.content_hash
    )
    item = ingestion_pb2.IngestItem(prepared=prepared)
    return Upload(document.key, item, source="backup", references_of=prepared_references)


_References = Callable[[], Iterator[Reference]]
"""Reads the references of a document, again with each call; raises CorruptFile."""


class _Saved(Protocol):
    """A file of a backup."""

    @property
    def head(self) -> Head:
        """What is in it."""

    def documents(self) -> Iterator[tuple[DocumentRecord, _References]]:
        """Every document with what reads its references."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Saved]:
    kind = _Format4 if path.name == FILE_4 else _KnowledgeFile
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as database:
        try:
            saved = kind.read(database)
        except (CorruptFile, sqlite3.Error, ValueError) as error:
            raise CorruptFile(f"this is no backup that this release reads: {error}") from error
        yield saved


@dataclass(frozen=True)
class _KnowledgeFile:
    """A file of this release."""

    head: Head
    database: sqlite3.Connection

    @classmethod
    def read(cls, database: sqlite3.Connection) -> _KnowledgeFile:
        return cls(knowledge_file.read_head(database), database)

    def documents(self) -> Iterator[tuple[DocumentRecord, _References]]:
        for row, document in knowledge_file.documents(self.database):
            yield document, functools.partial(knowledge_file.references, self.database, row)


@dataclass(frozen=True)
class _Format4:
    """A file of a release that had a format of its own for backups."""

    head: Head
    database: sqlite3.Connection

    @classmethod
    def read(cls, database: sqlite3.Connection) -> _Format4:
        ((raw,),) = database.execute("SELECT json FROM manifest")
        found: dict[str, Any] = json.loads(raw)
        if found["format"] != 4:
            raise CorruptFile(f"its format is {found['format']}")
        head = Head(
            name="",
            **found["identity"],
            memories=found["memory_count"],
            id_digest=found["id_digest"],
            description=found["description"],
            documents=found["document_count"],
        )
        return cls(head, database)

    def documents(self) -> Iterator[tuple[DocumentRecord, _References]]:
        for key, title, metadata, content_hash in self.database.execute("SELECT * FROM documents"):
            document = DocumentRecord(key, title, json.loads(metadata), content_hash)
            yield document, functools.partial(self._references, document)

    def _references(self, document: DocumentRecord) -> Iterator[Reference]:
        key, title = document.key, document.title
        sql = "SELECT id, chunk, text, vector, payload FROM memories WHERE document = ? ORDER BY chunk"
        for raw_id, chunk, text, raw, payload in self.database.execute(sql, (key,)):
            memory_id, vector = int.from_bytes(raw_id, "big"), np.frombuffer(raw, "<f4")
            yield Reference(memory_id, key, title, chunk, text, vector, payload, 0)
