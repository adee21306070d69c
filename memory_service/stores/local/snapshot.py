"""What can be read of a knowledge base's SQLite file, and what is wrong with it: one state, by one connection."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence

import google_crc32c
import numpy as np

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores import Revision, StoredMemory, digest
from memory_service.stores.filters import Filter, number
from memory_service.stores.local.tables import (
    OF_REFERENCES,
    SHIFT,
    Document,
    Reference,
    Words,
    condition_sql,
    metadata_checksum,
    reference_checksum,
    unpacked_words,
)

_VECTORS_AT_ONCE = 4096


class Snapshot:
    """Reads one state of the file. Methods raise KnowledgeBaseDamaged for what is gone or harmed.

    Where many values are read they come joined in one row: Python's lock is then released once, not once a row.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._run = connection.execute

    def revision(self) -> Revision:
        """After the newest commit in it."""
        found = self._run("SELECT revision, memories, digest FROM state").fetchall()
        if len(found) != 1:
            raise KnowledgeBaseDamaged("the data do not say what they hold")
        newest, memories, shifted = found[0]
        return Revision(newest, memories, shifted + SHIFT)

    # Documents

    def documents(self, keys: Sequence[str]) -> dict[str, Document]:
        """The documents of these keys; absent ones are left out."""
        found = (self._run("SELECT * FROM documents WHERE key = ?", (key,)).fetchone() for key in keys)
        return {document.key: document for document in (Document.of(row) for row in found if row)}

    def texts(self, document: Document) -> list[tuple[int, str]]:
        """(memory id, text) of a document's references, in order."""
        sql = "SELECT memory_id, text FROM refs WHERE row >= ? AND row < ? ORDER BY row"
        return [(shifted + SHIFT, text) for shifted, text in self._run(sql, document.rows)]

    def keys(self, prefix: str, after_key: str, count: int, condition: Filter | None) -> list[str]:
        """Keys that begin with `prefix`, after one, of documents that pass, in the order of their bytes."""
        parameters = [after_key, prefix, len(prefix), prefix]
        sql = (
            "SELECT key FROM documents WHERE key > ? AND key >= ? AND substr(key, 1, ?) = ?"
            f" AND {condition_sql(condition, parameters)} ORDER BY key LIMIT ?"
        )
        return [key for (key,) in self._run(sql, (*parameters, count))]

    def unwritten(self, count: int) -> list[str]:
        """Keys of documents without payloads."""
        sql = "SELECT key FROM documents WHERE payload_bytes = 0 LIMIT ?"
        return [key for (key,) in self._run(sql, (count,))]

    def sums(self) -> tuple[int, ...]:
        """(documents, references, payload bytes, text bytes, documents without payloads)."""
        found = self._run(
            "SELECT count(*), total(row_count), total(payload_bytes), total(text_bytes),"
            " total(payload_bytes = 0) FROM documents"
        ).fetchone()
        return tuple(map(int, found))

    def rows_of(self, condition: Filter | None, count: int) -> np.ndarray:
        """Which of the first `count` rows are of documents that pass, bool [count]."""
        parameters: list[object] = []
        where = condition_sql(condition, parameters)
        (joined,) = self._run(
            "SELECT group_concat(first_row || ',' || (first_row + row_count)) FROM documents"
            f" WHERE {where}", parameters,
        ).fetchone()  # fmt: skip
        steps = np.zeros(count + 1, np.int8)
        if joined:
            first, end = np.fromstring(joined, np.int64, sep=",").clip(0, count).reshape(-1, 2).T
            steps[first] += 1
            steps[end] -= 1
        return np.cumsum(steps[:-1], dtype=np.int8) > 0

    # References

    def references(self, rows: Sequence[int], held_ids: frozenset[int]) -> dict[int, Reference]:
        """References by their rows; those of `held_ids` come without payload."""
        held = ",".join(str(memory_id - SHIFT) for memory_id in held_ids)
        found: dict[int, Reference] = {}
        for row, shifted, *rest in self._run(
            "SELECT r.row, r.memory_id, r.crc32c, d.key, d.title, r.row - d.first_row, d.metadata, r.text,"
            f" CASE WHEN r.memory_id IN ({held}) THEN NULL ELSE p.payload END FROM refs r"
            " JOIN documents d ON d.id = r.document JOIN payloads p ON p.row = r.row"
            " WHERE r.row IN (SELECT value FROM json_each(?))",
            (json.dumps(rows),),
        ).fetchall():
            found[row] = one = Reference(shifted + SHIFT, *rest)
            if one.payload is not None:
                _require_whole(one.memory_id, one.payload, one.crc32c)
        if missing := set(rows) - found.keys():
            raise KnowledgeBaseDamaged(f"the memory of row {min(missing)} is lost")
        return found

    def words(self, rows: Sequence[int]) -> dict[int, Words]:
        """What the words of references are compared by."""
        (joined,) = self._run(
            "SELECT CAST(group_concat(hashes, '') AS BLOB) FROM (SELECT hashes FROM words"
            " WHERE row IN (SELECT value FROM json_each(?)) ORDER BY row)",
            (json.dumps(rows),),
        ).fetchone()
        found = dict(zip(sorted(rows), unpacked_words(joined or b""), strict=False))
        if len(found) < len(rows):
            raise KnowledgeBaseDamaged("the words of references are lost")
        return found

    def memories(self, after_id: int | None, count: int) -> list[StoredMemory]:
        """See Store."""
        first = 0 if after_id is None else after_id + 1
        sql = (
            "SELECT r.memory_id, d.key, d.title, r.row - d.first_row, r.text, v.vector, p.payload, r.crc32c"
            " FROM refs r JOIN documents d ON d.id = r.document JOIN vectors v ON v.row = r.row"
            " JOIN payloads p ON p.row = r.row WHERE r.memory_id >= ? ORDER BY r.memory_id LIMIT ?"
        )
        found = []
        if first < 2 * SHIFT:
            for shifted, key, title, chunk, text, vector, payload, crc in self._run(
                sql, (first - SHIFT, count)
            ):
                _require_whole(shifted + SHIFT, payload, crc)
                numbers = np.frombuffer(vector, "<f4")
                found.append(StoredMemory(shifted + SHIFT, key, title, chunk, text, numbers, payload, crc))
        return found

    def vectors(self, first_row: int, dimension: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """From one row on, some at a time: rows, int64 [n] ascending, and vectors, float32 [n, dimension]."""
        found = self._run("SELECT row, vector FROM vectors WHERE row >= ? ORDER BY row", (first_row,))
        while part := found.fetchmany(_VECTORS_AT_ONCE):
            vectors = np.frombuffer(b"".join(vector for _, vector in part), "<f4")
            if vectors.size != dimension * len(part):
                raise KnowledgeBaseDamaged(f"vectors have other lengths than {dimension} numbers")
            yield np.array([row for row, _ in part], np.int64), vectors.reshape(-1, dimension)

    # Checking

    @contextlib.contextmanager
    def interrupted_by(self, stop: threading.Event) -> Iterator[None]:
        """Statements end with sqlite3.OperationalError once the event is set."""
        self._connection.set_progress_handler(stop.is_set, 10_000)
        try:
            yield
        finally:
            self._connection.set_progress_handler(None, 0)

    def differences(self) -> Iterator[str]:
        """What does not agree among counts and ids."""
        state, of_documents = self.revision(), self.sums()[1]
        ids = np.fromiter((one for (one,) in self._run("SELECT memory_id FROM refs NOT INDEXED")), np.int64)
        if digest(ids.astype(np.uint64) + np.uint64(SHIFT)) != state.digest:
            yield "the memories are not those that were written"
        counts = {
            table: self._run(f"SELECT count(*) FROM {table} NOT INDEXED").fetchone()[0]
            for table in OF_REFERENCES
        }
        if {of_documents, *counts.values()} != {state.memories}:
            yield f"there are {state.memories} memories, {of_documents} of documents, rows of {counts}"

    def changes(self) -> Iterator[str]:
        """What is not as it was written; reads everything."""
        for (found,) in self._run("PRAGMA integrity_check(5)"):
            if found != "ok":
                yield str(found)
        indexed = metadata_checksum(
            self._run("SELECT name, value, number, document FROM metadata NOT INDEXED")
        )
        for row in self._run("SELECT * FROM documents NOT INDEXED"):
            document = Document.of(row)
            if document.row() != row:
                yield f"document {document.key[:200]!r} is not what was written"
            indexed -= metadata_checksum(
                (name, value, number(value), document.id) for name, value in document.metadata.items()
            )
        if indexed:
            yield "the index of metadata has others than the documents"
        for row, document_id, shifted, crc, text, hashes, vector, checksum, payload in self._run(
            "SELECT r.row, r.document, r.memory_id, r.crc32c, r.text, w.hashes, v.vector, r.checksum, p.payload"
            " FROM refs r JOIN words w ON w.row = r.row JOIN vectors v ON v.row = r.row"
            " JOIN payloads p ON p.row = r.row ORDER BY r.row"
        ):
            if reference_checksum(row, document_id, shifted, crc, text, hashes, vector) != checksum:
                yield f"the text or vector of memory {shifted + SHIFT} is not what was written"
            if google_crc32c.value(payload) != crc:
                yield f"the payload of memory {shifted + SHIFT} is not what was written"


def _require_whole(memory_id: int, payload: bytes, crc32c: int) -> None:
    if google_crc32c.value(payload) != crc32c:
        raise KnowledgeBaseDamaged(f"the payload of memory {memory_id} is not what was written")
