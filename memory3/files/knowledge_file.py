"""The SQLite file of documents with their memories: a device's knowledge base, a memory pack, a service's backup.

    head        one row, JSON: which knowledge base it is and what wrote it (`Head`)
    documents   key, title, text if it was kept, metadata, content hash, number of references, whether they are written
    refs        references: document, chunk, memory id, text, checksum of text and vector
    vectors     float32 little-endian [dimension] of unit length, by reference
    payloads    payload and its CRC-32C, by reference

Whoever opens the file decides how (encrypted or not, which journal): these functions take the connection. They raise
what SQLite raises, and CorruptFile for a file that is none of these.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from memory3.codec.payload import Identity
from memory3.errors import (
    CodecMismatch,
    CorruptFile,
    EmbedderMismatch,
    FormatMismatch,
    IdentityMismatch,
    ModelMismatch,
    shortened,
)

if TYPE_CHECKING:
    from protos.memory.v1 import knowledge_bases_pb2

FORMAT_VERSION = 2
"""`PRAGMA user_version`. Files of 1 lack the column `written` and are used as they are: all their memories are."""
READABLE = (1, 2)
ID_SHIFT = 1 << 63
"""Memory ids are unsigned, SQLite's integers are signed: they are stored less this, which keeps their order."""
TABLES = (
    "CREATE TABLE head (value TEXT NOT NULL)",
    "CREATE TABLE documents ("
    " id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT, metadata TEXT NOT NULL,"
    " content_hash BLOB NOT NULL, whole INTEGER NOT NULL, written_at REAL NOT NULL,"
    " written INTEGER NOT NULL DEFAULT 1)",
    "CREATE TABLE refs ("
    " id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,"
    " chunk INTEGER NOT NULL, memory_id INTEGER NOT NULL, text TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "CREATE INDEX refs_of_document ON refs (document)",
    "CREATE TABLE vectors (id INTEGER PRIMARY KEY REFERENCES refs ON DELETE CASCADE, vector BLOB NOT NULL)",
    "CREATE TABLE payloads ("
    " id INTEGER PRIMARY KEY REFERENCES refs ON DELETE CASCADE, crc32c INTEGER NOT NULL, payload BLOB NOT NULL)",
)


@dataclass(frozen=True)
class Head:
    """Which knowledge base it is and what wrote it. Ids are hex SHA-256; dimension: of its vectors.

    candidates: nearest by vector that words put in order. Of a pack or a backup, else 0: the service's revision, and
    how many memories it has with which XOR of their ids. unwritten: documents of a backup without memories.
    """

    name: str
    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    dimension: int
    candidates: int = 50
    revision: int = 0
    memories: int = 0
    id_digest: int = 0
    description: str = ""
    documents: int = 0
    unwritten: int = 0

    @property
    def pulled(self) -> bool:
        """Whether a service wrote it."""
        return self.memories > 0

    @classmethod
    def of(cls, name: str, identity: Identity, embedder_id: str, dimension: int) -> Head:
        """A new one's, for what a bundle writes."""
        return cls(name, identity.model_id, identity.codec_id, identity.memory_format_id, embedder_id, dimension)

    @classmethod
    def of_export(cls, sent: knowledge_bases_pb2.ExportHead) -> Head:
        """That of a knowledge base which a service exports."""
        base = sent.knowledge_base
        return cls(
            base.name,
            base.model_id,
            base.codec_id,
            base.memory_format_id,
            base.embedder_id,
            base.dimension,
            sent.rerank_candidates,
            sent.revision,
            sent.memory_count,
            sent.id_digest,
        )

    def require(self, identity: Identity, embedder_id: str, remedy: str) -> None:
        """Raise the mismatch of the first id that is another; remedy: what to do, if not the usual."""
        again = "pull" if self.pulled else "remember --anew"
        remedy = remedy or f"write it anew with `edge-client {again} --kb {self.name}`"
        mismatches: tuple[tuple[type[IdentityMismatch], str, str], ...] = (
            (ModelMismatch, self.model_id, identity.model_id),
            (FormatMismatch, self.memory_format_id, identity.memory_format_id),
            (CodecMismatch, self.codec_id, identity.codec_id),
            (EmbedderMismatch, self.embedder_id, embedder_id),
        )
        for mismatch, theirs, ours in mismatches:
            if theirs != ours:
                raise mismatch(theirs, ours, remedy, subject=f"knowledge base {self.name!r} was written by")


@dataclass(frozen=True)
class DocumentRecord:
    """A document of the file. references: how many it has when it is whole; written: whether their memories are."""

    key: str
    title: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    content_hash: bytes = b""
    references: int = 0
    text: str | None = None
    written: bool = True


@dataclass(frozen=True)
class Reference:
    """A reference with its memory. vector: float32 [dimension] of unit length; crc32c: of the payload."""

    memory_id: int
    key: str
    title: str
    chunk: int
    text: str
    vector: np.ndarray
    payload: bytes
    crc32c: int


def create(connection: sqlite3.Connection, head: Head) -> None:
    """The tables and the head, in a file that holds nothing."""
    for statement in TABLES:
        connection.execute(statement)
    connection.execute("INSERT INTO head VALUES (?)", (json.dumps(asdict(head)),))
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether the file holds nothing, as one whose creation was interrupted."""
    return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0)


def read_head(connection: sqlite3.Connection) -> Head:
    """The head; raises CorruptFile for another format."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in READABLE:
        raise CorruptFile(
            f"it has format version {version}, this program reads {READABLE[0]} to {READABLE[-1]}: it is no knowledge"
            " base, or one of another release"
        )
    try:
        return Head(**json.loads(connection.execute("SELECT value FROM head").fetchone()[0]))
    except (TypeError, ValueError) as error:
        raise CorruptFile(f"it is not a knowledge base: {error}") from error


def replace_head(connection: sqlite3.Connection, head: Head) -> None:
    """Writes another head."""
    connection.execute("UPDATE head SET value = ?", (json.dumps(asdict(head)),))


def add_document(connection: sqlite3.Connection, document: DocumentRecord) -> int:
    """Adds a document whose key none has; returns its row. Its references follow by `add_reference`."""
    values = {
        "key": document.key,
        "title": document.title,
        "text": document.text,
        "metadata": json.dumps(dict(document.metadata), ensure_ascii=False),
        "content_hash": document.content_hash,
        "whole": document.references,
        "written_at": time.time(),
    }
    if not document.written:
        values["written"] = 0
    marks = ", ".join("?" * len(values))
    sql = f"INSERT INTO documents ({', '.join(values)}) VALUES ({marks})"
    row = connection.execute(sql, list(values.values())).lastrowid
    assert row is not None, "an INSERT has a row"
    return row


def add_reference(connection: sqlite3.Connection, document: int, one: Reference) -> None:
    """Adds a reference to the document of this row."""
    vector = one.vector.astype("<f4").tobytes()
    row = connection.execute(
        "INSERT INTO refs (document, chunk, memory_id, text, checksum) VALUES (?,?,?,?,?)",
        (document, one.chunk, one.memory_id - ID_SHIFT, one.text, checksum_of(one.text, vector)),
    ).lastrowid
    connection.execute("INSERT INTO vectors VALUES (?,?)", (row, vector))
    connection.execute("INSERT INTO payloads VALUES (?,?,?)", (row, one.crc32c, one.payload))


def documents(connection: sqlite3.Connection) -> Iterator[tuple[int, DocumentRecord]]:
    """All documents with their rows, in the order in which they were added."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    sql = f"SELECT id, key, title, metadata, content_hash, whole, text, {'1' if version == 1 else 'written'}"
    for row, key, title, metadata, content_hash, whole, text, written in connection.execute(
        f"{sql} FROM documents ORDER BY id"
    ):
        yield row, DocumentRecord(key, title, json.loads(metadata), content_hash, whole, text, bool(written))


def references(connection: sqlite3.Connection, document: int) -> Iterator[Reference]:
    """The references of the document of this row, in order; raises CorruptFile for one that is not what was written."""
    sql = (
        "SELECT memory_id, key, title, chunk, refs.text, checksum, vector, crc32c, payload FROM refs"
        " JOIN documents ON documents.id = document JOIN vectors ON vectors.id = refs.id"
        " JOIN payloads ON payloads.id = refs.id WHERE document = ? ORDER BY chunk"
    )
    for shifted, key, title, chunk, text, checksum, vector, crc32c, payload in connection.execute(sql, (document,)):
        memory_id = shifted + ID_SHIFT
        if checksum_of(text, vector) != checksum or google_crc32c.value(payload) != crc32c:
            raise CorruptFile(f"memory {memory_id:016x} of {shortened(key)!r} is damaged")
        yield Reference(memory_id, key, title, chunk, text, np.frombuffer(vector, "<f4"), payload, crc32c)


def checksum_of(text: str, vector: bytes) -> int:
    """CRC-32C of a reference's text and vector."""
    return int(google_crc32c.extend(google_crc32c.value(text.encode("utf-8", "surrogatepass")), vector))
