"""Every operation of a store on a server: on ClickHouse of today, and in MyScale's dialect on engines of its age.

MyScale is a branch of ClickHouse 23.3. An engine of 23.6 executes what each operation says (`testing/myscale_server.py`
refuses what MyScale refuses); one of 22.12 then has every function, setting and clause of it, and reads with it.
`docs/operations/stores.md` has the results as a table.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memory3.text.words import query_words
from memory_service.archive import Archive
from memory_service.client.backup import back_up, restore
from memory_service.errors import KnowledgeBaseNotFound
from memory_service.stores.filters import And, Exists, In, Not, Or, Range
from memory_service.stores.store import KnowledgeBase, Query, Store
from testing.clickhouse import PASSWORD, clickhouse_server, myscale_server, old_engine
from testing.encoders import HashEncoder, vector_of
from testing.myscale_dialect import translated
from testing.programs import ROOT, ran
from tests.memory_service.running import contents, running
from tests.memory_service.running import document as fact
from tests.memory_service.stored import IDENTITY, OpenedStore, document, keys_near, opened, require_whole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

OLDER = "chdb==0.8.0"
"""ClickHouse 22.12."""
TEXTS = [document(f"d{n:02}", f"text {n}", title=f"T{n}", metadata={"n": str(n)}) for n in range(30)]
FILTER = And((Exists("n"), Not(In("n", ("3",))), Or((Range("n", at_least=1.0), Range("n", below="5")))))


def search(store: Store, base: KnowledgeBase) -> None:
    (hits,) = store.retrieve(base, Query(vector_of("text 7")[None], 5, return_text=True)).hits
    assert (hits[0].document_key, hits[0].text) == ("d07", "text 7")


def search_all(store: Store, base: KnowledgeBase) -> None:
    """More than there are: from the index to a comparison with every row of a newest version."""
    vectors = np.stack([vector_of(f"text {n}") for n in range(10)])
    hits = store.retrieve(base, Query(vectors, 100)).hits
    assert [of_one[0].document_key for of_one in hits] == [f"d{n:02}" for n in range(10)]
    assert all(len({hit.document_key for hit in of_one}) == 30 for of_one in hits)


def search_filtered(store: Store, base: KnowledgeBase) -> None:
    query = Query(vector_of("text 3")[None], 50, filter=FILTER, return_metadata=True)
    (hits,) = store.retrieve(base, query).hits
    assert {hit.document_key for hit in hits} == {one.key for one in TEXTS if one.metadata["n"] not in ("0", "3")} | {
        "d00"
    }


def search_by_words(store: Store, base: KnowledgeBase) -> None:
    words = [query_words("text 4")]
    (hits,) = store.retrieve(base, Query(vector_of("text 4")[None], 1, words=words, candidates=9)).hits
    assert hits[0].document_key == "d04"


def search_at_once_after_a_write(store: Store, base: KnowledgeBase) -> None:
    """Rows of a document that is being replaced are read by their ids; what was written is found, index or not."""
    store.write(base, [document("new", "text new", "another")])
    assert keys_near(store, base, "text new", k=1) == ["new"]
    assert store.delete(base, ["new"]) == (1, 2)
    assert "new" not in keys_near(store, base, "text new")


def write_later(store: Store, base: KnowledgeBase) -> None:
    written = document("later", "one", "two")
    bare = [replace(one, memory_id=one.memory_id + 1, payload=b"", crc32c=0) for one in written.references]
    store.write(base, [replace(written, references=bare, written=False)])
    assert store.unwritten(base, 9) == ["later"]
    assert store.write(base, [replace(written, replaces=written.content_hash)])[0].replaced
    assert store.delete(base, ["later"]) == (1, 2)


def snapshot(store: Store, base: KnowledgeBase) -> None:
    with store.snapshot(base) as found:
        assert [page.document.key for page in found.pages] == [one.key for one in TEXTS]


def sweep(store: Store, base: KnowledgeBase) -> None:
    assert store.sweep(0.0) == 9  # type: ignore[attr-defined]
    require_whole(store, base)


def read(store: Store, base: KnowledgeBase) -> None:
    assert store.document(base, "d05").references[0][1] == "text 5"
    assert store.keys(base, "d", after_key="d20", count=3, filter=FILTER) == ["d21", "d22", "d23"]
    page = store.memories(base, after_id=None, count=7)  # of which some rows may be of older versions
    assert 0 < len(page) <= 7
    assert set(store.versions(base, ["d01", "none"])) == {"d01"}


def counts(store: Store, base: KnowledgeBase) -> None:
    assert store.statistics(base).documents == store.revision(base).memories == 30


def count_reads(store: Store, base: KnowledgeBase) -> None:
    store.add_reads(base, {("d01", 0): 3, ("d02", 0): 1, ("gone", 0): 9})
    assert store.most_read(base, 1) == [("d01", 0, 3)]
    assert sum(group.reads for group in store.usage(base, [2])) == 4


def status(store: Store, base: KnowledgeBase) -> None:
    store.ping()
    assert store.failed_indexes() == []  # type: ignore[attr-defined]


def drop(store: Store, base: KnowledgeBase) -> None:
    store.drop(base)
    store.sweep(0.0)  # type: ignore[attr-defined]
    with pytest.raises(KnowledgeBaseNotFound):
        store.knowledge_base(base.name)


Operation = Callable[[Store, KnowledgeBase], object]
OPERATIONS: Mapping[str, Operation] = {
    "write": lambda store, base: store.write(base, TEXTS),
    "replace": lambda store, base: (
        store.write(base, [document("d09", "other"), document("d09x", "x")])
        and store.delete(base, ["d09x"])
        and store.write(base, [TEXTS[9]])
    ),
    "write later": write_later,
    "search by the index": search,
    "search every row": search_all,
    "search with a filter": search_filtered,
    "search with words": search_by_words,
    "search during writes": search_at_once_after_a_write,
    "read and list": read,
    "snapshot": snapshot,
    "counts": counts,
    "count reads": count_reads,
    "status": status,
    "sweep": sweep,
    "drop": drop,
}


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "statements.jsonl"
    monkeypatch.setenv("MEMORY3_STATEMENTS", str(path))
    return path


def distinct(path: Path, start: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Statements from a line on, one for each text that differs in more than numbers."""
    for line in path.read_text().splitlines()[start:]:
        one = json.loads(line)
        yield re.sub(r"[-+.e\d]+", "0", one["sql"]), one


def operate(place: OpenedStore, said: Callable[[str], object] = lambda operation: None) -> None:
    said("open and migrate")
    place.reopen()
    base = place.new_base()
    said("create")
    for name, operation in OPERATIONS.items():
        operation(place.store, base)
        said(name)
    assert place.store.create("again", "", IDENTITY).number > base.number


def test_every_operation_on_clickhouse(tmp_path: Path) -> None:
    with opened("clickhouse", tmp_path) as place:
        operate(place)


def test_every_statement_on_engines_of_myscales_age(tmp_path: Path, recorded: Path) -> None:
    by_operation: dict[str, dict[str, dict[str, object]]] = {}
    lines = 0

    def said(operation: str) -> None:
        nonlocal lines
        by_operation[operation] = dict(distinct(recorded, lines))
        lines = len(recorded.read_text().splitlines())

    with opened("myscale", tmp_path) as place:
        operate(place, said)
    said_first = [*by_operation["open and migrate"].values(), *by_operation["create"].values()]
    tables = sorted({str(one["sql"]) for one in said_first if str(one["sql"]).startswith("CREATE TABLE")})
    assert len(tables) == 6
    print(f"{'operation':24} statements  executed by 22.12")
    for operation, statements in by_operation.items():
        result = on_the_older_engine(tmp_path, tables, list(statements.values()))
        assert result["problems"] == [], operation
        print(f"{operation:24} {len(statements):10}  {result['read']}")
    table = (ROOT / "docs" / "operations" / "stores.md").read_text()
    assert [name for name in by_operation if f"| {name} |" not in table] == []


def test_a_knowledge_base_moves_from_clickhouse_to_myscale_and_back(tmp_path: Path) -> None:
    stores = [tmp_path / "clickhouse", tmp_path / "myscale"]
    with contextlib.ExitStack() as stack:
        clients = []
        for folder, server in zip(stores, (clickhouse_server, myscale_server), strict=True):
            folder.mkdir()
            url = f"{folder.name}://127.0.0.1:{stack.enter_context(server(folder))}/memories"
            settings = {"store": url, "store_password": PASSWORD}
            client, running_server = stack.enter_context(running(folder, HashEncoder(), **settings))
            clients.append((client, f"127.0.0.1:{running_server.port}"))
        (here, address), (there, other) = clients
        here.ingest("facts", *(fact(f"d{n}", f"Text {n}. " * (n + 1), number=str(n)) for n in range(9)))
        archives = [Archive(str(tmp_path / name)) for name in ("out", "back")]
        back_up(address, "facts", archives[0])
        restore(other, "facts", archives[0])
        back_up(other, "facts", archives[1])
        restore(address, "again", archives[1])
        assert contents(there, "facts") == contents(here, "facts") == contents(here, "again")
        near = [[hit.memory_id for hit in client.hits("facts", "Text 3.", 5)] for client in (here, there)]
        assert near[0] == near[1]


def test_what_failed_on_myscale_once_fails_on_the_older_engine(tmp_path: Path) -> None:
    said = [
        "SELECT dateDiff('millisecond', now64(3), now64(3))",
        "SELECT arrayFold(acc, x -> acc + x, [1], 0)",
        "SELECT 1 SETTINGS lightweight_deletes_sync = 0",
        "DELETE FROM t IN PARTITION ID '1' WHERE id = 1",
    ]
    found = on_the_older_engine(tmp_path, [], [{"sql": sql, "settings": {}, "parameters": {}} for sql in said])[
        "problems"
    ]
    assert [any(sql in problem for problem in found) for sql in said] == [True] * 4, found


def on_the_older_engine(folder: Path, tables: list[str], statements: list[dict[str, object]]) -> dict[str, list[str]]:
    """What `old_engine.py` finds."""
    said = [{**one, "sql": translated(str(one["sql"]))} for one in statements]
    file = folder / "statements.json"
    file.write_text(json.dumps({"tables": tables, "statements": said}))
    found = ran(
        sys.executable,
        ROOT / "tests" / "slow" / "old_engine.py",
        file,
        env={**os.environ, "PYTHONPATH": str(old_engine(OLDER))},
        stdin=subprocess.DEVNULL,
    )
    result: dict[str, list[str]] = json.loads(found)
    return result
