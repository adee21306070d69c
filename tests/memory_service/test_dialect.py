"""What is said to which engine: addresses, clusters, MyScale. The statements are compared as text, see the docs."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory3.errors import InvalidInput
from memory_service.stores.address import parse_address
from memory_service.stores.clickhouse.dialect import Dialect
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.clickhouse.migrations import MIGRATIONS, RECORDS
from memory_service.stores.clickhouse.myscale import BRUTE_FORCE, VectorIndex, failed_sql, failures
from memory_service.stores.clickhouse.search import _Candidate, _Searching
from memory_service.stores.filters import Exists
from memory_service.stores.store import KnowledgeBase, Query, WriterIdentity
from testing.encoders import DIMENSION, vector_of
from testing.myscale_dialect import translated
from testing.programs import ran
from tests.memory_service.stored import document, opened, require_whole


def statements(dialect: Dialect) -> list[str]:
    """All that the migrations say to a new store."""
    said = [statement for migration in MIGRATIONS for statement in migration.statements(dialect, 1024)]
    return [*dialect.create(RECORDS), *said]


def test_addresses_say_engine_place_and_user() -> None:
    parsed = parse_address("clickhouses://me:p%40ss@[::1]:9440/notes")
    assert (parsed.engine, parsed.host, parsed.port, parsed.secure) == ("clickhouse", "::1", 9440, True)
    assert (parsed.user, parsed.password, parsed.database) == ("me", "p@ss", "notes")
    assert str(parsed) == "clickhouses://me@[::1]:9440/notes"
    assert "p@ss" not in repr(parsed)
    with pytest.raises(InvalidInput) as refused:
        parse_address("clickhouse://me:secret@host/a-b")
    assert "secret" not in str(refused.value)
    assert (parse_address("myscale://h").port, parse_address("myscales://h").port) == (8123, 8443)
    assert parse_address("file:///a%20b").path.name == "a b"


@given(st.text(max_size=60) | st.from_regex(r"(clickhouses?|file|chdb)://[^ ]{0,30}", fullmatch=True))
def test_an_address_is_parsed_or_refused(url: str) -> None:
    try:
        parsed = parse_address(url)
    except InvalidInput:
        return
    assert parsed.host or parsed.path.is_absolute()


def test_every_table_that_is_inserted_into_again_remembers_its_inserts() -> None:
    said = statements(Dialect("clickhouse"))
    assert not any("Replicated" in s or "ON CLUSTER" in s for s in said)
    made = [s for s in said if s.startswith("CREATE TABLE")]
    assert len(made) == 6
    assert all("non_replicated_deduplication_window" in s for s in made)
    assert said == statements(Dialect("chdb"))


def test_numbers_in_texts_are_read_exactly_where_the_engine_can() -> None:
    """Older servers do not by default; MyScale refuses settings that it does not know."""
    found = [Dialect(engine).settings().get("precise_float_parsing") for engine in ("chdb", "clickhouse", "myscale")]
    assert found == [1, 1, None]


def test_a_cluster_has_replicated_tables_and_distributed_ones_over_them() -> None:
    said = statements(Dialect("clickhouse", cluster="prod"))
    assert all("ON CLUSTER 'prod'" in s for s in said)
    local = [s for s in said if re.match(r"CREATE TABLE IF NOT EXISTS \w+_local ", s)]
    distributed = [s for s in said if "ENGINE = Distributed('prod'" in s]
    assert len(local) == len(distributed) == 6
    assert all(
        re.search(r"ENGINE = Replicated(Replacing|Summing)?MergeTree\('/clickhouse/tables/\{shard\}/", s) for s in local
    )
    by = {re.search(r"EXISTS (\w+)", s)[1]: s.rstrip(")").rpartition(", ")[2] for s in distributed}  # type: ignore[index]
    assert by == {
        "migrations": "0",
        "knowledge_bases": "0",
        "documents": "kb",
        "uses": "kb",
        "payloads": "id",
        "references_1024": "id",
    }
    replacing = next(s for s in local if "documents_local" in s)
    assert (
        "ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/documents', '{replica}', version)"
        in replacing
    )


# Reads statements, has the engine parse them, and writes the names of its settings.
_PARSE = """
import json, sys
import chdb
for statement in json.load(sys.stdin):
    chdb.query("SELECT formatQuery({said:String})", params={"said": statement})
print(json.dumps(chdb.query("SELECT name FROM system.settings", "TabSeparated").bytes().decode().split()))
"""


def test_the_engine_parses_a_clusters_statements_and_knows_its_settings() -> None:
    dialect = Dialect("clickhouse", cluster="prod")
    said = json.dumps([*statements(dialect), dialect.deletion("payloads", 1, [(2, 3)])])
    assert dialect.settings().keys() <= set(json.loads(ran(sys.executable, "-c", _PARSE, input=said)))


def test_myscale_keeps_float32_of_one_length_under_its_own_index() -> None:
    said = statements(Dialect("myscale"))
    table = next(s for s in said if "references_1024 (" in s)
    assert "embedding Array(Float32), INDEX" in table
    assert "CONSTRAINT length CHECK length(embedding) = 1024" in table
    assert "vector_similarity" not in " ".join(said)
    index = "ADD VECTOR INDEX IF NOT EXISTS nearest embedding TYPE SCANN('metric_type=Cosine')"
    assert f"ALTER TABLE references_1024 {index}" in said
    cluster = statements(Dialect("myscale", cluster="c"))
    assert any(s.startswith("ALTER TABLE references_1024_local ON CLUSTER 'c' ADD VECTOR INDEX") for s in cluster)
    vector = np.array([0.5, -1e-7, 1 / 3], np.float32)
    sql, parameters = Dialect("myscale").distance(vector, indexed=True)
    assert (sql[:21], parameters) == ("distance(embedding, [", {})
    np.testing.assert_array_equal(np.array(json.loads(sql[20:-1]), np.float32), vector)


class Searches:
    """Stands for a server that has no rows. said: the statements."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.said: list[str] = []
        self.result_rows: list[object] = []

    def query(self, sql: str, **_: object) -> "Searches":
        self.said.append(sql)
        return self

    @contextlib.contextmanager
    def reader(self) -> Iterator["Searches"]:
        yield self


@pytest.mark.parametrize("cluster", ["", "prod"])
def test_myscale_takes_every_search_and_finds_rows_that_no_index_has_yet(cluster: str) -> None:
    index = VectorIndex("MSTG", "alpha=3.5")
    server = Searches(Dialect("myscale", cluster, index=index, brute_force=True))
    identity = WriterIdentity("m", "c", "f", "e", DIMENSION)
    base = KnowledgeBase(1, "kb", "", identity, datetime.now(timezone.utc))
    for condition in (None, Exists("x")):
        query = Query(np.stack([vector_of("one"), vector_of("two")]), 5, filter=condition)
        searching = _Searching(server, server, base, query)  # type: ignore[arg-type]
        assert searching.nearest() == [[], []]
        assert searching._by_id(0, [7]) == []
    by_index = [sql for sql in server.said if "distance('alpha=3.5')(embedding, [" in sql]
    assert len(by_index) == 4
    assert all(f"{BRUTE_FORCE} = 1" in sql for sql in by_index)
    exact = [sql for sql in server.said if sql not in by_index]
    assert len(exact) == 4  # of every row, and of given ids
    assert all(" cosineDistance(embedding, [" in sql and BRUTE_FORCE not in sql for sql in exact)
    for sql in server.said:
        translated(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT distance(embedding, [1.0]) AS dist FROM t ORDER BY dist SETTINGS max_threads = 1",
        "SELECT * FROM (SELECT distance(embedding, [1.0]) AS dist FROM t LIMIT 5) ORDER BY dist LIMIT 5",
        f"SELECT distance(embedding, [1.0]) AS d FROM t WHERE i IN (SELECT 1 ORDER BY 1 LIMIT 1) {BRUTE_FORCE} = 1",
        "SELECT distance(embedding, [1.0]) AS dist FROM t ORDER BY dist LIMIT 5",
        "ALTER TABLE t ADD VECTOR INDEX nearest embedding TYPE HNSW",
    ],
)
def test_the_stand_in_refuses_what_myscale_refuses(sql: str) -> None:
    with pytest.raises(ValueError, match=r"Code: \d+. DB::Exception"):
        translated(sql)


def test_an_older_myscale_without_the_setting_is_not_sent_it() -> None:
    assert BRUTE_FORCE not in Dialect("myscale").search_settings(indexed=True)


@pytest.mark.parametrize(
    ("kind", "search", "problem"),
    [
        ("HNSW", "", "MyScale has SCANN, MSTG"),
        ("SCANN", "alpha=5", "1 to 4"),
        ("SCANN", "nprobe=5", "it takes alpha=NUMBER"),
        ("FLAT", "alpha=1", "it takes none"),
        ("HNSWFLAT", "ef_s=64, alpha=2", "it takes ef_s=NUMBER"),
        ("IVFSQ", "nprobe=3') OR ('", "it takes nprobe=NUMBER"),
    ],
)
def test_an_index_that_myscale_has_not_is_refused(kind: str, search: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        VectorIndex(kind, search)


def test_an_index_whose_building_failed_is_named() -> None:
    assert "FROM cluster('c', system.vector_indices)" in failed_sql(
        Dialect("myscale", cluster="c").system("vector_indices")
    )
    (found,) = failures([("references_384", "nearest", "1_2_2_0", "out of memory")])
    assert found == "index nearest of references_384, part 1_2_2_0: out of memory"


@pytest.mark.parametrize(("engine", "options"), [("chdb", {"cluster": "c"}), ("clickhouse", {"cluster": "a b"})])
def test_options_that_do_not_go_with_an_engine_are_refused(engine: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        Dialect(engine, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", ["chdb", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("clickhouse", "myscale"))]
)
def test_a_statement_names_as_many_rows_and_keys_as_there_may_be(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as place:
        base, store = place.new_base(), place.store
        store.write(base, [document("a", "one")])
        keys = [f"{n:05}\\'".ljust(1024, "x") for n in range(1000)]
        engine: Engine = store._engine  # type: ignore[attr-defined]
        engine.command(
            engine.dialect.deletion("payloads", base.number, [(2**64 - n, 2**64 - n) for n in range(1, 7001)])
        )
        engine.command(engine.dialect.forgetting("uses", base.number, keys[:400]))
        assert set(store.versions(base, [*keys[:300], "a"])) == {"a"}
        near = [_Candidate(0.5, n, 1, key, "", 0, 0, "", b"") for n, key in enumerate([*keys, "a"])]
        query = Query(vector_of("one")[None], 1001)
        with engine.reader() as client:
            assert set(_Searching(engine, client, base, query)._newest({0: near})) == {"a"}
        require_whole(store, base)
