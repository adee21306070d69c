"""`LocalKnowledgeBase`: documents, their memories and vectors in a knowledge file, searched on the device.

A query is compared with every vector in int8, and exactly with those that are near (`NearVectors`); the
nearest are put in order by vector and words, as the service does (`memory3.text.words`). Nothing of it is ever sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from edge_client.errors import StorageError
from edge_client.local.database import connected, disk_errors
from edge_client.local.near_vectors import BLOCK, NearVectors
from edge_client.local.records import LocalDocument
from edge_client.local.writer import Written
from edge_client.retrieval import Hit, RetrievalResult
from memory3.codec.payload import Identity
from memory3.errors import CorruptFile, InvalidInput, Memory3Error, MissingFile
from memory3.files import knowledge_file
from memory3.files.knowledge_file import ID_SHIFT, DocumentRecord, Head, Reference
from memory3.formats.naming import FILE, MOST_NAMED, Named, called, file_of, natural
from memory3.text.references import title_line
from memory3.text.words import order_texts

_VECTORS = "SELECT id, vector FROM vectors WHERE id IN"
_TEXTS = (
    "SELECT refs.id, memory_id, key, title, chunk, refs.text, checksum, metadata FROM refs"
    " JOIN documents ON documents.id = document WHERE refs.id IN"
)
_ONE = "SELECT refs.id, document FROM refs JOIN documents ON documents.id = document WHERE key = ? AND chunk = ?"
_MISSING = "SELECT whole - (SELECT count(*) FROM refs WHERE document = ?) FROM documents WHERE id = ?"
_NOTE = "content_hash = x'' AND text IS NULL AND NOT EXISTS (SELECT 1 FROM refs WHERE document = documents.id)"
_PAYLOADS = "SELECT id, crc32c, payload FROM payloads WHERE id IN"


class EmptyKnowledgeBase(MissingFile):
    """A file holds nothing: the creation of its knowledge base was interrupted, or goes on."""

    reason = MissingFile.reason


class LocalKnowledgeBase:
    """One open file. Thread-safe; several processes may have it open, and see what others committed.

    What a method wrote is on the disk when it returns. Every method raises StorageError (DISK_FULL, IN_USE) or
    CorruptFile for what the disk or the file says.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, head: Head, minimum_score: float | None) -> None:
        self.path, self.head, self.minimum_score = path, head, minimum_score
        self.name = head.name
        self._connection: sqlite3.Connection | None = connection
        self._closed = False
        self._lock = threading.RLock()
        self._near = NearVectors(head.dimension)
        self._known = -1, -1  # the file's version and its changes here when vectors were read

    @classmethod
    def open(
        cls,
        path: str | Path,
        identity: Identity,
        embedder_id: str,
        *,
        minimum_score: float | None = None,
        remedy: str = "",
    ) -> LocalKnowledgeBase:
        """Open the file at `path` for what this bundle reads.

        minimum_score: of searches that name none. remedy: what to do about a file of another bundle. Raises
        MissingFile, CorruptFile, the mismatch of the first id in which the file's writer differs, and InvalidInput for
        a service's backup of documents without memories.
        """
        path = Path(path)
        head = read_head(path)
        head.require(identity, embedder_id, remedy)
        if head.unwritten:
            raise InvalidInput(
                f"{path} is a backup with {head.unwritten} documents whose memories are not written: restore it into a"
                " service, which writes them"
            )
        return cls(path, connected(path), head, minimum_score)

    @classmethod
    def any(cls, path: Path) -> LocalKnowledgeBase:
        """The file at `path`, whatever bundle wrote it: to list and to delete, not to search."""
        head = read_head(path)
        return cls(path, connected(path), head, None)

    @classmethod
    def create(cls, path: str | Path, head: Head, *, minimum_score: float | None = None) -> LocalKnowledgeBase:
        """A new file; raises InvalidInput for one that holds something."""
        path = Path(path)
        with disk_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            connection = connected(path)
            try:
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    if not knowledge_file.is_empty(connection):
                        raise InvalidInput(f"{path} holds something already: choose another name")
                    knowledge_file.create(connection, head)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, head, minimum_score)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock, disk_errors(self.path):
            self._closed = True
            if self._connection is not None:
                self._connection.close()

    def __len__(self) -> int:
        """References."""
        with self._reading() as connection:
            return int(connection.execute("SELECT count(*) FROM refs").fetchone()[0])

    def has(self, document: LocalDocument) -> bool:
        """Whether an equal document is there, with all of its references."""
        written, whole = self.stored(document)
        return whole > 0 and written == whole

    def stored(self, document: LocalDocument) -> tuple[int, int]:
        """How many references of an equal document are there, and how many it has; 0 and 0 where there is none."""
        query = (
            "SELECT whole, (SELECT count(*) FROM refs WHERE document = documents.id) FROM documents"
            " WHERE key = ? AND content_hash = ?"
        )
        with self._reading() as connection:
            found = connection.execute(query, (document.key, document.content_hash)).fetchone()
        return (found[1], found[0]) if found else (0, 0)

    def add(
        self, document: LocalDocument, texts: Sequence[str], written: Written, *, first: int = 0, whole: int = 0
    ) -> None:
        """Write a document with its references, replacing one of the same key.

        A long one comes in pieces: `texts` are those from number `first` on, of `whole`. What another process wrote of
        the same document meanwhile stays. Raises InvalidInput for a piece that does not follow what is there.
        """
        if not len(texts) == len(written.payloads) == len(written.vectors):
            raise InvalidInput(f"{len(texts)} references, {len(written.payloads)} memories")
        whole = whole or first + len(texts)
        with self._writing() as connection:
            there, known = self.stored(document)
            there = there if known == whole else 0
            if not there and not first:
                self._delete(connection, document.key)
                record = DocumentRecord(
                    document.key, document.title, document.metadata, document.content_hash, whole, document.text
                )
                knowledge_file.add_document(connection, record)
            elif there < first:
                raise InvalidInput(f"{document.key!r} has {there} references, these begin with number {first}")
            (row,) = connection.execute("SELECT id FROM documents WHERE key = ?", (document.key,)).fetchone()
            for chunk, (text, payload, vector) in enumerate(
                zip(texts, written.payloads, written.vectors, strict=True), first
            ):
                if chunk >= there:
                    self._add_reference(connection, row, document.key, chunk, text, payload, vector)

    def begin(self, file: str) -> None:
        """Note that a file of several documents is being written: under its key, a document without its memory."""
        with self._writing() as connection:
            if connection.execute("SELECT 1 FROM documents WHERE key = ?", (file,)).fetchone() is None:
                knowledge_file.add_document(connection, DocumentRecord(file, "", references=1))

    def finish(self, file: str) -> None:
        """Remove what `begin` noted."""
        with self._writing() as connection:
            connection.execute(f"DELETE FROM documents WHERE key = ? AND {_NOTE}", (file,))

    def append(self, references: Sequence[Reference]) -> None:
        """Write references that a service wrote, in ascending order of their ids, all or none."""
        with self._writing() as connection:
            for one in references:
                found = connection.execute("SELECT id FROM documents WHERE key = ?", (one.key,)).fetchone()
                document = found or (knowledge_file.add_document(connection, DocumentRecord(one.key, one.title)),)
                knowledge_file.add_reference(connection, document[0], one)

    def memory_ids(self) -> np.ndarray:
        """uint64 [references], ascending."""
        with self._reading() as connection:
            rows = connection.execute("SELECT memory_id FROM refs ORDER BY memory_id").fetchall()
        return np.array([shifted + ID_SHIFT for (shifted,) in rows], np.uint64)

    def merge_journal(self) -> None:
        """Leave one file, which may be moved once it is closed."""
        with self._reading() as connection:
            connection.execute("PRAGMA journal_mode = DELETE")

    def content(self) -> bytes:
        """The file, whole."""
        with self._reading() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return self.path.read_bytes()

    def delete(self, *keys: str) -> bool:
        """Remove documents, all or none; whether one was there."""
        with self._writing() as connection:
            return sum(self._delete(connection, key) for key in keys) > 0

    def correct(self, document: LocalDocument, chunk: int, text: str = "", written: Written | None = None) -> bool:
        """Replace one memory of a document, or remove it; whether it was there.

        text, written: of the new reference, with its title; none removes. The document's kept text becomes that of its
        references, so that other models write the same from it; without one left it goes. It stays equal to the text
        that it was remembered from, which therefore does not replace it.
        """
        head = title_line(document.title)
        with self._writing() as connection:
            if (found := connection.execute(_ONE, (document.key, chunk)).fetchone()) is None:
                return False
            reference, row = found
            (missing,) = connection.execute(_MISSING, (row, row)).fetchone()
            connection.execute("DELETE FROM refs WHERE id = ?", (reference,))
            if written is not None:
                self._add_reference(connection, row, document.key, chunk, text, written.payloads[0], written.vectors[0])
            rows = connection.execute("SELECT text FROM refs WHERE document = ? ORDER BY chunk", (row,)).fetchall()
            if not rows:
                return self._delete(connection, document.key)
            kept = "\n".join(each.removeprefix(head) for (each,) in rows)
            connection.execute(
                "UPDATE documents SET text = ?, whole = ?, written_at = ? WHERE id = ?",
                (kept, len(rows) + max(0, missing), time.time(), row),
            )
            return True

    def take_content_hash(self, key: str, content_hash: bytes) -> None:
        """Make a document equal to the text that another knowledge base remembered it from, before it was corrected."""
        with self._writing() as connection:
            connection.execute("UPDATE documents SET content_hash = ? WHERE key = ?", (content_hash, key))

    def documents(self) -> list[LocalDocument]:
        """All documents by file, those of a file in their order, without their texts."""
        query = (
            "SELECT key, title, metadata, count(refs.id), whole, written_at FROM documents"
            " LEFT JOIN refs ON refs.document = documents.id GROUP BY documents.id"
        )
        with self._reading() as connection:
            rows = connection.execute(query).fetchall()
        found = [LocalDocument(key, title, None, json.loads(metadata), *more) for key, title, metadata, *more in rows]
        return sorted(found, key=lambda one: (natural(one.file), natural(one.key)))

    def files(self) -> dict[str, str]:
        """Of every document, by its key, the key of the file that it is from."""
        with self._reading() as connection:
            rows = connection.execute("SELECT key, metadata FROM documents").fetchall()
        return {key: file_of(key, json.loads(metadata)) for key, metadata in rows}

    def named(self) -> list[Named]:
        """All documents by their names; those of a file in their order."""
        with self._reading() as connection:
            rows = connection.execute("SELECT key, title, metadata FROM documents").fetchall()
        found = [Named(self.name, key, title, file_of(key, json.loads(metadata))) for key, title, metadata in rows]
        return sorted(found, key=lambda one: (natural(one.file), natural(one.key)))

    def keys_of(self, name: str) -> list[str]:
        """Keys of the document that people call so (`memory3.formats.naming.called`), those of a file in their order.

        Empty where there is none. Raises InvalidInput where several are called so.
        """
        return [one.key for one in called(self.named(), name)]

    def document(self, name: str) -> LocalDocument | None:
        """The one document that people call so; None where there is none.

        Raises InvalidInput where several are called so, and for a file of several pages or rows.
        """
        keys = self.keys_of(name)
        if len(keys) > 1:
            raise InvalidInput(f"{name} has several pages or rows: name one of {', '.join(keys[:MOST_NAMED])}")
        return next((one for one in self.documents() if one.key in keys), None)

    def memories_of(self, keys: Sequence[str]) -> list[Hit]:
        """All memories of these documents, in the order of the keys and of the text; raises CorruptFile."""
        query = (
            "SELECT refs.id FROM refs JOIN documents ON documents.id = document JOIN json_each(?) AS named"
            " ON named.value = documents.key ORDER BY named.key, chunk"
        )
        sent: set[int] = set()
        with self._reading() as connection, connection:
            connection.execute("BEGIN")
            ids = [row for (row,) in connection.execute(query, (json.dumps(list(keys)),))]
            rows = [self._rows(connection, part, ids) for part in (_TEXTS, _VECTORS, _PAYLOADS)]
            return [self._hit(1.0, tuple(value for part in rows for value in part[n]), sent) for n in ids]

    def retrieve(self, vectors: np.ndarray, *, k: int, words: Sequence[Sequence[int]] = ()) -> RetrievalResult:
        """The k nearest memories of each vector (float32 [n, dim]), as MemoryClient.retrieve; no network.

        words: hashes of each query's words: the nearest by vector are then ordered by vector and words, and those
        that score far lower than the best are left out. Raises InvalidInput, CorruptFile.
        """
        dimension = self.head.dimension
        if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != dimension:
            raise InvalidInput(f"query vectors must be [n, {dimension}] with n > 0, not {vectors.shape}")
        if words and len(words) != len(vectors):
            raise InvalidInput(f"words of {len(words)} queries for {len(vectors)} query vectors")
        if k < 1:
            raise InvalidInput(f"k must be positive, not {k}")
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(norms) & (norms > 0)).all():
            raise InvalidInput("query vectors must be finite and not zero")
        queries, candidates = (vectors / norms).astype(np.float32), max(k, self.head.candidates if words else 0)
        sent: set[int] = set()
        hits = []
        with self._reading() as connection, connection:
            connection.execute("BEGIN")  # one state of the file, whatever other processes commit
            self._refresh(connection)
            for number, near in enumerate(self._near.nearest(queries, candidates)):
                rows = self._rows(connection, _VECTORS, near.tolist())
                scores = self._nearest(rows, queries[number])
                texts = self._rows(connection, _TEXTS, list(scores))
                scores = _without_copies(texts, scores, candidates)
                if words and words[number]:
                    scores = _by_words(texts, scores, words[number], self.minimum_score)
                elif self.minimum_score is not None:
                    scores = {n: score for n, score in scores.items() if score >= self.minimum_score}
                best = dict(list(scores.items())[:k])
                payloads = self._rows(connection, _PAYLOADS, list(best))
                hits.append(tuple(self._hit(best[n], (*texts[n], *rows[n], *payloads[n]), sent) for n in best))
        return RetrievalResult(tuple(hits), 0.0)

    # Everything below is called with the lock held.

    def _rows(self, connection: sqlite3.Connection, query: str, ids: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        """The rows of these ids without their first column, the id, by a query that ends with `IN`."""
        rows = connection.execute(f"{query} (SELECT value FROM json_each(?))", (json.dumps(ids),)).fetchall()
        if len(rows) != len(ids):
            raise CorruptFile(f"references in {self.path} have no vector, text or payload: the file is damaged")
        return {row[0]: row[1:] for row in rows}

    def _nearest(self, rows: Mapping[int, tuple[bytes, ...]], query: np.ndarray) -> dict[int, float]:
        """These references with their cosines, best first, by the vectors themselves."""
        ids = np.fromiter(rows, np.int64, len(rows))
        scores = self._matrix([vector for (vector,) in rows.values()]) @ query
        best = np.lexsort((ids, -scores))
        return dict(zip(ids[best].tolist(), scores[best].tolist(), strict=True))

    def _hit(self, score: float, row: tuple[Any, ...], sent: set[int]) -> Hit:
        """The payload goes with the first hit of a memory, as in the service's answers."""
        shifted, key, title, chunk, text, checksum, metadata, vector, crc32c, payload = row
        memory_id = shifted + ID_SHIFT
        if knowledge_file.checksum_of(text, vector) != checksum:
            raise CorruptFile(f"memory {memory_id:016x} of {key!r} in {self.path} is damaged: write it anew")
        held = memory_id in sent
        sent.add(memory_id)
        return Hit(
            memory_id=memory_id,
            score=score,
            document_key=key,
            title=title,
            chunk_number=chunk,
            text=text,
            payload=b"" if held else payload,
            crc32c=crc32c,
            held=held,
            knowledge_base=self.name,
            file=json.loads(metadata).get(FILE, ""),
        )

    def _refresh(self, connection: sqlite3.Connection) -> None:
        """Read the vectors of references that came since the last time, or all where some went."""
        version = connection.execute("PRAGMA data_version").fetchone()[0], connection.total_changes
        if version == self._known:
            return
        query = "SELECT count(*), coalesce(sum(id > ?), 0) FROM refs"
        count, newer = connection.execute(query, (self._near.last_id,)).fetchone()
        if count - newer != len(self._near):  # ids are given once, so what is left is what was there
            self._near = NearVectors(self.head.dimension)
        query = "SELECT id, vector FROM vectors WHERE id > ? ORDER BY id"
        rows = connection.execute(query, (self._near.last_id,))
        while block := rows.fetchmany(BLOCK):
            self._near.add(np.array([row[0] for row in block]), self._matrix([row[1] for row in block]))
        self._known = version

    def _matrix(self, vectors: Sequence[bytes]) -> np.ndarray:
        """float32 [n, dimension]."""
        if any(len(vector) != 4 * self.head.dimension for vector in vectors):
            raise CorruptFile(f"vectors in {self.path} are of another length: the file is damaged")
        return np.frombuffer(b"".join(vectors), "<f4").reshape(-1, self.head.dimension)

    @staticmethod
    def _add_reference(
        connection: sqlite3.Connection, row: int, key: str, chunk: int, text: str, payload: bytes, vector: np.ndarray
    ) -> None:
        name = hashlib.sha256(payload + f"{chunk} {key}".encode("utf-8", "surrogatepass"))
        memory_id = int.from_bytes(name.digest()[:8], "big")
        one = Reference(memory_id, key, "", chunk, text, vector, payload, google_crc32c.value(payload))
        knowledge_file.add_reference(connection, row, one)

    @staticmethod
    def _delete(connection: sqlite3.Connection, key: str) -> bool:
        return connection.execute("DELETE FROM documents WHERE key = ?", (key,)).rowcount > 0

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection. One that failed is not used again: the next call opens the file anew."""
        with self._lock, disk_errors(self.path):
            connection = self._opened()
            try:
                yield connection
            except Memory3Error:
                raise
            except BaseException:
                self._connection, self._known = None, (-1, -1)
                connection.close()
                raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, committed at the end of the block or not at all."""
        with self._reading() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def _opened(self) -> sqlite3.Connection:
        if self._closed:
            raise StorageError(f"{self.path} was closed", reason="NOT_WRITABLE")
        if self._connection is None:
            self._connection = connected(self.path)
        return self._connection


def read_head(path: Path) -> Head:
    """What a file is of; raises MissingFile, CorruptFile, StorageError."""
    with disk_errors(path):
        there = path.is_file()
    if not there:
        raise MissingFile(f"no local knowledge base at {path}: make one with `edge-client remember`")
    with disk_errors(path), contextlib.closing(connected(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and knowledge_file.is_empty(connection):  # its creation was interrupted
            raise EmptyKnowledgeBase(f"{path} is empty: fill it with `edge-client remember`")
        try:
            return knowledge_file.read_head(connection)
        except CorruptFile as error:
            raise CorruptFile(f"{path}: {error}") from error


def kept_documents(path: Path) -> Iterable[LocalDocument]:
    """The documents of a file of any bundle, with their texts; raises CorruptFile, StorageError."""
    with disk_errors(path), contextlib.closing(connected(path)) as connection:
        unfinished = set(_unfinished(connection))
        for _, one in knowledge_file.documents(connection):
            if one.key not in unfinished:
                yield LocalDocument(one.key, one.title, one.text, one.metadata)


def content_hashes(path: Path) -> dict[str, bytes]:
    """By key, of the documents of a file of any bundle; raises CorruptFile, StorageError."""
    with disk_errors(path), contextlib.closing(connected(path)) as connection:
        return {one.key: one.content_hash for _, one in knowledge_file.documents(connection)}


def unfinished_files(path: Path) -> list[str]:
    """The keys of the files of several documents whose writing broke off; raises CorruptFile, StorageError."""
    with disk_errors(path), contextlib.closing(connected(path)) as connection:
        return _unfinished(connection)


def _unfinished(connection: sqlite3.Connection) -> list[str]:
    """What `LocalKnowledgeBase.begin` noted: documents have a hash, a text or a memory."""
    return [key for (key,) in connection.execute(f"SELECT key FROM documents WHERE {_NOTE}")]


def _without_copies(texts: Mapping[int, tuple[Any, ...]], scores: Mapping[int, float], count: int) -> dict[int, float]:
    """The first `count` of these references that differ in title or text: a copy would take another one's place."""
    firsts: dict[tuple[str, str], int] = {}
    for n in scores:
        firsts.setdefault((texts[n][2], texts[n][4]), n)
    return {n: scores[n] for n in list(firsts.values())[:count]}


def _by_words(
    texts: Mapping[int, tuple[Any, ...]], scores: Mapping[int, float], words: Sequence[int], least: float | None
) -> dict[int, float]:
    """These references ordered by cosine and words, without those far below the best or below `least`."""
    ids = list(scores)
    best = order_texts(words, list(scores.values()), [texts[n][4] for n in ids], [texts[n][2] for n in ids], least)
    return {ids[index]: scores[ids[index]] for index in best}
