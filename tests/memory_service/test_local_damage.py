"""Files of a local store that are not what was written: found at start, named, and one knowledge base's alone."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from memory_service.errors import KnowledgeBaseDamaged, StoreUnavailable
from memory_service.stores.local.knowledge_base import LocalKnowledgeBase, LocalRules
from memory_service.stores.local.snapshot import Snapshot
from memory_service.stores.local.store import LocalStore
from tests.memory_service.stored import IDENTITY, document, keys_near
from tests.memory_service.test_random_damage import RULES, harm, written

COPIES = ["index.faiss", "committed"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two knowledge bases, with an index, replaced and deleted documents."""
    folder = tmp_path_factory.mktemp("whole")
    written("file", folder)
    return folder


@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_harm_to_the_data_is_found_and_refuses_that_knowledge_base_alone(
    whole: Path, tmp_path: Path, how: str
) -> None:
    chance = random.Random(how)
    for turn in range(1 if how == "delete" else 6):
        folder = shutil.copytree(whole, tmp_path / str(turn))
        harm(folder / "kb-000001" / "documents.sqlite3", chance, how)
        store = LocalStore(folder, RULES)
        try:
            refused = store.knowledge_base("harmed")
            if how == "flip" and not refused.problem:  # in a page that is free, or a byte that says nothing
                assert store.check(refused, deep=True) == []
                assert len(keys_near(store, refused, "one")) == 31
                continue
            with pytest.raises(KnowledgeBaseDamaged, match="'harmed'"):
                keys_near(store, refused, "one")
            with pytest.raises(KnowledgeBaseDamaged, match="harmed"):
                store.write(refused, [document("new", "new")])
            assert store.check(refused)
            sound = store.knowledge_base("sound")
            assert len(keys_near(store, sound, "one")) == 31
            store.write(sound, [document("new", "new")])
            store.drop(refused)
            assert store.create("harmed", "", IDENTITY).problem == ""
        finally:
            store.close()


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_harm_to_what_can_be_made_again_is_no_loss(whole: Path, tmp_path: Path, name: str, how: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "store")
    harm(folder / "kb-000001" / name, random.Random(7), how)
    for _ in range(2):
        store = LocalStore(folder, RULES)
        base = store.knowledge_base("harmed")
        assert base.problem == ""
        assert keys_near(store, base, "text 7", k=1) == ["d7"]
        assert len(keys_near(store, base, "text 7")) == 31
        store.write(base, [document("again", "again")])
        store.delete(base, ["again"])
        store.close()


@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_a_harmed_list_of_knowledge_bases_is_said(whole: Path, tmp_path: Path, how: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "store")
    harm(folder / "store.json", random.Random(3), how)
    with pytest.raises(StoreUnavailable, match=r"store\.json"):
        LocalStore(folder, RULES)


def test_a_journal_that_is_lost_after_a_crash_is_found(whole: Path, tmp_path: Path) -> None:
    store = LocalStore(shutil.copytree(whole, tmp_path / "first"), RULES)
    base = store.knowledge_base("harmed")
    store.write(base, [document("new", "new")])
    crashed = shutil.copytree(tmp_path / "first", tmp_path / "second")  # as kill -9 leaves it
    store.close()
    again = LocalStore(shutil.copytree(crashed, tmp_path / "third"), RULES)
    assert keys_near(again, again.knowledge_base("harmed"), "new", k=1) == ["new"]
    again.close()
    for journal in (crashed / "kb-000001").rglob("documents.sqlite3-wal"):
        journal.unlink()
    again = LocalStore(crashed, RULES)
    assert "acknowledged documents are lost" in again.knowledge_base("harmed").problem
    again.close()


def flip(folder: Path, what: bytes) -> None:
    """A bit of this text or payload of the first knowledge base."""
    (file,) = (folder / "kb-000001").glob("documents.sqlite3")
    content = bytearray(file.read_bytes())
    content[content.index(what)] ^= 1
    file.write_bytes(content)


def test_every_payload_is_compared_when_it_is_read(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(whole, tmp_path / "store")
    flip(folder, document("d0", "text 0").references[0].payload[50:70])
    monkeypatch.setattr(
        LocalKnowledgeBase, "maintain", lambda base: []
    )  # the check in the background is late
    with contextlib.closing(LocalStore(folder, LocalRules(start_check_bytes=0))) as store:
        base = store.knowledge_base("harmed")
        assert keys_near(store, base, "text 9", k=1) == ["d9"]
        with pytest.raises(KnowledgeBaseDamaged, match=r"'harmed'.*payload of memory"):
            keys_near(store, base, "text 0", k=1)


def test_a_knowledge_base_dropped_during_its_background_check_stays_dropped(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(whole, tmp_path / "store")
    flip(folder, b"text 20")
    checking, go_on, changes = threading.Event(), threading.Event(), Snapshot.changes

    def slowly(snapshot: Snapshot) -> Iterator[str]:
        yield from changes(snapshot)
        checking.set()
        assert go_on.wait(60)

    monkeypatch.setattr(Snapshot, "changes", slowly)
    store = LocalStore(folder, LocalRules(start_check_bytes=0))
    try:
        assert checking.wait(60)
        base = store.knowledge_base("harmed")
        assert base.problem == ""
        store.drop(base)
        go_on.set()
        store.close()
    finally:
        go_on.set()
    monkeypatch.undo()
    store = LocalStore(folder, RULES)
    assert [base.name for base in store.knowledge_bases()] == ["sound"]
    store.close()


def test_a_store_of_the_older_layout_is_refused_with_what_to_do(tmp_path: Path) -> None:
    content = {"format": 1, "next_number": 1, "knowledge_bases": []}
    crc = google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    whole = json.dumps({"crc32c": f"{crc:08x}", "store": content}, indent=1, sort_keys=True)
    (tmp_path / "store.json").write_text(whole)
    with pytest.raises(StoreUnavailable, match=r"data format 1.*version that wrote it.*ingest again"):
        LocalStore(tmp_path)
