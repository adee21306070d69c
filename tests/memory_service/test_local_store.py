"""The local store by itself: its index, its readers in other processes, compaction, what a full disk does."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from memory_service.errors import StoreFull, StoreUnavailable
from memory_service.stores import KnowledgeBase, NewDocument, NewReference, Query
from memory_service.stores.identity import WriterIdentity
from memory_service.stores.local import vector_index
from memory_service.stores.local.disk import MappedFile
from memory_service.stores.local.guard import ReadersOrWriter
from memory_service.stores.local.rules import LocalRules
from memory_service.stores.local.store import LocalStore
from memory_service.stores.local.vector_index import IndexRule, VectorIndex
from tests.memory_service.encoders import DIMENSION, vector_of
from tests.memory_service.stored import IDENTITY, document, keys_near

ROOT = Path(__file__).resolve().parents[2]
# Small numbers, so that a few hundred references are many.
RULES = LocalRules(
    IndexRule(hnsw_from=200, ivf_from=900, tail_rows=50), compact_dead_rows=40, compact_dead_share=0.3
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(tmp_path / "store", RULES)
    yield store
    store.close()


def clustered(count: int, seed: int) -> np.ndarray:
    """Unit vectors around a few hundred centres, float32 [count, DIMENSION]."""
    centres = np.random.default_rng(1).standard_normal((200, DIMENSION))
    random = np.random.default_rng(seed)
    vectors = centres[random.integers(200, size=count)] + 0.7 * random.standard_normal((count, DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def documents_of(vectors: np.ndarray, first: int = 0) -> list[NewDocument]:
    """A document of one reference for each vector; its payload says which."""
    return [
        replace(d, references=[replace(d.references[0], vector=vector)])
        for number, vector in enumerate(vectors, first)
        for d in [document(f"d{number}", f"text {number}")]
    ]


def test_rows_that_are_remembered_are_those_of_their_own_knowledge_base(tmp_path: Path) -> None:
    for run in range(2):  # the second time from tables that were opened anew
        store = LocalStore(tmp_path / "store", RULES)
        for name in ("a", "b"):
            if not run:
                store.write(store.create(name, "", IDENTITY), [document(f"of {name}", "the same text")])
        for _ in range(2):
            assert keys_near(store, store.knowledge_base("a"), "the same text", 1) == ["of a"]
            assert keys_near(store, store.knowledge_base("b"), "the same text", 1) == ["of b"]
        store.close()


def found_share(store: LocalStore, base: KnowledgeBase, vectors: np.ndarray, living: np.ndarray) -> float:
    """Recall@5 over fifty queries; `vectors` are those of d0, d1, …."""
    right, queries = 0, clustered(50, seed=3)
    scores = queries @ vectors.T
    scores[:, ~living] = -np.inf
    for query, row in zip(queries, scores, strict=True):
        expected = {f"d{n}" for n in np.argsort(-row)[:5]}
        (hits,) = store.retrieve(base, Query(query[None], 5)).hits
        right += len(expected & {hit.document_key for hit in hits})
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    return right / 250


def test_each_index_finds_what_comparing_every_vector_finds(store: LocalStore) -> None:
    base = store.create("kb", "", IDENTITY)
    vectors, living = clustered(1200, seed=2), np.ones(1200, bool)
    kinds = []
    for first, last in ((0, 150), (150, 600), (600, 1200)):
        store.write(base, documents_of(vectors[first:last], first))
        assert (
            found_share(store, base, vectors[:last], living[:last]) >= 0.98
        )  # the tail is compared row by row
        assert store.wait_until_maintained()
        kinds.append(store._open[base.number]._view.index.kind)
        assert found_share(store, base, vectors[:last], living[:last]) >= 0.98
    assert kinds == ["", "hnsw", "ivf"]
    store.delete(base, [f"d{n}" for n in range(0, 1200, 7)])
    living[::7] = False
    assert found_share(store, base, vectors, living) >= 0.98


def test_an_index_is_kept_beside_the_data_and_made_again_when_it_is_damaged(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, RULES)
    base = store.create("kb", "", IDENTITY)
    vectors = clustered(300, seed=2)
    store.write(base, documents_of(vectors))
    assert store.wait_until_maintained()
    queries = Query(clustered(50, seed=3), 5)
    before = store.retrieve(base, queries).hits
    store.close()
    (file,) = tmp_path.rglob("index.faiss")
    for harm in (None, b"", b"\0" * 100):
        if harm is not None:
            file.write_bytes(harm)
        store = LocalStore(tmp_path, replace(RULES, save_growth=0.0))
        if harm is None:
            assert store._open[base.number]._view.index.covered == 300
            assert store.retrieve(base, queries).hits == before
        assert store.wait_until_maintained()
        assert found_share(store, base, vectors, np.ones(300, bool)) >= 0.98
        store.close()
        assert file.stat().st_size > 300 * DIMENSION


def test_compaction_keeps_what_lives_and_what_comes_meanwhile(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document(f"d{n}", f"text {n}", f"more {n}") for n in range(30)])
    grow, begun, go_on = VectorIndex.grow, threading.Event(), threading.Event()

    def slowly(index: VectorIndex, vectors: np.ndarray, stop: threading.Event | None = None) -> None:
        begun.set()
        assert go_on.wait(60)
        grow(index, vectors, stop)

    monkeypatch.setattr(VectorIndex, "grow", slowly)
    store.delete(base, [f"d{n}" for n in range(0, 30, 2)])  # makes 30 dead rows: not yet enough
    store.write(base, [document(f"d{n}", f"again {n}") for n in range(1, 15, 2)])  # now it is
    assert begun.wait(60)
    store.delete(base, ["d17", "d1"])
    store.write(base, [document("d19", "again 19"), document("new", "new")])
    go_on.set()
    assert store.wait_until_maintained()
    keys = {f"d{n}" for n in range(3, 30, 2)} - {"d17"} | {"new"}
    assert set(keys_near(store, base, "new")) == keys
    assert keys_near(store, base, "again 19", k=1) == ["d19"]
    assert store.check(base, deep=True) == []
    folder = store._open[base.number]._view.generation.folder
    assert folder.name == "g0002"
    deadline = time.monotonic() + 60
    while [path for path in folder.parent.iterdir() if path.is_dir()] != [folder]:  # once nobody reads it
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_payload_is_a_slice_of_the_file_that_outlives_compaction(store: LocalStore) -> None:
    base = store.create("kb", "", IDENTITY)
    one = document("a", "one")
    store.write(base, [one, document("b", "two")])
    (payload,) = store.retrieve(base, Query(vector_of("one")[None], 1)).payloads.values()
    assert isinstance(payload, memoryview)
    store.delete(base, ["b"])
    store.compact(base)
    store.drop(base)
    assert bytes(payload) == one.references[0].payload


def test_payloads_of_many_lengths_have_their_places(store: LocalStore) -> None:
    base = store.create("kb", "", IDENTITY)
    sizes = [10, 5000, 64, 5001, 0, 70_000, 1]
    for number, size in enumerate(sizes):
        d = document(f"d{number}", f"text {number}")
        payload = bytes([number]) * size
        reference = NewReference(number, f"text {number}", vector_of(f"text {number}"), payload, 7)
        reference = replace(reference, crc32c=google_crc32c.value(payload))
        store.write(base, [replace(d, references=[reference])])
    assert store.check(base, deep=True) == []
    memories = store.memories(base, after_id=None, count=100)
    assert [bytes(memory.payload) for memory in memories] == [
        bytes([n]) * size for n, size in enumerate(sizes)
    ]


def test_one_process_writes_and_a_second_one_is_told(store: LocalStore) -> None:
    with pytest.raises(StoreUnavailable, match="in use by another process"):
        LocalStore(store.path)


_READER = """
import sys
from memory_service.stores import Query, StoreOptions, open_store
from tests.memory_service.encoders import vector_of
store = open_store(sys.argv[1], StoreOptions(read_only=True))
for line in sys.stdin:
    name, text = line.rstrip().split("|")
    try:
        base = store.knowledge_base(name)
        found = store.retrieve(base, Query(vector_of(text)[None], 100))
        assert len(found.payloads) == len(found.hits[0])
        print(" ".join(sorted(hit.document_key for hit in found.hits[0])), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


def test_another_process_reads_at_once_what_was_acknowledged(store: LocalStore) -> None:
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document("a", "one")])
    command = [sys.executable, "-c", _READER, f"file://{store.path}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as reader:

        def there(name: str = "kb") -> str:
            assert reader.stdin
            assert reader.stdout
            reader.stdin.write(f"{name}|one\n")
            reader.stdin.flush()
            return reader.stdout.readline().strip()

        assert there() == "a"
        store.write(base, [document("b", "two", "three")])
        assert there() == "a b b"
        store.write(base, [document("b", "four")])
        assert there() == "a b"
        store.delete(base, ["a"])
        assert there() == "b"
        store.compact(base)
        assert there() == "b"
        payload = replace(document("long", "five").references[0], payload=b"x" * 99_999)
        payload = replace(payload, crc32c=google_crc32c.value(payload.payload))
        store.write(base, [replace(document("long", "five"), references=[payload])])
        assert there() == "b long"
        other = store.create("other", "", IDENTITY)
        store.write(other, [document("c", "one")])
        assert there("other") == "c"
        store.drop(base)
        assert there() == "KnowledgeBaseNotFound"
        assert there("other") == "c"
        reader.stdin.close()  # type: ignore[union-attr]
        assert reader.wait(60) == 0


def test_a_reader_maps_the_saved_index_and_keeps_up_with_what_comes(store: LocalStore) -> None:
    base = store.create("kb", "", IDENTITY)
    vectors = clustered(800, seed=2)
    store.write(base, documents_of(vectors[:400]))
    assert store.wait_until_maintained()
    reader = LocalStore(store.path, RULES, read_only=True)
    try:
        opened = reader._open[base.number]
        assert opened._view.index._mapped_from is not None
        assert opened._view.index.covered == 400
        assert found_share(reader, base, vectors[:400], np.ones(400, bool)) >= 0.98
        store._rules = replace(RULES, save_growth=9.0)
        store._open[base.number]._rules = store._rules  # saves no more: the reader goes on by itself
        store.write(base, documents_of(vectors[400:], 400))
        assert found_share(reader, base, vectors, np.ones(800, bool)) >= 0.98
        opened.maintain()
        assert opened._view.index._mapped_from is None
        assert opened._view.index.covered == 800
        assert found_share(reader, base, vectors, np.ones(800, bool)) >= 0.98
    finally:
        reader.close()


def test_what_reads_only_does_not_write(store: LocalStore) -> None:
    base = store.create("kb", "", IDENTITY)
    reader = LocalStore(store.path, RULES, read_only=True)
    try:
        for write in (
            lambda: reader.write(base, [document("a", "one")]),
            lambda: reader.delete(base, ["a"]),
            lambda: reader.create("new", "", IDENTITY),
            lambda: reader.drop(base),
        ):
            with pytest.raises(StoreUnavailable, match="reading only"):
                write()
    finally:
        reader.close()


@pytest.mark.parametrize("file", ["bank-1.records", "vectors.f32", "documents.sqlite3", "commits.log"])
def test_a_full_disk_is_said_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    store = LocalStore(tmp_path, RULES)
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document("a", "one")])
    write = MappedFile.write

    def failing(mapped: MappedFile, parts: list[bytes], offset: int) -> None:
        if mapped.path.name == file:
            raise OSError(28, "No space left on device")
        write(mapped, parts, offset)

    if file == "documents.sqlite3":
        connection = store._open[base.number]._view.generation.documents._writer
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        texts = [f"{n} " * 5000 for n in range(20)]
    else:
        monkeypatch.setattr(MappedFile, "write", failing)
        texts = ["two"]
    with pytest.raises(StoreFull):
        store.write(base, [document("b", *texts)])
    monkeypatch.undo()
    if file == "documents.sqlite3":
        connection.execute("PRAGMA max_page_count = 1000000")
    there = ["a", "b"] if file == "commits.log" else ["a"]  # that far it was true, but not acknowledged
    assert sorted(keys_near(store, base, "one")) == there
    store.write(base, [document("b", *texts)])
    store.close()
    store = LocalStore(tmp_path, RULES)
    try:
        base = store.knowledge_base("kb")
        assert base.problem == ""
        assert store.check(base, deep=True) == []
        assert set(keys_near(store, base, "one")) == {"a", "b"}
    finally:
        store.close()


def test_an_index_that_cannot_be_saved_is_no_loss(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(index: object, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("Error: 'ret == (size)' failed")

    monkeypatch.setattr(vector_index.faiss, "write_index", full)
    base = store.create("kb", "", IDENTITY)
    vectors = clustered(400, seed=2)
    store.write(base, documents_of(vectors))
    opened = store._open[base.number]
    with pytest.raises(StoreUnavailable, match="cannot be saved"):
        opened.maintain()
    assert opened._view.index.covered == 400
    assert found_share(store, base, vectors, np.ones(400, bool)) >= 0.98
    monkeypatch.undo()
    opened.maintain()
    assert [path.name for path in store.path.rglob("*index.faiss*")] == ["index.faiss"]


def test_at_once_comes_what_was_read_before_and_nothing_that_might_have_to_wait(store: LocalStore) -> None:
    base = store.create("kb", "", IDENTITY)
    vectors = clustered(400, seed=2)
    store.write(base, documents_of(vectors))
    assert store.wait_until_maintained()
    query = Query(vectors[7:9], 5)
    assert store.retrieve_at_once(base, query) is None  # nothing was compared with its checksums yet
    whole = store.retrieve(base, query)
    found = store.retrieve_at_once(base, query)
    assert found is not None
    assert found.hits == whole.hits
    assert {n: bytes(p) for n, p in found.payloads.items()} == {
        n: bytes(p) for n, p in whole.payloads.items()
    }
    held = frozenset(hit.memory_id for hit in whole.hits[0])
    without = store.retrieve_at_once(base, replace(query, held_ids=held))
    assert without is not None
    assert set(without.payloads) == set(whole.payloads) - held
    above = store.retrieve_at_once(base, replace(query, minimum_score=0.99))
    assert above is not None
    assert [[hit.document_key for hit in hits] for hits in above.hits] == [["d7"], ["d8"]]
    for waits in ({"return_text": True}, {"metadata_filter": {"a": "b"}}, {"words": [[1], [2]]}):
        assert store.retrieve_at_once(base, replace(query, **waits)) is None
    assert store.retrieve_at_once(base, Query(vectors[:60], 5)) is None  # too many for the event loop
    index = store._open[base.number]._view.index
    with index._guard.writing():
        assert store.retrieve_at_once(base, query) is None
    reader = LocalStore(store.path, RULES, read_only=True)
    assert reader.retrieve(base, query).hits == whole.hits
    assert reader.retrieve_at_once(base, query) is None
    reader.close()


def test_vectors_of_one_length_are_kept_in_full(store: LocalStore) -> None:
    base = store.create("kb", "", WriterIdentity("m", "c", "f", "e", dimension=DIMENSION))
    vector = np.full(DIMENSION, 3.0, np.float32)  # of any length: it is stored at length one
    (made,) = documents_of(vector[None])
    store.write(base, [made])
    (memory,) = store.memories(base, after_id=None, count=1)
    np.testing.assert_allclose(memory.vector, vector / np.linalg.norm(vector), rtol=1e-6)


def test_searches_are_not_kept_waiting_by_an_index_that_grows() -> None:
    guard = ReadersOrWriter()
    grown, searched, done = 0, 0, threading.Event()

    def grow() -> None:
        nonlocal grown
        while not done.is_set():
            with guard.writing():
                grown += 1
                time.sleep(0.001)

    thread = threading.Thread(target=grow)
    thread.start()
    for _ in range(50):  # would take for ever if the writer always came first
        with guard.reading():
            searched += 1
    done.set()
    thread.join()
    assert searched == 50
