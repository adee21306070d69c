"""One knowledge base in SQLite: documents, references, vectors, payloads, and the metadata that filters ask for.

A commit is on the disk when it returns. References have rows whose numbers rise and are never used twice; those of
one document follow one another.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import sqlite3
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import google_crc32c
import numpy as np

from memory_model.errors import Memory3Error
from memory_model.words import query_words, text_words
from memory_service.errors import KnowledgeBaseDamaged, StoreFull, StoreUnavailable
from memory_service.stores import NewDocument, Revision
from memory_service.stores.digest import digest
from memory_service.stores.filters import Exists, In, Range, number

_TABLES = """
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, memories INTEGER NOT NULL,
    digest INTEGER NOT NULL, next_row INTEGER NOT NULL
);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, title TEXT NOT NULL, metadata TEXT NOT NULL,
    content_hash BLOB NOT NULL, stored_ms INTEGER NOT NULL, first_row INTEGER NOT NULL, row_count INTEGER NOT NULL,
    text_bytes INTEGER NOT NULL, payload_bytes INTEGER NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX unwritten ON documents(key) WHERE payload_bytes = 0;
CREATE TABLE refs (
    row INTEGER PRIMARY KEY, document INTEGER NOT NULL, memory_id INTEGER NOT NULL, crc32c INTEGER NOT NULL,
    text TEXT NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX memory_ids ON refs(memory_id);
CREATE TABLE words (row INTEGER PRIMARY KEY, hashes BLOB NOT NULL);
CREATE TABLE vectors (row INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE payloads (row INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE metadata (
    name TEXT NOT NULL, value TEXT NOT NULL, document INTEGER NOT NULL, number REAL,
    PRIMARY KEY (name, value, document)
) WITHOUT ROWID;
CREATE INDEX numbers ON metadata(name, number, document) WHERE number IS NOT NULL;
"""
_SHIFT = 1 << 63  # SQLite's integers are signed: unsigned ones are kept shifted, which keeps their order
_MARKS = 5000  # values of one statement
_DOCUMENT = (
    "id, key, title, metadata, content_hash, stored_ms, first_row, row_count, text_bytes, payload_bytes"
)
_FREE_PAGES, _FREE_SHARE, _PAGES_A_TURN = 1024, 0.25, 4096
_PATIENCE_S = 30
_COMMITTED = struct.Struct("<QI")


class Stored(NamedTuple):
    """A document as a row of the table."""

    id: int
    key: str
    title: str
    metadata: Mapping[str, str]
    content_hash: bytes
    stored_ms: int
    first_row: int
    row_count: int
    text_bytes: int
    payload_bytes: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> Stored:
        """From the columns of _DOCUMENT."""
        return cls._make((*row[:3], json.loads(row[3]), *row[4:]))

    def checksum(self) -> int:
        """CRC-32C over all of it."""
        numbers = struct.pack("<6q", self.id, *self[5:])
        return _crc(self.key, self.title, _json(self.metadata), self.content_hash, numbers)


class Reference(NamedTuple):
    """A reference as stored. payload: None where it was not to be read."""

    memory_id: int
    crc32c: int
    key: str
    title: str
    chunk: int
    metadata: str
    text: str
    payload: bytes | None


class Words(NamedTuple):
    """Hashes of a reference's text, in order, uint32 [n], and of its document's title, distinct ones."""

    text: np.ndarray
    title: list[int]


class Added(NamedTuple):
    """References in the order of their rows. rows, documents: int64 [n]; ids: uint64 [n]."""

    rows: np.ndarray
    documents: np.ndarray
    ids: np.ndarray


class Database:
    """Reading is thread-safe, each reader has a connection of its own; writes have one caller at a time."""

    def __init__(self, path: Path, *, create: bool = False, writable: bool = True) -> None:
        """Raises KnowledgeBaseDamaged where the file is missing."""
        self.path = path
        self._mode = "rwc" if create else "rw"
        if not writable:
            self._mode = "ro" if os.access(path.parent, os.W_OK) else "ro&immutable=1"
        if not create and not path.is_file():
            raise KnowledgeBaseDamaged(f"{path.name} is missing")
        self._committed = path.with_name("committed")
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._closed = False
        self._writer = self._connect()
        if create:
            for pragma in ("page_size = 8192", "auto_vacuum = INCREMENTAL", "journal_mode = WAL"):
                self._writer.execute(f"PRAGMA {pragma}")
            state = (time.time_ns(), 0, -_SHIFT, 0)
            self._writer.executescript(
                f"BEGIN; {_TABLES} INSERT INTO state VALUES (1, {', '.join(map(str, state))}); COMMIT;"
            )
            self.note_commit(state[0])
            sync_folder(path.parent)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={self._mode}", uri=True, isolation_level=None,
            check_same_thread=False, timeout=_PATIENCE_S,
        )  # fmt: skip
        for pragma in ("synchronous = FULL", "cache_size = -16384", f"journal_size_limit = {64 << 20}"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    def close(self) -> None:
        """Lets go of the file; its journal goes into it."""
        self._closed = True
        self._writer.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()  # one that reads at this moment is closed when it has read

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection whose statements see one state of the file."""
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self._connect()
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            if self._closed:
                connection.close()
            else:
                self._idle.put(connection)

    # Reading

    def revision(self, connection: sqlite3.Connection) -> Revision:
        """After the newest commit that the connection sees."""
        found = connection.execute("SELECT revision, memories, digest FROM state").fetchall()
        if len(found) != 1:
            raise KnowledgeBaseDamaged(f"{self.path.name} does not say what it holds")
        number, memories, shifted = found[0]
        return Revision(number, memories, shifted + _SHIFT)

    def added(self, connection: sqlite3.Connection, after_row: int) -> Added:
        """The references behind a row."""
        sql = "SELECT row, document, memory_id FROM refs WHERE row > ? ORDER BY row"
        found = np.fromiter((one for row in connection.execute(sql, (after_row,)) for one in row), np.int64)
        rows, documents, ids = np.ascontiguousarray(found.reshape(-1, 3).T)
        return Added(rows, documents, _unshifted(ids))

    def vectors(self, connection: sqlite3.Connection, rows: Sequence[int], dimension: int) -> np.ndarray:
        """Vectors by their rows, which ascend, float32 [n, dimension]; raises KnowledgeBaseDamaged."""
        found = _rows(connection, "SELECT row, vector FROM vectors WHERE row IN", rows)
        joined = np.frombuffer(b"".join(vector for _, vector in sorted(found)), "<f4")
        if joined.size != dimension * len(rows):
            raise KnowledgeBaseDamaged(f"{self.path.name} lacks vectors of {dimension} numbers")
        return joined.reshape(-1, dimension)

    def words(self, connection: sqlite3.Connection, rows: Sequence[int]) -> dict[int, Words]:
        """What the words of references are compared by; raises KnowledgeBaseDamaged for rows that are gone.

        One row of joined values: Python's lock is then let go of once, not once a reference.
        """
        sql = (
            "SELECT CAST(group_concat(hashes, '') AS BLOB) FROM"
            " (SELECT hashes FROM words WHERE row IN ({}) ORDER BY row)"
        )
        found: dict[int, Words] = {}
        for part in _parts(sorted(rows)):
            (joined,) = connection.execute(sql.format(",".join("?" * len(part))), part).fetchone()
            numbers, start = np.frombuffer(joined or b"", "<u4"), 0
            for row in part:
                if start >= len(numbers):
                    raise KnowledgeBaseDamaged(f"{self.path.name} has lost the words of references")
                text = start + 2 + int(numbers[start])
                end = text + int(numbers[start + 1])
                found[row] = Words(numbers[text:end], numbers[start + 2 : text].tolist())
                start = end
        return found

    def references(
        self, connection: sqlite3.Connection, rows: Sequence[int], held: Sequence[int] = ()
    ) -> dict[int, Reference]:
        """References by their rows; those of the rows that are `held` come without payload.

        Raises KnowledgeBaseDamaged for rows that are gone and payloads that are not what their CRC-32C says.
        """
        found: dict[int, Reference] = {}
        sql = (
            "SELECT r.row, r.memory_id, r.crc32c, d.key, d.title, r.row - d.first_row, d.metadata, r.text,"
            f" CASE WHEN r.row IN ({','.join(map(str, held))}) THEN NULL ELSE p.payload END"
            " FROM refs r JOIN documents d ON d.id = r.document JOIN payloads p ON p.row = r.row WHERE r.row IN ({})"
        )
        for part in _parts(rows):
            marks = ",".join("?" * len(part))
            for row, memory_id, *rest in connection.execute(sql.format(marks), part).fetchall():
                one = found[row] = Reference(memory_id + _SHIFT, *rest)
                if one.payload is not None and google_crc32c.value(one.payload) != one.crc32c:
                    message = f"the payload of memory {one.memory_id} is not what was written"
                    raise KnowledgeBaseDamaged(message)
        if missing := set(rows) - found.keys():
            raise KnowledgeBaseDamaged(f"{self.path.name} has lost the memory of row {min(missing)}")
        return found

    def documents(self, connection: sqlite3.Connection, keys: Sequence[str]) -> dict[str, Stored]:
        """The documents of these keys; absent ones are left out."""
        found = _rows(connection, f"SELECT {_DOCUMENT} FROM documents WHERE key IN", keys)
        return {document.key: document for document in map(Stored.of, found)}

    def texts(self, connection: sqlite3.Connection, document: Stored) -> list[tuple[int, str]]:
        """(memory id, text) of a document's references, in order."""
        found = connection.execute(
            "SELECT memory_id, text FROM refs WHERE row >= ? AND row < ? ORDER BY row",
            (document.first_row, document.first_row + document.row_count),
        )
        return [(memory_id + _SHIFT, text) for memory_id, text in found]

    def rows_after(self, connection: sqlite3.Connection, after_id: int | None, count: int) -> list[int]:
        """Rows with the smallest memory ids above one, in the order of the ids."""
        first = 0 if after_id is None else after_id + 1
        if first >= 2 * _SHIFT:
            return []
        sql = "SELECT row FROM refs WHERE memory_id >= ? ORDER BY memory_id LIMIT ?"
        return [row for (row,) in connection.execute(sql, (first - _SHIFT, count))]

    def keys(
        self, connection: sqlite3.Connection, prefix: str, after_key: str, count: int
    ) -> list[tuple[str, Mapping[str, str]]]:
        """(key, metadata) of documents whose keys begin with `prefix`, after one, in the order of their bytes."""
        found = connection.execute(
            "SELECT key, metadata FROM documents WHERE key > ? AND key >= ? AND substr(key, 1, ?) = ?"
            " ORDER BY key LIMIT ?",
            (after_key, prefix, len(prefix), prefix, count),
        )
        return [(key, json.loads(metadata)) for key, metadata in found]

    def unwritten(self, connection: sqlite3.Connection, count: int) -> list[str]:
        """Keys of documents without payloads."""
        found = connection.execute("SELECT key FROM documents WHERE payload_bytes = 0 LIMIT ?", (count,))
        return [key for (key,) in found]

    def sums(self, connection: sqlite3.Connection) -> tuple[int, ...]:
        """(documents, references, payload bytes, text bytes, documents without payloads)."""
        found = connection.execute(
            "SELECT count(*), total(row_count), total(payload_bytes), total(text_bytes),"
            " total(payload_bytes = 0) FROM documents"
        ).fetchone()
        return tuple(map(int, found))

    def passing(self, connection: sqlite3.Connection, condition: In | Exists | Range) -> np.ndarray:
        """Ids of the documents that pass, int64 [n], ascending.

        One row of joined ids: Python's lock is then let go of once, not once an id.
        """
        where, values = _where(condition)
        (joined,) = connection.execute(
            f"SELECT group_concat(document) FROM metadata WHERE name = ? AND {where}",
            (condition.name, *values),
        ).fetchone()
        return np.unique(np.fromstring(joined, np.int64, sep=",")) if joined else np.empty(0, np.int64)

    # Writing

    @contextlib.contextmanager
    def batch(self) -> Iterator[Batch]:
        """Changes that are there after a crash all together, or not at all; on the disk when it ends."""
        connection = self._writer
        connection.execute("BEGIN IMMEDIATE")
        try:
            batch = Batch(connection, self.revision(connection))
            yield batch
            batch.finish()
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    def give_back(self) -> None:
        """Makes the file smaller where much of it is free."""
        run = self._writer.execute
        (pages,), (free,) = run("PRAGMA page_count").fetchone(), run("PRAGMA freelist_count").fetchone()
        if free > max(_FREE_PAGES, _FREE_SHARE * pages):
            run(f"PRAGMA incremental_vacuum({_PAGES_A_TURN})").fetchall()
            for pragma in (
                "busy_timeout = 0",
                "wal_checkpoint(TRUNCATE)",
                f"busy_timeout = {_PATIENCE_S * 1000}",
            ):
                run(f"PRAGMA {pragma}").fetchall()  # where somebody reads, the file gets shorter another time

    def note_commit(self, revision: int) -> None:
        """To be called once a batch is committed, before it is acknowledged.

        SQLite takes a journal that is lost or harmed for one that ended earlier: this file knows better.
        """
        number = revision.to_bytes(8, "little")
        descriptor = os.open(self._committed, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, _COMMITTED.pack(revision, google_crc32c.value(number)), 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    # Checking

    def require_newest(self, revision: int) -> None:
        """Raises KnowledgeBaseDamaged where a batch was acknowledged that the file does not have."""
        with contextlib.suppress(OSError, struct.error):  # without it nothing is lost
            noted, crc = _COMMITTED.unpack(self._committed.read_bytes())
            if crc == google_crc32c.value(noted.to_bytes(8, "little")) and noted > revision:
                raise KnowledgeBaseDamaged(
                    f"acknowledged documents are lost: {self.path.name} or its journal is older than they are"
                )

    def counted(self, connection: sqlite3.Connection) -> Iterator[str]:
        """What does not agree among counts and ids."""
        state, of_documents = self.revision(connection), self.sums(connection)[1]
        ids = np.fromiter(
            (one for (one,) in connection.execute("SELECT memory_id FROM refs NOT INDEXED")), np.int64
        )
        if digest(_unshifted(ids).tolist()) != state.digest:
            yield f"the memories of {self.path.name} are not those that were written"
        counts = {
            table: connection.execute(f"SELECT count(*) FROM {table} NOT INDEXED").fetchone()[0]
            for table in ("refs", "words", "vectors", "payloads")
        }
        if {of_documents, *counts.values()} != {state.memories}:
            yield f"{self.path.name} has {state.memories} memories, {of_documents} of documents, rows of {counts}"

    def changed(self, connection: sqlite3.Connection) -> Iterator[str]:
        """What is not as it was written; reads everything."""
        for (found,) in connection.execute("PRAGMA integrity_check(5)"):
            if found != "ok":
                yield f"{self.path.name}: {found}"
        sql = "SELECT name, value, number, document FROM metadata NOT INDEXED"
        sums = [sum(map(_pair_crc, connection.execute(sql))), 0]  # equal sets have equal sums
        for *columns, checksum in connection.execute(
            f"SELECT {_DOCUMENT}, checksum FROM documents NOT INDEXED"
        ):
            document = Stored.of(columns)
            if document.checksum() != checksum:
                yield f"document {document.key[:200]!r} is not what was written"
            pairs = ((name, value, number(value), document.id) for name, value in document.metadata.items())
            sums[1] += sum(map(_pair_crc, pairs))
        if sums[0] != sums[1]:
            yield f"{self.path.name} has other metadata in its index than in its documents"
        joined = (
            "SELECT r.row, r.document, r.memory_id, r.crc32c, r.text, w.hashes, v.vector, r.checksum, p.payload"
            " FROM refs r JOIN words w ON w.row = r.row"
            " JOIN vectors v ON v.row = r.row JOIN payloads p ON p.row = r.row ORDER BY r.row"
        )
        for row, document_id, memory_id, crc, text, hashes, vector, checksum, payload in connection.execute(
            joined
        ):
            if _checksum(row, document_id, memory_id, crc, text, hashes, vector) != checksum:
                yield f"the text or vector of memory {memory_id + _SHIFT} is not what was written"
            if google_crc32c.value(payload) != crc:
                yield f"the payload of memory {memory_id + _SHIFT} is not what was written"


class Batch:
    """What one commit changes."""

    def __init__(self, connection: sqlite3.Connection, before: Revision) -> None:
        self._connection = connection
        self._rows: list[int] = []
        self._documents: list[int] = []
        self._ids: list[int] = []
        # The clock's number, so that what a backup was made of is not taken for what was restored from it.
        self.revision = Revision(max(time.time_ns(), before.number + 1), before.memories, before.digest)
        (self._next_row,) = connection.execute("SELECT next_row FROM state").fetchone()

    def begin_at(self, row: int) -> None:
        """The first row that may be used: no smaller one is."""
        self._next_row = max(self._next_row, row)

    @property
    def added(self) -> Added:
        """The references that were added so far."""
        return Added(
            np.array(self._rows, np.int64),
            np.array(self._documents, np.int64),
            np.array(self._ids, np.uint64),
        )

    def remove(self, document: Stored) -> None:
        """A document with all that belongs to it."""
        run, rows = self._connection.execute, (document.first_row, document.first_row + document.row_count)
        ids = [one + _SHIFT for (one,) in run("SELECT memory_id FROM refs WHERE row >= ? AND row < ?", rows)]
        for table in ("refs", "words", "vectors", "payloads"):
            run(f"DELETE FROM {table} WHERE row >= ? AND row < ?", rows)
        self._connection.executemany(
            "DELETE FROM metadata WHERE name = ? AND value = ? AND document = ?",
            [(*pair, document.id) for pair in document.metadata.items()],
        )
        run("DELETE FROM documents WHERE id = ?", (document.id,))
        self._count(-len(ids), ids)

    def add(self, new: NewDocument, vectors: np.ndarray) -> None:
        """A document whose key none has; vectors: of its references, float32 [n, dimension], of unit length."""
        run, many = self._connection.execute, self._connection.executemany
        references, first = new.references, self._next_row
        (last_id,) = run(
            "SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'documents'"
        ).fetchone()
        document = Stored(
            last_id + 1, new.key, new.title, dict(new.metadata), new.content_hash, time.time_ns() // 1_000_000, first,
            len(references), sum(len(r.text.encode()) for r in references), sum(len(r.payload) for r in references),
        )  # fmt: skip
        columns = (*document[:3], _json(document.metadata), *document[4:], document.checksum())
        run(
            f"INSERT INTO documents ({_DOCUMENT}, checksum) VALUES ({', '.join('?' * len(columns))})", columns
        )
        many(
            "INSERT INTO metadata (name, value, document, number) VALUES (?, ?, ?, ?)",
            [(name, value, document.id, number(value)) for name, value in new.metadata.items()],
        )
        title = query_words(new.title) if new.title else []
        refs, words, kept, payloads = [], [], [], []
        for row, (reference, vector) in enumerate(zip(references, vectors, strict=True), first):
            hashes, raw = _packed(title, text_words(reference.text)), np.asarray(vector, "<f4").tobytes()
            head = (row, document.id, reference.memory_id - _SHIFT, reference.crc32c, reference.text)
            refs.append((*head, _checksum(*head, hashes, raw)))
            words.append((row, hashes))
            kept.append((row, raw))
            payloads.append((row, bytes(reference.payload)))
        many("INSERT INTO refs VALUES (?, ?, ?, ?, ?, ?)", refs)
        for table, values in (("words", words), ("vectors", kept), ("payloads", payloads)):
            many(f"INSERT INTO {table} VALUES (?, ?)", values)
        self._next_row += len(references)
        self._rows += range(first, self._next_row)
        self._documents += [document.id] * len(references)
        ids = [reference.memory_id for reference in references]
        self._ids += ids
        self._count(len(references), ids)

    def _count(self, change: int, ids: Sequence[int]) -> None:
        before = self.revision
        self.revision = Revision(before.number, before.memories + change, before.digest ^ digest(ids))

    def finish(self) -> None:
        """Writes what the knowledge base holds after it."""
        state = self.revision.number, self.revision.memories, self.revision.digest - _SHIFT, self._next_row
        self._connection.execute(
            "UPDATE state SET revision = ?, memories = ?, digest = ?, next_row = ?", state
        )


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Raises StoreFull, KnowledgeBaseDamaged or StoreUnavailable for what the disk or SQLite says while `doing`."""
    try:
        yield
    except Memory3Error:
        raise
    except (OSError, sqlite3.Error) as error:
        name, number = getattr(error, "sqlite_errorname", None) or "", getattr(error, "errno", None)
        if name.startswith("SQLITE_FULL") or number in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(
                f"the store's disk is full while {doing}: free space, nothing stored before is lost"
            ) from error
        harmed = number in (errno.EIO, errno.ENOENT, errno.EUCLEAN) or name.startswith("SQLITE_IOERR")
        if harmed or (isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.OperationalError)):
            raise KnowledgeBaseDamaged(
                f"the store's files are damaged while {doing} ({error}): run `memory-service doctor`"
            ) from error
        raise StoreUnavailable(f"the store failed while {doing}: {error}") from error


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[start : start + _MARKS] for start in range(0, len(values), _MARKS))


def _rows(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for part in _parts(values):
        found += connection.execute(f"{sql} ({','.join('?' * len(part))})", part).fetchall()
    return found


def _where(condition: In | Exists | Range) -> tuple[str, list[Any]]:
    """SQL of a condition on one value, after its name, with its parameters."""
    match condition:
        case In(_, values):
            return f"value IN ({','.join('?' * len(values))})", list(values)
        case Exists():
            return "1", []
        case Range() as bounds:
            limits = {">=": bounds.at_least, ">": bounds.above, "<=": bounds.at_most, "<": bounds.below}
            given = {sign: limit for sign, limit in limits.items() if limit is not None}
            column = "value" if any(isinstance(limit, str) for limit in given.values()) else "number"
            parts = [f"{column} IS NOT NULL", *(f"{column} {sign} ?" for sign in given)]
            return " AND ".join(parts), list(given.values())


def _unshifted(ids: np.ndarray) -> np.ndarray:
    return ids.astype(np.uint64) + np.uint64(_SHIFT)


def _packed(title: Sequence[int], text: np.ndarray) -> bytes:
    """How many words of each, then these, uint32."""
    return np.concatenate([[len(title), len(text)], title, text]).astype("<u4").tobytes()


def _json(metadata: Mapping[str, str]) -> str:
    return json.dumps(dict(metadata), ensure_ascii=False, sort_keys=True)


def _checksum(
    row: int, document: int, memory_id: int, crc: int, text: str, hashes: bytes, vector: bytes
) -> int:
    return _crc(struct.pack("<4q", row, document, memory_id, crc), text, hashes, vector)


def _pair_crc(pair: Sequence[Any]) -> int:
    return _crc(*map(str, pair))


def _crc(*parts: str | bytes) -> int:
    """CRC-32C of all parts, each behind its length."""
    crc = 0
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        crc = google_crc32c.extend(google_crc32c.extend(crc, len(raw).to_bytes(8, "little")), raw)
    return crc
