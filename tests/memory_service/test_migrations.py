"""Knowledge bases of older releases open, with the same documents."""

import contextlib
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memory_service.stores.clickhouse import migrations
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.clickhouse.store import ClickHouseStore
from memory_service.stores.filters import number
from memory_service.stores.local import tables
from memory_service.stores.old_formats import UNWRITTEN_MASK
from memory_service.stores.opening import open_store
from memory_service.stores.store import KnowledgeBase, NewDocument, Store
from memory_service.write.document import text_hash_of
from tests.memory_service.stored import IDENTITY, document, opened, require_whole

FIXTURES = Path(__file__).parent / "fixtures"
TEXTS = {
    "written": ("Title", {"color": "red"}, "First text. It has two sentences."),
    "other": ("", {}, "Second text."),
    "later": ("Later", {"number": "3"}, "A text whose memories are written later."),
    "late too": ("", {}, "Another one."),
}
"""Of `fixtures/local_store_1.sql`, which the release before `written` was a column wrote."""


def old_store(folder: Path) -> Path:
    """A store of that release with one knowledge base; returns its database."""
    path = folder / "kb-000002-kb" / "documents.sqlite3"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database:
        database.create_function("number", 1, number, deterministic=True)
        database.executescript((FIXTURES / "local_store_1.sql").read_text())
    return path


def states(store: Store, base: KnowledgeBase) -> dict[str, tuple[bytes, bool]]:
    keys = store.keys(base, "", after_key=None, count=100)
    return {key: (one.content_hash, one.written) for key, one in store.versions(base, keys).items()}


def test_a_local_store_of_before_the_written_column_is_migrated_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old_store(tmp_path)
    for _ in range(2):
        with closing(open_store(f"file://{tmp_path}")) as store:
            (base,) = store.knowledge_bases()
            expected = {
                key: (text_hash_of(title, metadata, text), not key.startswith("late"))
                for key, (title, metadata, text) in TEXTS.items()
            }
            assert states(store, base) == expected
            assert store.statistics(base).unwritten_documents == 2
            assert sorted(store.unwritten(base, 9)) == ["late too", "later"]
            assert not store.document(base, "later").written
    assert capsys.readouterr().out.count("migration=") == len(tables.MIGRATIONS)


def test_a_damaged_document_is_still_found_after_the_migration(tmp_path: Path) -> None:
    path = old_store(tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE refs SET text = 'another' WHERE document = 2")
    with closing(open_store(f"file://{tmp_path}")) as store:
        assert "'later' is not what was written" in store.knowledge_bases()[0].problem


def test_a_local_knowledge_base_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    path = old_store(tmp_path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    with closing(open_store(f"file://{tmp_path}")) as store:
        assert "start the newer release" in store.knowledge_bases()[0].problem


@pytest.mark.parametrize("kind", ["chdb", "clickhouse"])
def test_a_clickhouse_store_of_before_the_written_column_is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    whole, later = document("whole", "One."), document("later", "Two.")
    unwritten = replace(
        later,
        content_hash=bytes(a ^ b for a, b in zip(later.content_hash, UNWRITTEN_MASK, strict=True)),
        references=[replace(one, payload=b"", crc32c=0) for one in later.references],
    )
    insert = Engine.insert

    def insert_as_before(engine: Engine, table: str, columns: Mapping[str, Any], token: str = "") -> None:
        insert(engine, table, {name: values for name, values in columns.items() if name != "written"}, token)

    def write(store: Store, patched: pytest.MonkeyPatch, *documents: NewDocument) -> KnowledgeBase:
        base = store.create("kb", "", IDENTITY)
        assert isinstance(store, ClickHouseStore)
        patched.setattr(store._writes, "newest", lambda *_: ({}, 1))
        store.write(base, documents)
        return base

    with contextlib.ExitStack() as stack:
        with monkeypatch.context() as older:
            older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:2])
            older.setattr(Engine, "insert", insert_as_before)
            made = stack.enter_context(opened(kind, tmp_path))
            base = write(made.store, older, whole, unwritten)
        for _ in range(2):
            store = made.reopen()
            assert states(store, base) == {"whole": (whole.content_hash, True), "later": (later.content_hash, False)}
            assert store.unwritten(base, 9) == ["later"]
            assert store.statistics(base).unwritten_documents == 1
            require_whole(store, base)
        (done,) = made.store.write(base, [replace(later, replaces=later.content_hash)])
        assert done.replaced
        assert states(made.store, base)["later"] == (later.content_hash, True)
