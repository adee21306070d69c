"""A store on a ClickHouse server: any number of processes write; what goes wrong is said."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import unquote_plus

import pytest
from urllib3 import PoolManager

from memory_service.errors import KnowledgeBaseExists, KnowledgeBaseNotFound, StoreUnavailable
from memory_service.stores.address import StoreOptions
from memory_service.stores.clickhouse import migrations
from memory_service.stores.clickhouse.store import ClickHouseStore
from memory_service.stores.filters import And, Exists, In, Not, Range
from memory_service.stores.opening import open_store
from memory_service.stores.store import Query, Store
from testing.clickhouse import PASSWORD, clickhouse_server, stall
from testing.encoders import vector_of
from tests.memory_service.stored import IDENTITY, document, keys_near, require_whole, wait_for_rows

Two = tuple[ClickHouseStore, ClickHouseStore]
OPTIONS = StoreOptions(read_connections=1, password=PASSWORD, timeout_s=20)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with clickhouse_server(tmp_path_factory.mktemp("server")) as port:
        yield f"clickhouse://default@127.0.0.1:{port}/memories"


@pytest.fixture(scope="module")
def stores(url: str) -> Iterator[Two]:
    """Two processes' stores, as far as the server can tell."""
    opened = [open_store(url, OPTIONS) for _ in range(2)]
    yield opened[0], opened[1]  # type: ignore[misc]
    for store in opened:
        store.close()


def test_what_is_written_to_a_dropped_knowledge_base_is_refused_and_swept(
    stores: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = stores
    base = one.create("dropped", "", IDENTITY)
    one.write(base, [document("a", "one")])
    seen = one._writes.newest(base, ["b"])
    two.drop(two.knowledge_base("dropped"))
    with monkeypatch.context() as patched:  # it was there when the write began
        patched.setattr(one._writes, "newest", lambda base, keys: seen)
        one.write(base, [document("b", "two")])
    with pytest.raises(KnowledgeBaseNotFound):
        one.write(base, [document("c", "three")])
    with pytest.raises(KnowledgeBaseNotFound):
        one.knowledge_base("dropped")
    again = two.create("dropped", "", IDENTITY)
    assert again.number != base.number
    assert keys_near(one, one.knowledge_base("dropped"), "two") == []
    two.sweep(3600.0)
    sql = f"SELECT count() FROM system.parts WHERE active AND partition_id = '{base.number}'"
    assert two._engine.rows(sql)[0][0] == 0


def test_a_snapshot_keeps_what_is_replaced_from_the_sweep_for_its_age_and_reads_the_newest_after_it(
    stores: Two,
) -> None:
    one, two = stores
    base = one.create("snapshot", "", IDENTITY)
    one.write(base, [document(f"d{n}", *(f"text {n} {chunk}" for chunk in range(60))) for n in range(4)])
    with one.snapshot(base) as snapshot:
        next(snapshot.pages)
        two.write(base, [document("d1", "another"), document("d3", "other")])
        two.sweep(3600.0)
        assert [memory.text for memory in next(snapshot.pages).memories][:2] == ["text 1 0", "text 1 1"]
        two.sweep(0.0)
        wait_for_rows(two, base, 2 * 60 + 2)
        found = {page.document.key: len(page.memories) for page in snapshot.pages}
    assert found == {"d2": 60, "d3": 1}


def test_a_part_that_a_server_set_aside_damages_nothing(url: str, stores: Two) -> None:
    """Replicated tables set parts aside and fetch them again."""
    store, _ = stores
    base = store.create("healed", "", IDENTITY)
    store.write(base, [document("a", "one")])
    store._engine.command(f"ALTER TABLE documents DETACH PARTITION ID '{base.number}'")
    store.write(base, [document("a", "one")])
    with contextlib.closing(open_store(url, OPTIONS)) as restarted:
        assert restarted.knowledge_base("healed").problem == ""
        assert keys_near(restarted, base, "one") == ["a"]


def test_of_several_who_create_one_name_at_once_one_does(stores: Two) -> None:
    def create(store: Store, name: str) -> int:
        try:
            return store.create(name, "", IDENTITY).number
        except KnowledgeBaseExists:
            return 0

    with ThreadPoolExecutor(6) as pool:
        made = [pool.submit(create, store, name) for name in ("x", "y", "z") for store in stores]
        numbers = [one.result(120) for one in made]
    assert [sum(map(bool, numbers[n : n + 2])) for n in (0, 2, 4)] == [1, 1, 1]
    there = {base.name: base.number for base in stores[0]._bases.refresh().values()}
    assert {there[name] for name in "xyz"} == set(numbers) - {0}


def test_an_insert_that_is_sent_twice_is_stored_once(stores: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = stores
    base = store.create("twice", "", IDENTITY)
    insert = store._engine.writer.insert

    def twice(*arguments: object, **named: object) -> None:  # as a client does when the connection breaks
        insert(*arguments, **named)
        insert(*arguments, **named)

    monkeypatch.setattr(store._engine.writer, "insert", twice)
    store.write(base, [document("a", "one", "two")])
    monkeypatch.undo()
    require_whole(store, base)
    assert keys_near(store, base, "one") == ["a", "a"]
    sql = f"SELECT count() FROM payloads WHERE kb = {base.number}"
    assert store._engine.rows(sql)[0][0] == 2


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_late_commit_does_no_harm(url: str, stores: Two, when: str) -> None:
    """The client gives up, deletes or replaces the document, and the server goes on."""
    store, _ = stores
    base = store.create(f"late-{when}", "", IDENTITY)
    store.write(base, [document("a", "zero"), document("b", "zero")])
    with contextlib.closing(open_store(url, replace(OPTIONS, timeout_s=1.0))) as impatient:
        stall(url, when, "INSERT INTO documents", 1.4)
        with contextlib.suppress(StoreUnavailable):  # the insert is sent twice
            impatient.write(base, [document("a", "one"), document("b", "one")])
    store.write(base, [document("a", "two")])
    store.delete(base, ["b"])
    time.sleep(1.0)  # what is held longest was sent 1 s ago
    assert store.versions(base, ["a", "b"]).keys() == {"a"}
    assert store.document(base, "a").content_hash == document("a", "two").content_hash
    assert keys_near(store, base, "two") == ["a"]
    require_whole(store, base)


def test_what_names_and_describes_documents_is_in_no_address_of_a_request(
    stores: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, addresses, urlopen = stores[0], list[str](), PoolManager.urlopen

    def noting(pool: PoolManager, method: str, address: str, *arguments: Any, **more: Any) -> Any:
        addresses.append(unquote_plus(address))
        return urlopen(pool, method, address, *arguments, **more)

    monkeypatch.setattr(PoolManager, "urlopen", noting)
    key, value = "secret/$vector0$ {f0:String} %s 'a\\n'", "secret $vector0$ {vector0:String} \\' ü\0"
    base = store.create("addresses", "", IDENTITY)
    store.write(base, [document(key, "one", metadata={"who": value}), document("other", "two")])
    many = In("who", (*(f"secret {number:060}" for number in range(999)), value))
    assert store.document(base, key).metadata == {"who": value}
    assert store.keys(base, "secret/$", after_key="secret", count=9, filter=many) == [key]
    for condition in (many, Range("who", at_least=value), And((Exists("who"), Not(Range("who", above=1.5))))):
        found = store.retrieve(base, Query(vector_of("two")[None], 5, filter=condition, return_metadata=True))
        assert [(hit.document_key, hit.metadata) for hit in found.hits[0]] == [(key, {"who": value})]
    with store.snapshot(base) as snapshot:
        store.write(base, [document(key, "three", metadata={"who": value})])
        store.sweep(0)
        assert {page.document.key for page in snapshot.pages} == {key, "other"}
    assert store.delete(base, [key]) == (1, 1)
    assert len(addresses) > 9
    assert not [address for address in addresses if "secret" in address]


def test_one_process_migrates_while_others_serve(url: str, stores: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    old, _ = stores
    base = old.create("migrated", "", IDENTITY)
    statement = "ALTER TABLE documents ADD COLUMN IF NOT EXISTS later String"
    later = migrations.Migration("later", lambda dialect, dimension: [statement])
    with monkeypatch.context() as newer:
        newer.setattr(migrations, "MIGRATIONS", [*migrations.MIGRATIONS, later])
        with ThreadPoolExecutor(2) as pool:
            opened = [pool.submit(open_store, url, OPTIONS) for _ in range(2)]
            for n in range(5):
                old.write(base, [document(f"d{n}", f"text {n}")])
            for one in opened:
                one.result(120).close()
    rows = old._engine.rows("SELECT DISTINCT number FROM migrations WHERE name = 'later'")
    assert [tuple(row) for row in rows] == [(len(migrations.MIGRATIONS) + 1,)]
    old.write(base, [document("after", "after")])
    with contextlib.closing(open_store(url, OPTIONS)) as restarted:  # of the old release
        assert len(keys_near(restarted, base, "after")) == 6
        require_whole(restarted, base)


def test_a_server_that_is_not_there_and_a_wrong_password_are_said_and_no_password_is_shown(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        open_store("clickhouse://127.0.0.1:1/memories", OPTIONS)
    with pytest.raises(StoreUnavailable, match="Authentication failed") as refused:
        open_store(url.replace("default@", "default:wr0ng@"), replace(OPTIONS, password=""))
    assert "wr0ng" not in str(refused.value)
    assert PASSWORD not in repr(OPTIONS)
