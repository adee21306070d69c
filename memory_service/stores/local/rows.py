"""What a transaction reads, changes and checks in a knowledge base's SQLite file, and the rows of its tables.

References have rows whose numbers rise. Those of one document follow one another; the first is the document's number.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from pydantic import TypeAdapter

from memory3.errors import shortened
from memory3.text.words import query_words, text_words
from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores.filters import Exists, Filter, In, Range, condition_sql
from memory_service.stores.local.disk import is_damage
from memory_service.stores.local.tables import checksum_of
from memory_service.stores.store import (
    ALL_REFERENCES,
    SNAPSHOT_PAGE_BYTES,
    Found,
    KnowledgeBase,
    NewDocument,
    Query,
    ReadReference,
    Revision,
    SnapshotPage,
    StoredDocument,
    StoredMemory,
    UsageGroup,
    digest,
    usage_groups,
)

SHIFT = 1 << 63
"""SQLite's integers are signed: memory ids and their digest are kept less this, which keeps their order."""
_RECORD = TypeAdapter(KnowledgeBase)
_VECTORS_AT_ONCE = 4096


class DocumentRow(NamedTuple):
    """A row of `documents`. metadata: as JSON; checksum: of the fields before it and the rows in `refs` and `vectors`.

    written: whether its memories are, else its payloads are empty.
    """

    first_row: int
    row_count: int
    key: str
    title: str
    metadata: str
    content_hash: bytes
    stored_ms: int
    text_bytes: int
    payload_bytes: int
    checksum: int = 0
    written: int = 1

    @property
    def summed(self) -> tuple[Any, ...]:
        """The fields of which `checksum` is."""
        return self[: self._fields.index("checksum")]

    def stored(self, references: Sequence[tuple[int, str]] = ()) -> StoredDocument:
        """As a store returns it, with these references."""
        stored_at = datetime.fromtimestamp(self.stored_ms / 1000, timezone.utc)
        metadata, written = json.loads(self.metadata), bool(self.written)
        return StoredDocument(
            self.key, self.title, metadata, self.content_hash, stored_at, references, self.row_count, written
        )

    @property
    def rows(self) -> tuple[int, int]:
        """The first row of its references, and the one behind the last."""
        return self.first_row, self.first_row + self.row_count


class Words(NamedTuple):
    """Hashes of a reference's text, in order, uint32 [n], and of its document's title, distinct ones."""

    text: np.ndarray
    title: list[int]


def packed_words(title: Sequence[int], text: np.ndarray) -> bytes:
    """As kept in `refs`: how many of each, then these, uint32."""
    return np.concatenate([[len(title), len(text)], title, text]).astype("<u4").tobytes()


def unpacked_words(joined: bytes) -> Iterator[Words]:
    """Of several references, one behind the other."""
    numbers, start = np.frombuffer(joined, "<u4"), 0
    while start < len(numbers):
        text = start + 2 + int(numbers[start])
        end = text + int(numbers[start + 1])
        yield Words(numbers[text:end], numbers[start + 2 : text].tolist())
        start = end


Tables = dict[str, list[tuple[object, ...]]]
"""What a document adds to each table."""


def tables_of(new: NewDocument, first_row: int, vectors: np.ndarray) -> Tables:
    """The rows of a document.

    vectors: of its references, float32 [n, dimension], of unit length; first_row: of theirs.
    """
    title = query_words(new.title) if new.title else []
    document = DocumentRow(
        first_row,
        len(new.references),
        new.key,
        new.title,
        json.dumps(dict(new.metadata), ensure_ascii=False, sort_keys=True),
        new.content_hash,
        time.time_ns() // 1_000_000,
        sum(len(r.text.encode()) for r in new.references),
        sum(len(r.payload) for r in new.references),
        written=int(new.written),
    )
    heads = [
        (row, first_row, r.memory_id - SHIFT, r.crc32c, r.text, packed_words(title, text_words(r.text)))
        for row, r in enumerate(new.references, first_row)
    ]
    raw = [vector.astype("<f4").tobytes() for vector in vectors]
    whole = checksum_of(document.summed, *((*head, one) for head, one in zip(heads, raw, strict=True)))
    return {
        "documents": [document._replace(checksum=whole)],
        "metadata": [(*pair, first_row) for pair in new.metadata.items()],
        "refs": [*heads],
        "vectors": list(enumerate(raw, first_row)),
        "payloads": [(row, bytes(r.payload)) for row, r in enumerate(new.references, first_row)],
    }


def end_of_prefix(prefix: str) -> str | None:
    """The least text above every text that begins with `prefix`, by UTF-8 bytes; None where there is none.

    SQLite's own functions of text end at a NUL character, comparisons do not.
    """
    for length in range(len(prefix), 0, -1):
        following = ord(prefix[length - 1]) + 1
        if following <= sys.maxunicode:
            # No text has the code points between U+D7FF and U+E000.
            return prefix[: length - 1] + ("\ue000" if following == 0xD800 else chr(following))
    return None


def filter_sql(condition: Filter | None, parameters: list[Any]) -> str:
    """A filter (`stores.filters.matches`) as SQL over `documents`; its values are added to `parameters`."""

    def of_one(one: In | Exists | Range) -> str:
        parameters.append(one.name)
        where = ["name = ?"]
        if isinstance(one, In):
            parameters.extend(one.values)
            where.append(f"value IN ({','.join('?' * len(one.values))})")
        elif isinstance(one, Range):
            column = "value" if one.of_text else "number(value)"
            parameters.extend(one.limits.values())
            where += [f"{column} IS NOT NULL", *(f"{column} {sign} ?" for sign in one.limits)]
        return f"first_row IN (SELECT document FROM metadata WHERE {' AND '.join(where)})"

    return condition_sql(condition, of_one)


class Transaction:
    """One state of the file. Methods raise KnowledgeBaseDamaged for what is gone or harmed.

    Where many values are read they come joined in one row: Python's lock is then released once, not once a row.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._run, self._run_many = connection.execute, connection.executemany

    def _state(self, columns: str) -> Sequence[Any]:
        found: list[Sequence[Any]] = self._run(f"SELECT {columns} FROM state").fetchall()
        if len(found) != 1:
            raise KnowledgeBaseDamaged("the data do not say what they hold")
        return found[0]

    def base(self) -> KnowledgeBase:
        """The knowledge base as it was created."""
        record, checksum = self._state("record, checksum")
        if checksum_of([record]) != checksum:
            raise KnowledgeBaseDamaged("its record is not what was written")
        return _RECORD.validate_json(record)

    def revision(self) -> Revision:
        """After the newest commit in it."""
        newest, memories, shifted = self._state("revision, memories, digest")
        return Revision(newest, memories, shifted + SHIFT)

    def begin(self, base: KnowledgeBase) -> None:
        """Notes a new knowledge base, which holds nothing."""
        record = _RECORD.dump_json(base).decode()
        state = (record, checksum_of([record]), time.time_ns(), 0, -SHIFT)
        self._run("INSERT INTO state VALUES (?, ?, ?, ?, ?)", state)

    def adopt(self, base: KnowledgeBase) -> None:
        """Replaces the record, as it was created, by another."""
        record = _RECORD.dump_json(base).decode()
        self._run("UPDATE state SET record = ?, checksum = ?", (record, checksum_of([record])))

    # Documents

    def documents(self, keys: Sequence[str]) -> dict[str, DocumentRow]:
        """The documents of these keys; absent ones are left out."""
        found = (self._run("SELECT * FROM documents WHERE key = ?", (key,)).fetchone() for key in keys)
        return {document.key: document for document in (DocumentRow._make(row) for row in found if row)}

    def texts(self, document: DocumentRow, first: int = 0, count: int = ALL_REFERENCES) -> list[tuple[int, str]]:
        """(memory id, text) of a document's references from chunk `first` on, at most `count`, in order."""
        begin, end = document.rows
        sql = "SELECT memory_id, text FROM refs WHERE row >= ? AND row < ? ORDER BY row LIMIT ?"
        return [(shifted + SHIFT, text) for shifted, text in self._run(sql, (begin + first, end, count))]

    def keys(self, prefix: str, after_key: str, count: int, condition: Filter | None) -> list[str]:
        """Keys that begin with `prefix`, after one, of documents that pass, in the order of their bytes."""
        parameters = [after_key, prefix]
        below = end_of_prefix(prefix)
        if below is not None:
            parameters.append(below)
        sql = (
            f"SELECT key FROM documents WHERE key > ? AND key >= ?{'' if below is None else ' AND key < ?'}"
            f" AND {filter_sql(condition, parameters)} ORDER BY key LIMIT ?"
        )
        return [key for (key,) in self._run(sql, (*parameters, count))]

    def unwritten(self, count: int) -> list[str]:
        """Keys of documents whose memories are still to be written, the most read first."""
        sql = (
            "SELECT d.key FROM uses u JOIN documents d ON d.key = u.key WHERE d.written = 0"
            " GROUP BY d.key ORDER BY sum(u.reads) DESC LIMIT ?"
        )
        read = [key for (key,) in self._run(sql, (count,))]
        if len(read) == count:
            return read
        every = [key for (key,) in self._run("SELECT key FROM documents WHERE written = 0 LIMIT ?", (count,))]
        return list(dict.fromkeys([*read, *every]))[:count]

    # Uses

    def add_reads(self, reads: Mapping[tuple[str, int], int]) -> None:
        """See Store."""
        sql = "INSERT INTO uses VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET reads = reads + excluded.reads"
        self._run_many(sql, [(key, chunk, count) for (key, chunk), count in reads.items()])

    def forget_reads(self, keys: Sequence[str]) -> None:
        """Of documents that were deleted."""
        self._run_many("DELETE FROM uses WHERE key = ?", [(key,) for key in keys])

    def most_read(self, count: int) -> list[ReadReference]:
        """See Store."""
        sql = (
            "SELECT u.key, u.chunk, u.reads FROM uses u JOIN documents d ON d.key = u.key WHERE u.chunk < d.row_count"
            " ORDER BY u.reads DESC LIMIT ?"
        )
        return [ReadReference(*row) for row in self._run(sql, (count,))]

    def usage(self, bounds: Sequence[int]) -> list[UsageGroup]:
        """See Store."""
        level = " + ".join(f"(u.reads >= {int(bound)})" for bound in bounds) or "0"
        read = self._run(
            f"SELECT d.written, {level}, count(*), sum(u.reads), total(1.0 * d.payload_bytes / d.row_count),"
            " total(1.0 * d.text_bytes / d.row_count) FROM uses u JOIN documents d ON d.key = u.key"
            " WHERE u.chunk < d.row_count GROUP BY 1, 2"
        ).fetchall()
        every = self._run(
            "SELECT written, 0, total(row_count), 0, total(payload_bytes), total(text_bytes) FROM documents GROUP BY 1"
        ).fetchall()
        return usage_groups(read, every)

    def count_nul(self) -> int:
        """Documents with a NUL character in their metadata."""
        (count,) = self._run("SELECT count(*) FROM documents WHERE instr(metadata, '\\u0000')").fetchone()
        return int(count)

    def sums(self) -> list[int]:
        """[documents, references, payload bytes, text bytes, documents and references without memories]."""
        found = self._run(
            "SELECT count(*), total(row_count), total(payload_bytes), total(text_bytes),"
            " total(written = 0), total(iif(written = 0, row_count, 0)) FROM documents"
        ).fetchone()
        return list(map(int, found))

    def rows_of(self, condition: Filter | None, count: int) -> np.ndarray:
        """Which of the first `count` rows are of documents that pass, bool [count]."""
        parameters: list[object] = []
        where = filter_sql(condition, parameters)
        (joined,) = self._run(
            f"SELECT group_concat(first_row || ',' || (first_row + row_count)) FROM documents WHERE {where}", parameters
        ).fetchone()
        steps = np.zeros(count + 1, np.int8)
        if joined:
            first, end = np.fromstring(joined, np.int64, sep=",").clip(0, count).reshape(-1, 2).T
            steps[first] += 1
            steps[end] -= 1
        return np.cumsum(steps[:-1], dtype=np.int8) > 0

    # References

    def found(self, rows: Sequence[int], query: Query) -> dict[int, tuple[Found, bytes | None]]:
        """References by their rows, without scores; those that the query holds come without payload."""
        held = json.dumps([memory_id - SHIFT for memory_id in query.held_ids])
        found: dict[int, tuple[Found, bytes | None]] = {}
        for row, shifted, crc, key, title, chunk, metadata, text, payload in self._run(
            "SELECT r.row, r.memory_id, r.crc32c, d.key, d.title, r.row - r.document, d.metadata, r.text,"
            " CASE WHEN r.memory_id IN (SELECT value FROM json_each(?)) THEN NULL ELSE p.payload END FROM refs r"
            " JOIN documents d ON d.first_row = r.document JOIN payloads p ON p.row = r.row"
            " WHERE r.row IN (SELECT value FROM json_each(?))",
            (held, json.dumps(rows)),
        ).fetchall():
            if payload is not None:
                _require_whole(shifted + SHIFT, payload, crc)
            one = Found(
                shifted + SHIFT,
                0.0,
                key,
                title,
                chunk,
                crc,
                text if query.return_text else None,
                metadata=json.loads(metadata) if query.return_metadata else None,
            )
            found[row] = one, payload
        if missing := set(rows) - found.keys():
            raise KnowledgeBaseDamaged(f"the memory of row {min(missing)} is lost")
        return found

    def words(self, rows: Sequence[int]) -> dict[int, Words]:
        """What the words of references are compared by."""
        (joined,) = self._run(
            "SELECT CAST(group_concat(words, '') AS BLOB) FROM (SELECT words FROM refs"
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
            "SELECT r.memory_id, d.key, d.title, r.row - r.document, r.text, v.vector, p.payload, r.crc32c"
            " FROM refs r JOIN documents d ON d.first_row = r.document JOIN vectors v ON v.row = r.row"
            " JOIN payloads p ON p.row = r.row WHERE r.memory_id >= ? ORDER BY r.memory_id LIMIT ?"
        )
        found = []
        if first < 2 * SHIFT:
            for shifted, key, title, chunk, text, raw, payload, crc in self._run(sql, (first - SHIFT, count)):
                _require_whole(shifted + SHIFT, payload, crc)
                vector = np.frombuffer(raw, "<f4")
                found.append(StoredMemory(shifted + SHIFT, key, title, chunk, text, vector, payload, crc))
        return found

    def snapshot(self, first_only: bool) -> Iterator[SnapshotPage]:
        """See `Store.snapshot`."""
        sql = (
            "SELECT r.memory_id, r.row - r.document, r.text, v.vector, p.payload, r.crc32c FROM refs r"
            " JOIN vectors v ON v.row = r.row JOIN payloads p ON p.row = r.row WHERE r.row >= ? AND r.row < ?"
            " ORDER BY r.row"
        )
        for row in self._run("SELECT * FROM documents ORDER BY key"):
            document = DocumentRow._make(row)
            key, title, begin = document.key, document.title, document.first_row
            expected = 1 if first_only else document.row_count
            memories, found, size = list[StoredMemory](), 0, 0
            for shifted, chunk, text, raw, payload, crc in self._run(sql, (begin, begin + expected)):
                _require_whole(shifted + SHIFT, payload, crc)
                taken = len(text) + len(raw) + len(payload)
                if memories and size + taken > SNAPSHOT_PAGE_BYTES:
                    yield SnapshotPage(document.stored(), memories)
                    memories, size = [], 0
                vector = np.frombuffer(raw, "<f4")
                memories.append(StoredMemory(shifted + SHIFT, key, title, chunk, text, vector, payload, crc))
                found, size = found + 1, size + taken
            if found < expected:
                raise KnowledgeBaseDamaged(f"memories of document {shortened(key)!r} are lost")
            yield SnapshotPage(document.stored(), memories)

    def vectors(self, first_row: int, dimension: int, end: int = SHIFT - 1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """From one row on, some at a time: rows, int64 [n] ascending, and vectors, float32 [n, dimension].

        end: behind the last row.
        """
        sql = "SELECT row, vector FROM vectors WHERE row >= ? AND row < ? ORDER BY row"
        found = self._run(sql, (first_row, end))
        while part := found.fetchmany(_VECTORS_AT_ONCE):
            vectors = np.frombuffer(b"".join(vector for _, vector in part), "<f4")
            if vectors.size != dimension * len(part):
                raise KnowledgeBaseDamaged(f"vectors have other lengths than {dimension} numbers")
            yield np.array([row for row, _ in part], np.int64), vectors.reshape(-1, dimension)

    # Changes

    def remove(self, document: DocumentRow) -> list[int]:
        """Removes a document with all that belongs to it; returns the ids of its memories."""
        ids = [memory_id for memory_id, _ in self.texts(document)]
        for table in ("refs", "vectors", "payloads"):
            self._run(f"DELETE FROM {table} WHERE row >= ? AND row < ?", document.rows)
        self._run_many(
            "DELETE FROM metadata WHERE name = ? AND value = ? AND document = ?",
            [(*pair, document.first_row) for pair in json.loads(document.metadata).items()],
        )
        self._run("DELETE FROM documents WHERE first_row = ?", (document.first_row,))
        return ids

    def add(self, tables: Tables) -> None:
        """Adds a document whose key none has."""
        for table, values in tables.items():
            if values:
                self._run_many(f"INSERT INTO {table} VALUES ({','.join('?' * len(values[0]))})", values)

    def count_batch(self, added: Sequence[int], removed: Sequence[int]) -> int:
        """Notes what the knowledge base holds after a batch of these ids; returns the number of the revision.

        It is the clock's, so that what a backup was made of is not taken for what was restored from it.
        """
        before = self.revision()
        newest = max(time.time_ns(), before.number + 1)
        memories = before.memories + len(added) - len(removed)
        shifted = (before.digest ^ digest(added) ^ digest(removed)) - SHIFT
        self._run("UPDATE state SET revision = ?, memories = ?, digest = ?", (newest, memories, shifted))
        return newest

    # Checking

    def require_whole(self) -> None:
        """Reads everything; raises KnowledgeBaseDamaged where something is not what was written."""
        try:
            problem = next(self._problems(), "")
        except (sqlite3.Error, ValueError, TypeError) as error:
            if not is_damage(error):
                raise
            problem = str(error) or type(error).__name__
        if problem:
            raise KnowledgeBaseDamaged(problem)

    def _problems(self) -> Iterator[str]:
        for (found,) in self._run("PRAGMA integrity_check(1)"):
            if found != "ok":
                yield str(found)
        # Sums of hashes compare sets of any size. SQLite's own json_each would cut values at a NUL character.
        indexed = sum(map(hash, self._run("SELECT name, value, document FROM metadata NOT INDEXED")))
        named = 0
        ids: list[int] = []
        sql = (
            "SELECT r.*, v.vector, p.payload FROM refs r JOIN vectors v ON v.row = r.row"
            " JOIN payloads p ON p.row = r.row WHERE r.row >= ? AND r.row < ? ORDER BY r.row"
        )
        for document in map(DocumentRow._make, self._run("SELECT * FROM documents NOT INDEXED")):
            references = self._run(sql, document.rows).fetchall()
            named += sum(hash((*pair, document.first_row)) for pair in json.loads(document.metadata).items())
            sound = checksum_of(document.summed, *(one[:-1] for one in references)) == document.checksum
            if not sound or document.written != (document.payload_bytes > 0):
                yield f"document {shortened(document.key)!r} is not what was written"
            for _, _, shifted, crc, *_, payload in references:
                _require_whole(shifted + SHIFT, payload, crc)
                ids.append(shifted + SHIFT)
        if indexed != named:
            yield "the index of metadata has others than the documents"
        (count,) = self._run("SELECT count(*) FROM refs NOT INDEXED").fetchone()
        state = self.revision()
        if (state.memories, state.digest, count) != (len(ids), digest(ids), len(ids)):
            yield "the memories are not those that were written"


def _require_whole(memory_id: int, payload: bytes, crc32c: int) -> None:
    if google_crc32c.value(payload) != crc32c:
        raise KnowledgeBaseDamaged(f"the payload of memory {memory_id} is not what was written")
