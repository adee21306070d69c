"""A store on a ClickHouse server: one process writes, others read and take its place; what goes wrong is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memory_service.errors import StoreUnavailable
from memory_service.stores import StoreOptions, open_store
from memory_service.stores.clickhouse.store import ClickHouseStore
from memory_service.stores.clickhouse.writer_claim import WriterElsewhere
from tests.memory_service.stored import (
    IDENTITY,
    PASSWORD,
    OpenedStore,
    clickhouse_server,
    document,
    keys_near,
)

OPTIONS = StoreOptions(read_connections=1, password=PASSWORD, timeout_s=20)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with clickhouse_server(tmp_path_factory.mktemp("server")) as port:
        yield f"clickhouse://default@127.0.0.1:{port}/memories"


def test_one_process_writes_others_read_and_take_its_place(url: str) -> None:
    first = OpenedStore(url, OPTIONS)
    base = first.new_base()
    first.store.write(base, [document("a", "one")])
    second = open_store(url, OPTIONS)
    assert isinstance(second, ClickHouseStore)
    try:
        assert keys_near(second, second.knowledge_base(base.name), "one") == ["a"]
        with pytest.raises(WriterElsewhere, match="writes to this store"):
            second.write(base, [document("b", "two")])
        first.store.write(base, [document("b", "two"), document("a", "three")])
        second._keep_up()
        assert second.revision(base) == first.store.revision(base)
        assert sorted(keys_near(second, base, "two")) == ["a", "b"]
        first.store.close()
        second.write(base, [document("c", "four")])
        assert second.check(base, deep=True) == []
        with pytest.raises(WriterElsewhere):
            open_store(url, OPTIONS).delete(base, ["a"])
    finally:
        second.close()


def test_an_insert_that_is_sent_twice_is_stored_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(url, OPTIONS)
    assert isinstance(store, ClickHouseStore)
    try:
        base = store.create("twice", "", IDENTITY)
        insert = store._engine.writer.insert

        def twice(*arguments: object, **named: object) -> None:  # as a client does when the connection breaks
            insert(*arguments, **named)
            insert(*arguments, **named)

        monkeypatch.setattr(store._engine.writer, "insert", twice)
        store.write(base, [document("a", "one", "two")])
        monkeypatch.undo()
        assert store.check(base, deep=True) == []
        assert keys_near(store, base, "one") == ["a", "a"]
    finally:
        store.close()


def test_a_wrong_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="Authentication failed") as refused:
        open_store(url.replace("default@", "default:wr0ng@"), replace(OPTIONS, password=""))
    assert "wr0ng" not in str(refused.value)
    assert PASSWORD not in repr(OPTIONS)


def test_a_server_that_is_down_is_said_and_used_again_when_it_is_back(tmp_path: Path) -> None:
    with clickhouse_server(tmp_path) as port:
        url = f"clickhouse://127.0.0.1:{port}/memories"
        store = open_store(url, OPTIONS)
        base = store.create("kb", "", IDENTITY)
        store.write(base, [document("a", "one")])
    with pytest.raises(StoreUnavailable):
        keys_near(store, base, "one")
    with pytest.raises(StoreUnavailable):
        store.write(base, [document("b", "two")])
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        open_store(url, OPTIONS)
    with clickhouse_server(tmp_path, port):
        assert keys_near(store, base, "one") == ["a"]
        store.write(base, [document("b", "two")])
        assert store.check(base, deep=True) == []
        store.close()
