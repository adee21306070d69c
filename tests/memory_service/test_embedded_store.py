"""The embedded ClickHouse engine as a store: writes that are whole, what is swept, and the indexes."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from memory_service.errors import StoreUnavailable
from memory_service.stores.address import StoreOptions
from memory_service.stores.clickhouse import uses, writes
from memory_service.stores.clickhouse.dialect import Dialect, filter_sql
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.filters import Exists, Filter, In, Range
from memory_service.stores.opening import open_store
from memory_service.stores.store import Store
from testing.encoders import DIMENSION, vector_of
from tests.memory_service.stored import IDENTITY, document, keys_near, require_whole, rows_of, wait_for_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with closing(open_store(f"chdb://{folder}")) as opened:
        yield opened


def test_the_vector_index_answers_queries(store: Store) -> None:
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document("a", "one")])
    vector = {"$vector$": vector_of("one").tobytes()}
    with store._engine.reader() as client:  # type: ignore[attr-defined]
        plan = client.query(
            f"EXPLAIN indexes = 1 SELECT id FROM references_{DIMENSION} WHERE kb = {base.number}"
            " ORDER BY cosineDistance(embedding, reinterpret($vector$, 'Array(Float32)')) LIMIT 5",
            vector,
        ).result_rows
    assert any("vector_similarity" in row[0] for row in plan)


@pytest.mark.parametrize(
    ("condition", "index"),
    [
        (In("n", ("3",)), "metadata_values"),
        (Exists("none"), "metadata_names"),
        (Range("none", at_least=3.0), "metadata_names"),
    ],
)
def test_a_filter_reads_only_what_its_index_leaves(store: Store, condition: Filter, index: str) -> None:
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document(f"d{n}", f"text {n}", metadata={"n": str(n)}) for n in range(600)])
    sql = f"SELECT id FROM references_{DIMENSION} WHERE kb = {base.number} AND {filter_sql(condition)}"
    rows = store._engine.rows(f"EXPLAIN indexes = 1 {sql}")  # type: ignore[attr-defined]
    plan = [row[0].strip() for row in rows]
    granules = plan[plan.index(f"Name: {index}") :][3]
    left, before = map(int, granules.removeprefix("Granules: ").split("/"))
    assert left < before, granules


class Interrupted(Exception):
    """Stands for kill -9 between two inserts."""


@pytest.mark.parametrize("table", ["payloads", f"references_{DIMENSION}", "documents"])
def test_a_write_that_died_half_way_is_whole_or_absent_and_swept(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document("old", "one", "two"), document("kept", "three")])
    insert = Engine.insert

    def dying(engine: Engine, name: str, columns: object, token: str) -> None:
        insert(engine, name, columns, token)  # type: ignore[arg-type]
        if name == table:
            raise Interrupted

    monkeypatch.setattr(Engine, "insert", dying)
    with pytest.raises(Interrupted):
        store.write(base, [document("old", "four"), document("new", "five")])
    monkeypatch.undo()
    store.close()
    with closing(open_store(f"chdb://{folder}")) as again:
        found = again.knowledge_base("kb")
        assert found.problem == ""
        committed = table == "documents"
        expected = ["kept", "new", "old"] if committed else ["kept", "old", "old"]
        for _ in range(2):
            require_whole(again, found)
            assert sorted(keys_near(again, found, "one")) == expected
            again.sweep(0.0)  # type: ignore[attr-defined]
        wait_for_rows(again, found, len(expected))
        outcome = again.write(found, [document("old", "four"), document("new", "five")])
        assert [one.unchanged for one in outcome] == [committed, committed]
        assert sorted(keys_near(again, found, "one")) == ["kept", "new", "old"]


def test_what_is_replaced_and_deleted_is_swept_and_nothing_else(store: Store) -> None:
    base = store.create("kb", "", IDENTITY)
    for turn in range(3):
        store.write(base, [document(f"d{n}", f"text {n}", f"turn {turn}") for n in range(20)])
    store.delete(base, [f"d{n}" for n in range(0, 20, 2)])
    assert store.sweep(3600.0) == 0  # type: ignore[attr-defined]
    assert rows_of(store, base) == [120, 120]
    assert store.sweep(0.0) == 100  # type: ignore[attr-defined]
    wait_for_rows(store, base, 20)
    assert store.sweep(0.0) == 0  # type: ignore[attr-defined]
    require_whole(store, base)
    assert sorted(keys_near(store, base, "text 3")) == sorted(f"d{n}" for n in range(1, 20, 2) for _ in "ab")


def test_a_sweep_that_left_something_is_followed_by_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "_SWEPT_AT_ONCE", 10)
    monkeypatch.setattr(uses, "_FORGOTTEN_AT_ONCE", 10)
    with closing(open_store(f"chdb://{folder}", StoreOptions(sweep_after_s=3600.0))) as store:
        base = store.create("kb", "", IDENTITY)
        keys = [f"d{n}" for n in range(25)]
        store.write(base, [document(key, key) for key in keys])
        store.add_reads(base, {(key, 0): 1 for key in keys})
        store.delete(base, keys)
        monkeypatch.setattr(store, "_sweep_after_s", 0.0)  # of the next sweeps; the first by age is in half an hour
        store.sweep(0.0)  # type: ignore[attr-defined]
        wait_for_rows(store, base, 0)
        deadline = time.monotonic() + 60
        while store._engine.rows("SELECT 1 FROM uses LIMIT 1") and time.monotonic() < deadline:  # type: ignore[attr-defined]
            time.sleep(0.05)
        assert time.monotonic() < deadline


def test_a_knowledge_base_that_cannot_be_swept_keeps_no_other_from_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = [store.create(name, "", IDENTITY) for name in ("a", "b")]
    for base in bases:
        store.write(base, [document("d", "one")])
        store.delete(base, ["d"])
    deletion = Dialect.deletion

    def failing(dialect: Dialect, table: str, kb: int, rows: Sequence[tuple[int, int]]) -> str:
        return deletion(dialect, table if kb != bases[0].number else "lost", kb, rows)

    monkeypatch.setattr(Dialect, "deletion", failing)
    assert store.sweep(0.0) == 1  # type: ignore[attr-defined]
    wait_for_rows(store, bases[1], 0)
    assert rows_of(store, bases[0]) == [1, 1]


def test_many_swept_versions_near_a_query_hide_none_of_the_others(store: Store) -> None:
    base = store.create("kb", "", IDENTITY)
    store.write(base, [document(f"other-{n}", f"text {n}") for n in range(40)])
    for turn in range(20):  # each has a reference with the vector that is asked for
        store.write(base, [document("mine", "sought", f"turn {turn}")])
    store.sweep(0.0)  # type: ignore[attr-defined]
    assert keys_near(store, base, "sought", k=1) == ["mine"]
    wait_for_rows(store, base, 42)
    assert keys_near(store, base, "sought", k=1) == ["mine"]


def test_a_store_for_trials_says_so_when_it_is_opened(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_store(f"chdb://{folder}")):
        said = capsys.readouterr().out
    assert "store_for_trials" in said
    assert "a full disk can lose what was stored" in said


def test_a_write_that_took_too_long_is_not_committed(folder: Path) -> None:
    """Its references may have been swept, as those of a write that was given up."""
    with closing(open_store(f"chdb://{folder}", StoreOptions(sweep_after_s=0.0001))) as store:
        base = store.create("kb", "", IDENTITY)
        with pytest.raises(StoreUnavailable, match="half of the sweep's age"):
            store.write(base, [document("a", "one")])
        assert store.versions(base, ["a"]) == {}


def test_a_document_written_late_takes_only_the_place_it_was_made_for(store: Store) -> None:
    base = store.create("kb", "", IDENTITY)
    cold, mine = document("a", "cold"), document("a", "newer")
    store.write(base, [cold])
    late = replace(document("a", "finished"), replaces=cold.content_hash)
    writes = store._writes  # type: ignore[attr-defined]
    seen = writes.newest(base, ["a"])
    store.write(base, [mine])  # between the late writer's look and its commit
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writes, "newest", lambda base, keys: seen)
        assert not store.write(base, [late])[0].unchanged
    assert store.versions(base, ["a"])["a"].content_hash == mine.content_hash
    assert store.write(base, [late])[0].unchanged
    assert store.write(base, [replace(late, replaces=mine.content_hash)])[0].replaced
    assert store.write(base, [replace(late, key="b")])[0].unchanged


def test_a_large_write_is_inserted_in_parts_and_is_one_commit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memory_service.stores.clickhouse.writes._ROWS_AT_ONCE", 40)
    monkeypatch.setattr("memory_service.stores.clickhouse.writes._BYTES_AT_ONCE", 10_000)
    inserted: list[tuple[str, int]] = []
    insert = Engine.insert

    def counting(engine: Engine, name: str, columns: Mapping[str, Sequence[object]], token: str) -> None:
        inserted.append((name, len(columns["kb"])))
        insert(engine, name, columns, token)

    base = store.create("kb", "", IDENTITY)
    monkeypatch.setattr(Engine, "insert", counting)
    store.write(base, [document(f"d{n}", f"text {n}") for n in range(100)])
    assert [count for name, count in inserted if name.startswith("references")] == [40, 40, 20]
    assert max(count for name, count in inserted if name == "payloads") < 40
    assert inserted[-1] == ("documents", 100)
    assert [count for name, count in inserted if name == "documents"] == [100]
    require_whole(store, base)
    assert keys_near(store, base, "text 77", k=1) == ["d77"]
    inserted.clear()
    store.write(base, [document(f"e{n}", f"long {n}", metadata={"about": "x" * 4_000}) for n in range(6)])
    assert [count for name, count in inserted if name.startswith("references")] == [3, 3], "metadata is in every row"


def test_the_answer_after_one_that_broke_off_is_its_own(store: Store) -> None:
    engine = store._engine  # type: ignore[attr-defined]
    breaking = "SELECT number, throwIf(number = 5) FROM numbers(10) SETTINGS max_block_size = 1, max_threads = 1"
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            engine.rows(breaking)
        for _ in range(3):  # every handle has its turn
            assert [tuple(row) for row in engine.rows("SELECT 1, 2")] == [(1, 2)]
    with pytest.raises(StoreUnavailable):
        engine.command(breaking)
    engine.insert("payloads", {"kb": [99], "id": [1], "version": [2], "payload": [b""]})
    assert [tuple(row) for row in engine.rows("SELECT kb FROM payloads")] == [(99,)]
