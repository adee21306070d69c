"""Files of a local store that are not what was written: found at start, named, and one knowledge base's alone."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from memory_service.errors import KnowledgeBaseDamaged, StoreUnavailable
from memory_service.stores.local.rules import LocalRules
from memory_service.stores.local.store import LocalStore
from memory_service.stores.local.vector_index import IndexRule
from tests.memory_service.stored import IDENTITY, document, keys_near

RULES = LocalRules(IndexRule(hnsw_from=20, tail_rows=5), save_growth=0.0)
OF_DATA = ["CURRENT", "documents.sqlite3", "bank-1.records", "vectors.f32", "commits.log"]
OF_INDEX = ["index.faiss", "index.json"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two knowledge bases, with an index, replaced and deleted documents."""
    folder = tmp_path_factory.mktemp("written")
    store = LocalStore(folder, RULES)
    for name in ("harmed", "sound"):
        base = store.create(name, "", IDENTITY)
        store.write(base, [document(f"d{n}", f"text {n}", metadata={"n": str(n)}) for n in range(30)])
        store.write(base, [document("d1", "other"), document("longer", "one", "two")])
        store.delete(base, ["d2"])
    assert store.wait_until_maintained()
    store.close()
    return folder


def harm(file: Path, how: str, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    if how == "delete":
        file.unlink()
        return
    if how == "truncate":
        content = content[: chance.randrange(len(content))]
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


@pytest.mark.parametrize("name", OF_DATA)
@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_harm_to_any_file_is_found_and_refuses_that_knowledge_base_alone(
    written: Path, tmp_path: Path, name: str, how: str
) -> None:
    chance = random.Random(f"{name} {how}")
    for turn in range(1 if how == "delete" else 4):
        folder = shutil.copytree(written, tmp_path / str(turn))
        (file,) = (folder / "kb-000001").rglob(name)
        harm(file, how, chance)
        store = LocalStore(folder, RULES)
        try:
            refused = store.knowledge_base("harmed")
            expected = "CURRENT|folder" if name == "CURRENT" else name.split(".")[0]
            with pytest.raises(KnowledgeBaseDamaged, match=f"'harmed'.*({expected}|record|vector|document)"):
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


@pytest.mark.parametrize("name", OF_INDEX)
@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_a_harmed_index_is_no_loss(written: Path, tmp_path: Path, name: str, how: str) -> None:
    folder = shutil.copytree(written, tmp_path / "store")
    (file,) = (folder / "kb-000001").rglob(name)
    harm(file, how, random.Random(7))
    store = LocalStore(folder, RULES)
    try:
        assert store.wait_until_maintained()
        base = store.knowledge_base("harmed")
        assert base.problem == ""
        assert keys_near(store, base, "text 7", k=1) == ["d7"]
        assert len(keys_near(store, base, "text 7")) == 31
    finally:
        store.close()


@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_a_harmed_list_of_knowledge_bases_is_said(written: Path, tmp_path: Path, how: str) -> None:
    folder = shutil.copytree(written, tmp_path / "store")
    harm(folder / "store.json", how, random.Random(3))
    with pytest.raises(StoreUnavailable, match=r"store\.json"):
        LocalStore(folder, RULES)


def test_a_journal_that_is_lost_after_a_crash_is_found(written: Path, tmp_path: Path) -> None:
    store = LocalStore(shutil.copytree(written, tmp_path / "first"), RULES)
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


def test_every_payload_is_compared_when_it_is_first_read(written: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(written, tmp_path / "store")
    (bank,) = (folder / "kb-000001").rglob("bank-1.records")
    content = bytearray(bank.read_bytes())
    content[64 + 24 + 100] ^= 1  # in the first payload
    bank.write_bytes(content)
    reader = LocalStore(folder, RULES, read_only=True)  # leaves the checksums to the process that writes
    try:
        base = reader.knowledge_base("harmed")
        assert keys_near(reader, base, "text 9", k=1) == ["d9"]
        with pytest.raises(KnowledgeBaseDamaged, match=r"'harmed'.*payload of memory"):
            keys_near(reader, base, "text 0", k=1)
    finally:
        reader.close()


def test_what_the_writer_finds_the_readers_refuse_too(written: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(written, tmp_path / "store")
    reader = LocalStore(folder, RULES, read_only=True)
    (vectors,) = (folder / "kb-000001").rglob("vectors.f32")
    before = vectors.read_bytes()
    try:
        assert len(keys_near(reader, reader.knowledge_base("harmed"), "one")) == 31
        with vectors.open("r+b") as file:  # in the file that the reader has mapped, and does not compare
            file.seek(64 + 40)
            file.write(bytes([before[64 + 40] ^ 1]))
        writer = LocalStore(folder, RULES)
        assert writer.knowledge_base("harmed").problem
        with pytest.raises(KnowledgeBaseDamaged, match=r"'harmed'.*vectors\.f32"):
            keys_near(reader, reader.knowledge_base("harmed"), "one")
        assert len(keys_near(reader, reader.knowledge_base("sound"), "one")) == 31
        writer.close()
        with vectors.open("r+b") as file:
            file.write(before)
        LocalStore(folder, RULES).close()
        assert len(keys_near(reader, reader.knowledge_base("harmed"), "one")) == 31
    finally:
        reader.close()
