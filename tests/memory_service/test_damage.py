"""Files of a store that are not what was written: named at the next start, one knowledge base's alone, or no loss."""

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory3.errors import Memory3Error
from memory_service.errors import KnowledgeBaseDamaged, StoreUnavailable
from memory_service.stores.local import knowledge_base
from memory_service.stores.opening import open_store
from memory_service.stores.store import KnowledgeBase, Query, Store
from testing.encoders import vector_of
from tests.memory_service.stored import IDENTITY, document, keys_near, require_whole

HOW = ("flip", "truncate", "delete")


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Store]:
    with contextlib.closing(open_store(f"file://{folder}")) as store:
        yield store


def written(folder: Path, *, crash: bool = False) -> Path:
    """Two knowledge bases with replaced and deleted documents. crash: the files are those that kill -9 leaves."""
    with opened(folder / "first") as store:
        for name in ("harmed", "sound"):
            base = store.create(name, "", IDENTITY)
            store.write(base, [document(f"d{n}", f"text {n}", metadata={"n": str(n)}) for n in range(30)])
            store.write(base, [document("d1", "other"), document("longer", "one", "two")])
            store.delete(base, ["d2"])
        if crash:
            shutil.copytree(folder / "first", folder / "whole")
    return folder / "whole" if crash else (folder / "first").rename(folder / "whole")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("file"))


def copied(whole: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(whole, to, symlinks=True)


def content(store: Store, base: KnowledgeBase) -> Any:
    """All that a caller can get out of a knowledge base."""
    require_whole(store, base)
    memories = [
        (m.memory_id, m.document_key, m.title, m.chunk_number, m.text, m.vector.tobytes(), bytes(m.payload), m.crc32c)
        for m in store.memories(base, after_id=None, count=1000)
    ]
    documents = [store.document(base, key) for key in store.keys(base, "", after_key=None, count=1000)]
    (hits,) = store.retrieve(base, Query(vector_of("text 7")[None], 100)).hits
    return memories, documents, sorted(hits), store.revision(base)


def harm(file: Path, chance: random.Random, how: str) -> None:
    """A flipped bit, a cut or a removal."""
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
        return
    data = bytearray(file.read_bytes()) if file.is_file() else bytearray()
    if how == "delete" or not data:
        file.unlink()
    elif how == "flip":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
    else:
        file.write_bytes(data[: chance.randrange(len(data))])


def flip(file: Path, what: bytes) -> None:
    """A bit of this text or payload."""
    raw = bytearray(file.read_bytes())
    raw[raw.index(what)] ^= 1
    file.write_bytes(raw)


def outcomes_of(whole: Path, scratch: Path, harms: list[tuple[Path, str]]) -> Counter[str]:
    """What became of each harm to a file: it is named of the store, of knowledge bases, or has no effect."""
    chance, outcomes = random.Random(1), Counter[str]()
    with opened(copied(whole, scratch / "read")) as store:
        expected = {base.name: content(store, base) for base in store.knowledge_bases()}
    for file, how in harms:
        copy = copied(whole, scratch / "harmed")
        harm(copy / file.relative_to(whole), chance, how)
        with contextlib.ExitStack() as stack:
            try:
                store = stack.enter_context(opened(copy))
            except Memory3Error:
                outcomes["the store refuses to open"] += 1
                continue
            bases = {base.name: base for base in store.knowledge_bases()}
            assert bases.keys() == expected.keys(), (file, how)
            for name, base in bases.items():
                assert base.problem or content(store, base) == expected[name], (file, how)
            outcomes[f"{sum(bool(base.problem) for base in bases.values())} refused"] += 1
    return outcomes


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "crashed"])
@pytest.mark.parametrize("times", [12, pytest.param(750, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_random_harm_is_named_or_without_effect(tmp_path: Path, crash: bool, times: int) -> None:
    whole = written(tmp_path, crash=crash)
    chance, files = random.Random(0), sorted((whole / "kb-000001-harmed").iterdir())
    harms = [(chance.choice(files), chance.choice(("flip", *HOW))) for _ in range(times)]
    outcomes = outcomes_of(whole, tmp_path, harms)
    print(dict(outcomes))
    assert outcomes["1 refused"]
    assert outcomes.keys() <= {"0 refused", "1 refused"}


@pytest.mark.parametrize("how", HOW)
def test_harm_refuses_that_base_and_no_other(whole: Path, tmp_path: Path, how: str) -> None:
    folder = copied(whole, tmp_path / "store")
    chance, data = random.Random(3), folder / "kb-000001-harmed" / "documents.sqlite3"
    if how == "flip":
        flip(data, b"text 20")
    else:
        harm(data, chance, how)
    with opened(folder) as store:
        refused, sound = store.knowledge_base("harmed"), store.knowledge_base("sound")
        with pytest.raises(KnowledgeBaseDamaged, match="'harmed'"):
            keys_near(store, refused, "one")
        with pytest.raises(KnowledgeBaseDamaged, match="harmed"):
            store.write(refused, [document("new", "new")])
        assert len(keys_near(store, sound, "one")) == 31
        store.write(sound, [document("new", "new")])
        store.drop(refused)
        assert store.create("harmed", "", IDENTITY).problem == ""
    with opened(folder) as store:
        assert [base.problem for base in store.knowledge_bases()] == ["", ""]


def test_a_journal_that_is_lost_after_a_crash_is_found(whole: Path, tmp_path: Path) -> None:
    """SQLite takes it for one that ended earlier."""
    folder = copied(whole, tmp_path / "store")
    with opened(folder) as store:
        store.write(store.knowledge_base("harmed"), [document("new", "new")])
        crashed = copied(folder, tmp_path / "crashed")
    with opened(copied(crashed, tmp_path / "whole")) as store:
        assert keys_near(store, store.knowledge_base("harmed"), "new", k=1) == ["new"]
    for journal in crashed.rglob("*-wal"):
        journal.unlink()
    with opened(crashed) as store:
        assert "acknowledged documents are lost" in store.knowledge_base("harmed").problem


def test_every_payload_is_compared_when_read(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files are not read whole at the start."""
    folder = copied(whole, tmp_path / "store")
    payload = document("d0", "text 0").references[0].payload
    flip(folder / "kb-000001-harmed" / "documents.sqlite3", payload[50:70])
    monkeypatch.setattr(knowledge_base, "START_CHECK_BYTES", 0)
    with opened(folder) as store:
        base = store.knowledge_base("harmed")
        assert keys_near(store, base, "text 9", k=1) == ["d9"]
        with pytest.raises(KnowledgeBaseDamaged, match=r"'harmed'.*payload of memory"):
            keys_near(store, base, "text 0", k=1)
        assert not store.knowledge_base("harmed").problem, "the others are served, as the runbook says"


def test_a_store_of_an_older_layout_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "kb-000001").mkdir()
    with pytest.raises(StoreUnavailable, match=r"another release.*ingest again"):
        open_store(f"file://{tmp_path}")
