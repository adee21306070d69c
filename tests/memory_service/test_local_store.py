"""The local store by itself: its index, filters, and batches that fail."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory3.errors import InvalidInput
from memory_service.access.keys import changing
from memory_service.errors import KnowledgeBaseNotFound, StoreFull, StoreUnavailable
from memory_service.stores.filters import Filter, In, Not, Or, Range
from memory_service.stores.local import database, index, knowledge_base
from memory_service.stores.local.knowledge_base import LocalKnowledgeBase
from memory_service.stores.local.rows import Transaction
from memory_service.stores.local.store import LocalStore
from memory_service.stores.store import KnowledgeBase, NewDocument, Query
from testing.encoders import DIMENSION, vector_of
from tests.memory_service.running import eventually
from tests.memory_service.stored import IDENTITY, document, keys_near, require_whole


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred references are many: searches walk the graph."""
    monkeypatch.setattr(index, "_NODES_A_STEP", 2)


class Recorded:
    """A connection that notes the statements. said: each once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.executemany = connection.executemany
        self.said: set[str] = set()

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        self.said.add(sql)
        return self._connection.execute(sql, parameters)


def test_held_ids_are_no_part_of_a_statement_and_keep_their_64_bits(store: LocalStore, tmp_path: Path) -> None:
    """A connection keeps 128 statements: those with 65,536 ids took gigabytes."""
    base, ids = store.create("kb", "", IDENTITY), [0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    new = document("a", *map(str, ids))
    references = [replace(one, memory_id=memory_id) for one, memory_id in zip(new.references, ids, strict=True)]
    store.write(base, [replace(new, references=references)])
    with closing(sqlite3.connect(next(tmp_path.rglob("documents.sqlite3")))) as file:
        (rows,) = zip(*file.execute("SELECT row FROM refs"), strict=True)
        recorded = Recorded(file)
        for held in ([], *([one] for one in ids), [one for one in ids if one != 2**63]):
            query = Query(vector_of("x")[None], 6, held_ids=frozenset(held))
            found = Transaction(recorded).found(rows, query)  # type: ignore[arg-type]
            assert sorted(one.memory_id for one, payload in found.values() if payload is None) == held
        assert len(recorded.said) == 1


def clustered(count: int, seed: int) -> np.ndarray:
    """Unit vectors around a few hundred centres, float32 [count, DIMENSION]."""
    centres = np.random.default_rng(1).standard_normal((200, DIMENSION))
    random = np.random.default_rng(seed)
    vectors = centres[random.integers(200, size=count)] + 0.7 * random.standard_normal((count, DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def documents_of(vectors: np.ndarray, first: int = 0) -> list[NewDocument]:
    """A document of one reference for each vector."""
    return [
        replace(d, references=[replace(d.references[0], vector=vector)])
        for number, vector in enumerate(vectors, first)
        for d in [document(f"d{number}", f"text {number}", metadata={"n": str(number), "tenth": str(number % 10)})]
    ]


def found_share(
    store: LocalStore,
    base: KnowledgeBase,
    vectors: np.ndarray,
    living: np.ndarray,
    condition: Filter | None = None,
    same_score: float = 0.0,
) -> float:
    """Recall@5 over fifty queries; `vectors` are those of d0, d1, …. Of equal scores any will do."""
    right, queries = 0, clustered(50, seed=3)
    scores = queries @ vectors.T
    scores[:, ~living] = -np.inf
    for query, row in zip(queries, scores, strict=True):
        expected = {f"d{n}" for n in np.flatnonzero(row >= np.sort(row)[-5] - same_score)}
        (hits,) = store.retrieve(base, Query(query[None], 5, filter=condition)).hits
        right += len(expected & {hit.document_key for hit in hits})
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    return right / 250


@pytest.mark.usefixtures("walks")
def test_a_walk_finds_what_comparing_every_vector_finds(store: LocalStore) -> None:
    base = store.create("kb", "", IDENTITY)
    vectors, living = clustered(1200, seed=2), np.ones(1200, bool)
    for first, last in ((0, 50), (50, 600), (600, 1200)):
        store.write(base, documents_of(vectors[first:last], first))
        assert found_share(store, base, vectors[:last], living[:last]) >= 0.98
    store.delete(base, [f"d{n}" for n in range(0, 1200, 7)])
    living[::7] = False
    assert found_share(store, base, vectors, living) >= 0.98
    number = np.arange(1200)
    for condition, passes in (
        (In("tenth", ("3",)), number % 10 == 3),
        (Range("n", at_least=600.0), number >= 600),
        (
            Not(Or((In("tenth", ("1", "2")), Range("n", below=1100.0)))),
            (number >= 1100) & ~np.isin(number % 10, (1, 2)),
        ),
    ):
        assert found_share(store, base, vectors, living & passes, condition) >= 0.98


def test_an_index_is_kept_beside_the_data_and_made_again_where_it_lacks(tmp_path: Path) -> None:
    vectors, queries = clustered(300, seed=2), Query(clustered(50, seed=3), 5)
    with closing(LocalStore(tmp_path)) as store:
        base = store.create("kb", "", IDENTITY)
        store.write(base, documents_of(vectors[:200]))
    (file,) = tmp_path.rglob("index.faiss")
    of_the_first = file.read_bytes()
    with closing(LocalStore(tmp_path)) as store:
        store.delete(base, ["d3"])
        store.write(base, documents_of(vectors[200:], 200))
        before = store.retrieve(base, queries).hits
    for content in (file.read_bytes(), of_the_first, b""):
        file.write_bytes(content)
        with closing(LocalStore(tmp_path)) as store:
            assert store.retrieve(base, queries).hits == before


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(StoreUnavailable, match=r"cannot lock .* \(No locks available\)"):
        LocalStore(tmp_path)
    keys = tmp_path / "keys.json"
    with pytest.raises(InvalidInput, match=r"cannot be locked \(No locks available\)"), changing(keys):
        pass


@pytest.mark.parametrize("name", ["kb-000001-notes.bak", "kb-000002-notes", "kb-000001-notes.tar"])
def test_a_store_with_a_copy_of_a_knowledge_base_beside_it_is_not_opened(tmp_path: Path, name: str) -> None:
    """Which of the two is meant nobody knows; writes to the copy would be lost with it."""
    with closing(LocalStore(tmp_path)) as store:
        store.create("notes", "", IDENTITY)
    if name.endswith(".tar"):
        (tmp_path / name).touch()
    else:
        shutil.copytree(tmp_path / "kb-000001-notes", tmp_path / name)
    with pytest.raises(StoreUnavailable, match=f"{name} has the number or the name of kb-000001-notes"):
        LocalStore(tmp_path)


def test_a_copied_folder_of_its_own_number_and_name_is_a_knowledge_base_of_its_own(tmp_path: Path) -> None:
    with closing(LocalStore(tmp_path)) as store:
        store.write(store.create("notes", "", IDENTITY), [document("a", "one")])
    shutil.copytree(tmp_path / "kb-000001-notes", tmp_path / "kb-000002-old")
    with closing(LocalStore(tmp_path)) as store:
        notes, old = store.knowledge_bases()
        assert [(one.number, one.name) for one in (notes, old)] == [(1, "notes"), (2, "old")]
        store.write(old, [document("b", "two")])
        assert keys_near(store, notes, "two") == ["a"]
        store.drop(old)
    assert [path.name for path in tmp_path.glob("kb-*")] == ["kb-000001-notes"]


def test_a_knowledge_base_that_a_link_leads_to_is_deleted_with_its_files(tmp_path: Path) -> None:
    path, moved = tmp_path / "store", tmp_path / "larger-disk" / "kb"
    moved.parent.mkdir()
    with closing(LocalStore(path)) as store:
        store.create("kb", "", IDENTITY)
    shutil.move(path / "kb-000001-kb", moved)
    (path / "kb-000001-kb").symlink_to(moved)
    for left in (False, True):  # the second time by the next process
        with closing(LocalStore(path)) as store:
            if left:
                moved.mkdir()
                (path / ".kb-000001").symlink_to(moved)
            else:
                store.drop(store.knowledge_base("kb"))
        LocalStore(path).close()
        assert (moved.exists(), [one.name for one in path.glob(".kb-*")]) == (False, [])


def test_a_failed_batch_leaves_nothing_and_the_store_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(LocalStore(tmp_path)) as store:
        base = store.create("kb", "", IDENTITY)
        store.write(base, [document("a", "one")])
        add = index.VectorIndex.add

        def failing(of: index.VectorIndex, rows: np.ndarray, vectors: np.ndarray) -> None:
            add(of, rows, vectors)
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr(index.VectorIndex, "add", failing)
            with pytest.raises(StoreFull):
                store.write(base, [document("b", "two", "three")])
        assert keys_near(store, base, "two") == ["a"]
        store.write(base, [document("c", "two")])
        assert keys_near(store, base, "two") == ["c", "a"]
    with closing(LocalStore(tmp_path)) as store:
        require_whole(store, base)


def write_large(store: LocalStore, base: KnowledgeBase, n: int) -> None:
    store.write(base, [document("a", *(f"{n} {chunk} {'long ' * 1000}" for chunk in range(20)))])


def count_reads(store: LocalStore, base: KnowledgeBase, n: int) -> None:
    store.add_reads(base, {(f"{chunk} {'long ' * 100}", 0): 1 for chunk in range(400)})


@pytest.mark.parametrize("change", [write_large, count_reads])
def test_the_journal_stays_short_although_there_is_always_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[LocalStore, KnowledgeBase, int], None]
) -> None:
    monkeypatch.setattr(database, "_JOURNAL_BYTES", 512 << 10)
    ending, sizes = threading.Event(), list[int]()
    with closing(LocalStore(tmp_path)) as store, ThreadPoolExecutor(3) as readers:
        base = store.create("kb", "", IDENTITY)
        opened = store._open[base.number]
        write_large(store, base, 0)

        def read() -> None:
            while not ending.is_set():
                with opened._database.reading() as data:
                    data.revision()
                    time.sleep(0.005)

        reading = [readers.submit(read) for _ in range(3)]
        try:
            for n in range(40):
                change(store, base, n)
                sizes.append(next(tmp_path.rglob("*-wal")).stat().st_size)
        finally:
            ending.set()
        assert [one.result() for one in reading] == [None] * 3
        assert max(sizes) < 4 << 20, "10 MB were written"
        assert store.document(base, "a").references[0][1].startswith("39 0 " if change is write_large else "0 0 ")


def test_the_filters_of_late_are_kept(store: LocalStore) -> None:
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document("a", "one", metadata={"n": "1"})])
    for n in range(40):
        store.retrieve(base, Query(vector_of("one")[None], 1, filter=In("n", (str(n),))))
    kept = store._open[base.number]._view.passing
    assert list(kept) == [None, *(In("n", (str(n),)) for n in range(9, 40))]


def test_an_index_that_cannot_be_saved_is_no_loss(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(index: object, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("Error: 'ret == (size)' failed")

    monkeypatch.setattr(knowledge_base, "SAVE_ROWS", 0)
    base = store.create("kb", "", IDENTITY)
    with monkeypatch.context() as patched:
        patched.setattr(index.faiss, "write_index", full)
        store.write(base, [document("a", "one")])
    assert keys_near(store, base, "one") == ["a"]
    assert not list(store.path.rglob("*index.faiss*"))
    store.write(base, [document("b", "two")])
    assert [path.name for path in store.path.rglob("*index.faiss*")] == ["index.faiss"]


def test_a_file_that_goes_while_it_is_counted_disturbs_no_statistics(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, stat = store.create("kb", "", IDENTITY), Path.stat
    folder = store.path / "kb-000001-kb"
    before, after = folder / ".before", folder / ".after"
    before.touch()
    after.touch()

    def going(path: Path, **options: Any) -> os.stat_result:
        if path == before:
            before.unlink()
        found = stat(path, **options)
        if path == after:
            after.unlink()
        return found

    monkeypatch.setattr(Path, "stat", going)
    assert store.statistics(base).stored_bytes > 0
    assert not any(path.exists() for path in (before, after))


@pytest.mark.parametrize("failure", ["sqlite", "folder"])
def test_who_reads_while_the_files_are_deleted_finds_no_knowledge_base(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document("a", "one")])

    def delete_first(opened: LocalKnowledgeBase, references: int) -> tuple[int, int]:
        deleting = threading.Thread(target=store.drop, args=(base,))
        deleting.start()
        deleting.join()
        if failure == "sqlite":
            raise sqlite3.OperationalError("disk I/O error")
        return 0, 0

    monkeypatch.setattr(LocalKnowledgeBase, "reindexing", delete_first)
    with pytest.raises(KnowledgeBaseNotFound, match="was deleted meanwhile"):
        store.statistics(base)


def test_vectors_of_replaced_documents_leave_memory_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge_base, "SAVE_ROWS", 64)
    vectors, living = clustered(300, seed=2), np.ones(300, bool)
    with closing(LocalStore(tmp_path)) as store:
        base = store.create("kb", "", IDENTITY)
        opened = store._open[base.number]
        for turn in range(6):
            documents = [replace(one, content_hash=bytes([turn] * 32)) for one in documents_of(vectors)]
            for first in range(0, 300, 30):
                store.write(base, documents[first : first + 30])
            assert found_share(store, base, vectors, living) >= 0.98
            eventually(lambda: not opened._builder.is_alive())
            assert opened._view.index.count <= 2 * 300
        require_whole(store, base)
        before = store.retrieve(base, Query(clustered(50, seed=3), 5)).hits
    with closing(LocalStore(tmp_path)) as store:
        assert store._open[base.number]._view.index.count <= 2 * 300
        assert store.retrieve(base, Query(clustered(50, seed=3), 5)).hits == before
        require_whole(store, base)


def test_a_store_that_an_earlier_release_called_damaged_opens_and_is_healed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It compared metadata with what SQLite's json_each gives of them, and took other digits for numbers."""
    with closing(LocalStore(tmp_path)) as store:
        base = store.create("kb", "", IDENTITY)
        store.write(
            base, [document("a", "one", metadata={"producer": "Canon\0", "page": "１２"}), document("b", "two")]
        )
    with closing(sqlite3.connect(next(tmp_path.rglob("documents.sqlite3")))) as file:
        file.create_function("number", 1, lambda text: float(text) if text.isdigit() else None, deterministic=True)
        file.executescript("REINDEX numbers; PRAGMA user_version = 1")
    for healed in (True, False):
        with closing(LocalStore(tmp_path)) as store:
            assert store.knowledge_base("kb").problem == ""
            assert store.keys(base, "", after_key=None, count=9, filter=In("producer", ("Canon\0",))) == ["a"]
            assert store.keys(base, "", after_key=None, count=9, filter=Range("page", above=0.0)) == []
            require_whole(store, base)
        assert ("knowledge_base_healed" in capsys.readouterr().out) is healed


@pytest.mark.usefixtures("walks")
@pytest.mark.parametrize("moved", [0.0, 0.02], ids=["equal", "nearly"])
def test_copies_of_a_text_hide_no_other_document(tmp_path: Path, moved: float) -> None:
    """Twenty texts of sixty copies each, among 800 others; also after replacing, deleting and opening again."""
    chance = np.random.default_rng(5)
    copies = np.repeat(clustered(20, seed=4), 60, axis=0)
    copies += (moved * chance.standard_normal(copies.shape)).astype(np.float32)
    vectors = np.concatenate([clustered(800, seed=2), copies / np.linalg.norm(copies, axis=1, keepdims=True)])
    order, living = chance.permutation(len(vectors)), np.ones(len(vectors), bool)
    documents = documents_of(vectors)
    with closing(LocalStore(tmp_path)) as store:
        base = store.create("kb", "", IDENTITY)
        for start in range(0, len(order), 100):
            store.write(base, [documents[n] for n in order[start : start + 100]])
        opened = store._open[base.number]
        assert opened._view.index.node_count < 0.6 * len(vectors), "copies share a node"
        assert found_share(store, base, vectors, living, same_score=1e-3) >= 0.98
        deleted = order[::9]
        store.delete(base, [f"d{n}" for n in deleted])
        living[deleted] = False
        store.write(base, [replace(documents[n], content_hash=bytes(32)) for n in order[1::9]])
        require_whole(store, base)
        before = found_share(store, base, vectors, living, same_score=1e-3)
        assert before >= 0.98
        own = [keys_near_vector(store, base, vectors[n])[0] == f"d{n}" for n in range(800) if living[n]]
        assert np.mean(own) >= 0.98
    with closing(LocalStore(tmp_path)) as store:
        assert store._open[base.number]._view.index.node_count < 0.6 * len(vectors)
        assert found_share(store, base, vectors, living, same_score=1e-3) == before
        for tenth in range(3):
            passes = living & (np.arange(len(vectors)) % 10 == tenth)
            assert found_share(store, base, vectors, passes, In("tenth", (str(tenth),)), same_score=1e-3) >= 0.98


def keys_near_vector(store: LocalStore, base: KnowledgeBase, vector: np.ndarray) -> list[str]:
    return [hit.document_key for hit in store.retrieve(base, Query(vector[None], 5)).hits[0]]
