"""One SQLite format of documents with memories, read by service and device."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from edge_client.local.knowledge_base import LocalKnowledgeBase, kept_documents
from edge_client.local.records import LocalDocument
from edge_client.local.writer import Written
from memory3.codec.payload import Identity
from memory3.errors import CorruptFile, InvalidInput
from memory3.files import knowledge_file
from memory3.files.knowledge_file import DocumentRecord, Head, Reference

FIXTURES = Path(__file__).parent / "fixtures"
HEAD = Head("towns", "11" * 32, "22" * 32, "33" * 32, "44" * 32, 8, memories=2, description="of the north", documents=2)
VECTORS = np.eye(8, dtype=np.float32)
"""Of unit length."""


def reference(key: str, chunk: int, payload: bytes) -> Reference:
    crc32c = google_crc32c.value(payload) if payload else 0
    return Reference((1 << 63) + chunk, key, "Title", chunk, f"Text {chunk}.", VECTORS[chunk], payload, crc32c)


def written(path: Path, head: Head) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        knowledge_file.create(database, head)
        row = knowledge_file.add_document(database, DocumentRecord("a", "Title", {"color": "red"}, b"h" * 32, 2))
        for chunk in range(2):
            knowledge_file.add_reference(database, row, reference("a", chunk, b"payload"))
        row = knowledge_file.add_document(database, DocumentRecord("b", "", {}, b"i" * 32, 1, written=False))
        knowledge_file.add_reference(database, row, reference("b", 2, b""))


def read(path: Path) -> Iterator[tuple[DocumentRecord, list[Reference]]]:
    with closing(sqlite3.connect(path)) as database:
        for row, document in knowledge_file.documents(database):
            yield document, list(knowledge_file.references(database, row))


def old(path: Path, kind: str) -> Head:
    """A file of the release before version 2."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript((FIXTURES / f"knowledge_file_1_{kind}.sql").read_text())
        return knowledge_file.read_head(database)


def opened(path: Path, head: Head) -> LocalKnowledgeBase:
    return LocalKnowledgeBase.open(
        path, Identity(head.model_id, head.codec_id, head.memory_format_id), head.embedder_id
    )


def test_what_was_written_is_read_and_what_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "towns.memories"
    written(path, HEAD)
    with closing(sqlite3.connect(path)) as database:
        assert knowledge_file.read_head(database) == HEAD
    (a, of_a), (b, of_b) = read(path)
    assert (a.metadata, a.content_hash, a.written, len(of_a)) == ({"color": "red"}, b"h" * 32, True, 2)
    assert (of_a[1].memory_id, of_a[1].text, of_a[1].payload) == ((1 << 63) + 1, "Text 1.", b"payload")
    assert np.array_equal(of_a[1].vector, VECTORS[1])
    assert (b.written, of_b[0].payload) == (False, b"")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE payloads SET payload = x'00' WHERE id = 2")
    with pytest.raises(CorruptFile, match="is damaged"):
        list(read(path))


def test_a_backup_is_read_by_a_device_unless_memories_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "towns.memories"
    written(path, HEAD)
    with closing(opened(path, HEAD)) as base:
        (hits,) = base.retrieve(VECTORS[1:2], k=1).hits
        assert (hits[0].document_key, hits[0].payload, base.head.pulled) == ("a", b"payload", True)
    with closing(sqlite3.connect(path)) as database, database:
        knowledge_file.replace_head(database, Head(**{**vars(HEAD), "unwritten": 1}))
    with pytest.raises(InvalidInput, match="restore it into a service"):
        opened(path, HEAD)


def test_files_of_version_1_are_used_as_they_are(tmp_path: Path) -> None:
    own, pack = tmp_path / "mine.memories", tmp_path / "towns.memories"
    head = old(own, "own")
    with closing(opened(own, head)) as base:
        assert [one.key for one in base.documents()] == ["a.txt"]
        base.add(LocalDocument("b.txt", "", "New."), ["New."], Written([b"new"], VECTORS[:1]))
        (hits,) = base.retrieve(VECTORS[:1], k=1).hits
        assert (hits[0].document_key, hits[0].payload) == ("b.txt", b"new")
    assert [(one.key, one.text) for one in kept_documents(own)] == [("a.txt", "One. Two."), ("b.txt", "New.")]
    head = old(pack, "pack")
    with closing(opened(pack, head)) as base:
        assert (base.head.pulled, base.memory_ids().tolist()) == (True, [3, 5])
        assert {hit.payload for hit in base.retrieve(VECTORS[:1], k=2).hits[0]} == {b"payload three", b"payload five"}
    assert [(document.key, document.written, len(of)) for document, of in read(pack)] == [("doc", True, 2)]


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "towns.memories"
    written(path, HEAD)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 3")
        with pytest.raises(CorruptFile, match="format version 3"):
            knowledge_file.read_head(database)
