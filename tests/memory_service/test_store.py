"""The embedded store by itself: whole batches, damage found at start, exact search."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_model.errors import InvalidInput
from memory_service.errors import (
    KnowledgeBaseDamaged,
    StoreUnavailable,
)
from memory_service.stores import KnowledgeBase, Store, open_store
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.clickhouse.migrations import migrate, migrations
from memory_service.stores.clickhouse.soundness import made_of
from tests.memory_service.encoders import DIMENSION, vector_of
from tests.memory_service.stored import IDENTITY, document, keys_near


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    store = open_store(f"chdb://{folder}")
    yield store
    store.close()


def test_the_vector_index_answers_queries(store: Store) -> None:
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document("a", "one")])
    vector = {"$vector$": vector_of("one").tobytes()}
    plan = store._engine.rows(  # type: ignore[attr-defined]
        f"EXPLAIN indexes = 1 SELECT id FROM references_{DIMENSION} WHERE kb = {base.number}"
        " ORDER BY cosineDistance(embedding, reinterpret($vector$, 'Array(Float32)')) LIMIT 5",
        vector,
    )
    assert any("vector_similarity" in row[0] for row in plan)


class Interrupted(Exception):
    """Stands for kill -9 between two inserts."""


@pytest.mark.parametrize(
    ("table", "before"),
    [("payloads", False), (f"references_{DIMENSION}", False), ("documents", False), ("totals", True)],
)
def test_a_batch_that_died_half_way_is_whole_or_absent(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, table: str, before: bool
) -> None:
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document("old", "one", "two"), document("kept", "three")])
    insert = Engine.insert

    def dying(engine: Engine, name: str, columns: object) -> None:
        if name == table and before:
            raise Interrupted
        insert(engine, name, columns)  # type: ignore[arg-type]
        if name == table:
            raise Interrupted

    # The undoing dies as well, as it would with the process.
    monkeypatch.setattr(Engine, "insert", dying)
    monkeypatch.setattr("memory_service.stores.clickhouse.batches.BatchLog.recover", lambda log, kb: None)
    with pytest.raises(Interrupted):
        store.write(base, [document("old", "four"), document("new", "five")])
    monkeypatch.undo()
    store.close()
    again = open_store(f"chdb://{folder}")
    try:
        found = again.knowledge_base("kb")
        assert found.problem == ""
        assert again.check(found, deep=True) == []
        committed = table in ("documents", "totals")
        expected = ["kept", "new", "old"] if committed else ["kept", "old", "old"]
        assert sorted(keys_near(again, found, "one")) == expected
        outcome = again.write(found, [document("old", "four"), document("new", "five")])
        assert [one.unchanged for one in outcome] == [committed, committed]
        assert sorted(keys_near(again, found, "one")) == ["kept", "new", "old"]
    finally:
        again.close()


def test_a_failed_insert_leaves_nothing_and_the_store_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = store.create("kb", "", IDENTITY)
    insert = Engine.insert

    def failing(engine: Engine, name: str, columns: object) -> None:
        if name.startswith("references"):
            raise StoreUnavailable("no")
        insert(engine, name, columns)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "insert", failing)
    with pytest.raises(StoreUnavailable):
        store.write(base, [document("a", "one")])
    monkeypatch.undo()
    assert store.check(base) == []
    assert store.versions(base, ["a"]) == {}
    store.write(base, [document("a", "one")])
    assert keys_near(store, base, "one") == ["a"]


_A_COLUMN_OF = {
    "payloads": "payload",
    f"references_{DIMENSION}": "embedding",
    "documents": "content_hash",
    "totals": "digest",
}


def parts_of(folder: Path, table: str, base: KnowledgeBase) -> list[Path]:
    """The parts of a table, as folders, that belong to one knowledge base."""
    parts = [path.parent for path in folder.rglob(f"{base.number}_*/columns.txt")]
    return sorted(part for part in parts if f"`{_A_COLUMN_OF[table]}`" in (part / "columns.txt").read_text())


def harm(part: Path, how: str) -> None:
    files = [path for path in part.iterdir() if path.suffix == ".bin"]
    largest = max(files, key=lambda path: path.stat().st_size)
    if how == "truncate":
        largest.write_bytes(largest.read_bytes()[:-3])
    elif how == "remove file":
        largest.unlink()
    else:
        shutil.rmtree(part)


def test_damage_refuses_that_knowledge_base_by_name_and_no_other(folder: Path, store: Store) -> None:
    harms = [(table, how) for table in _A_COLUMN_OF for how in ("truncate", "remove file", "remove part")]
    harms.remove(("totals", "remove part"))  # the intents tell what it held
    bases = [store.create(f"{table}-{how}".replace(" ", "-"), "", IDENTITY) for table, how in harms]
    sound = store.create("sound", "", IDENTITY)
    for base in (*bases, sound):
        store.write(base, [document("a", "one", "two"), document("b", "three")])
    store.close()
    for base, (table, how) in zip(bases, harms, strict=True):
        harm(parts_of(folder, table, base)[0], how)
    again = open_store(f"chdb://{folder}")
    try:
        for base in bases:
            refused = again.knowledge_base(base.name)
            assert refused.problem, base.name
            with pytest.raises(KnowledgeBaseDamaged, match=base.name):
                keys_near(again, refused, "one")
            with pytest.raises(KnowledgeBaseDamaged, match=base.name):
                again.write(refused, [document("c", "four")])
        assert sorted(keys_near(again, again.knowledge_base("sound"), "one")) == ["a", "a", "b"]
        for base in bases:
            again.drop(base)
        assert again.create(bases[0].name, "", IDENTITY).problem == ""
    finally:
        again.close()
    once_more = open_store(f"chdb://{folder}")
    assert [base.problem for base in once_more.knowledge_bases()] == ["", ""]
    once_more.close()


@pytest.mark.parametrize("table", list(_A_COLUMN_OF))
def test_a_flipped_bit_in_any_column_is_found_at_start(folder: Path, store: Store, table: str) -> None:
    base, sound = store.create("kb", "", IDENTITY), store.create("sound", "", IDENTITY)
    for one in (base, sound):
        store.write(one, [document("a", "one"), document("b", "two")])
    store.close()
    chance = random.Random(table)
    for part in parts_of(folder, table, base):
        for path in part.glob("*.bin"):
            raw = bytearray(path.read_bytes())
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
            path.write_bytes(raw)
    again = open_store(f"chdb://{folder}")
    try:
        found = again.knowledge_base("kb")
        assert table in found.problem
        with pytest.raises(KnowledgeBaseDamaged, match="'kb'"):
            keys_near(again, found, "one")
        sound = again.knowledge_base("sound")
        assert sound.problem == ""
        again.write(sound, [document("c", "three")])
        again.drop(found)
        assert again.create("kb", "", IDENTITY).problem == ""
    finally:
        again.close()


def test_the_answer_after_one_that_broke_off_is_its_own(store: Store) -> None:
    engine = store._engine  # type: ignore[attr-defined]
    breaking = (
        "SELECT number, throwIf(number = 5) FROM numbers(10) SETTINGS max_block_size = 1, max_threads = 1"
    )
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            engine.rows(breaking)
        for _ in range(3):  # every handle has its turn
            assert [tuple(row) for row in engine.rows("SELECT 1, 2")] == [(1, 2)]
    with pytest.raises(StoreUnavailable):
        engine.command(breaking)
    engine.insert("intents", {"kb": [99], "batch": [1], "added": [[]], "removed": [[]]})
    assert [tuple(row) for row in engine.rows("SELECT kb FROM intents")] == [(99,)]


def test_migrations_are_numbered_applied_once_and_recorded(store: Store) -> None:
    store.create("kb", "", IDENTITY)
    engine = store._engine  # type: ignore[attr-defined]
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))
    recorded = engine.rows("SELECT number, dimension FROM migrations ORDER BY number")
    expected = [(m.number, DIMENSION if m.per_dimension else 0) for m in migrations()]
    assert [tuple(row) for row in recorded] == expected
    assert migrate(engine.writer, engine.dialect, {DIMENSION}) == []


@pytest.mark.parametrize("url", ["chdb://relative", "file:///", "mysql://x", "/tmp/x", ""])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="chdb:///"):
        open_store(url)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="file"):
        open_store(f"chdb://{tmp_path}/file/store")


@pytest.mark.parametrize(
    ("in_use", "set_aside", "superseded"),
    [
        ("1_1_1_0_9", "broken-on-start_1_1_1_0_7", True),
        ("1_1_1_0_7", "broken-on-start_1_1_1_0_9", False),
        ("1_1_4_1", "1_2_2_0", True),
        ("1_1_4_1_6", "broken_1_4_4_0_7", False),
        ("1_2_4_1", "1_1_4_1", False),
        ("12_1_4_1", "2_1_4_1", False),
        ("all_1_4_1", "broken-on-start_all_1_1_0", True),
        ("1_1_4_1", "broken-on-start_1_1_1_0_try1", False),
    ],
)
def test_a_part_is_lost_unless_a_later_one_was_made_of_it(
    in_use: str, set_aside: str, superseded: bool
) -> None:
    assert made_of(("payloads", in_use), "payloads", set_aside) == superseded
    assert not made_of(("documents", in_use), "payloads", set_aside)
