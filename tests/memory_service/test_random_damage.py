"""Random harm to random files of a knowledge base: it is named at the next start, or nothing at all has changed."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from memory_service.errors import StoreUnavailable
from memory_service.stores import KnowledgeBase, Query, Store, open_store
from memory_service.stores.local.knowledge_base import LocalRules
from memory_service.stores.local.store import LocalStore
from tests.memory_service.encoders import vector_of
from tests.memory_service.stored import IDENTITY, document

RULES = LocalRules(save_share=0.0)
TIMES = {"file": 750, "chdb": 90}
SHORT_TIMES = 8


def opened(engine: str, folder: Path) -> Store:
    return LocalStore(folder, RULES) if engine == "file" else open_store(f"chdb://{folder}")


def written(engine: str, folder: Path, *, crash: bool = False) -> None:
    """Two knowledge bases with replaced and deleted documents. crash: the files are those that kill -9 leaves."""
    store = opened(engine, folder)
    for name in ("harmed", "sound"):
        base = store.create(name, "", IDENTITY)
        store.write(base, [document(f"d{n}", f"text {n}", metadata={"n": str(n)}) for n in range(30)])
        store.write(base, [document("d1", "other"), document("longer", "one", "two")])
        store.delete(base, ["d2"])
    if crash:
        for base in store.knowledge_bases():
            store.write(base, [document("d3", "after the index was saved"), document("last", "one", "two")])
        shutil.copytree(folder, folder.with_name("left"))
    store.close()
    if crash:
        shutil.rmtree(folder)
        folder.with_name("left").rename(folder)


def files_of(engine: str, folder: Path) -> list[Path]:
    """What holds the first knowledge base: its folder, or its partition's parts in every table."""
    if engine == "file":
        return sorted(path for path in (folder / "kb-000001").rglob("*") if path.is_file())
    parts = {path.parent for path in folder.rglob("1_*/columns.txt")}
    return sorted(path for part in parts for path in part.iterdir() if path.is_file())


def content(store: Store, base: KnowledgeBase) -> Any:
    """All that a caller can get out of a knowledge base."""
    memories = [
        (m.memory_id, m.document_key, m.title, m.chunk_number, m.text, m.vector.tobytes(), bytes(m.payload), m.crc32c)
        for m in store.memories(base, after_id=None, count=1000)
    ]  # fmt: skip
    keys = sorted({memory[1] for memory in memories})
    documents = [(d.key, d.title, dict(d.metadata), d.content_hash, d.references) for d in
                 (store.document(base, key) for key in keys)]  # fmt: skip
    found = store.retrieve(base, Query(vector_of("text 7")[None], 100))
    hits = sorted((hit.memory_id, hit.document_key, hit.crc32c) for hit in found.hits[0])
    counts = store.statistics(base)
    numbers = (counts.documents, counts.references, counts.payload_bytes, counts.text_bytes)
    return memories, documents, hits, numbers, store.revision(base)


def harm(file: Path, chance: random.Random, how: str = "") -> str:
    """A flipped bit, a cut or a removal; returns which."""
    data = bytearray(file.read_bytes()) if file.is_file() else bytearray()
    how = how or chance.choice(("flip", "flip", "truncate", "delete"))
    if how == "delete" or not data:
        file.unlink()
        return how
    if how == "flip":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    else:
        data = data[: chance.randrange(len(data))]
    file.write_bytes(data)
    return how


def harmed_again_and_again(
    engine: str, folder: Path, times: int, seed: int, *, crash: bool = False
) -> Counter[str]:
    """What became of each harm: named of its knowledge base, of the store, or without effect."""
    chance, outcomes = random.Random(seed), Counter[str]()
    written(engine, folder / "whole", crash=crash)
    store = opened(engine, shutil.copytree(folder / "whole", folder / "read", symlinks=True))
    whole = {base.name: content(store, base) for base in store.knowledge_bases()}
    store.close()
    for _ in range(times):
        shutil.rmtree(folder / "harmed", ignore_errors=True)
        copy = shutil.copytree(folder / "whole", folder / "harmed", symlinks=True)
        file = chance.choice(files_of(engine, copy))
        how = harm(file, chance)
        try:
            store = opened(engine, copy)
        except StoreUnavailable:
            outcomes["the store refuses to open"] += 1
            continue
        try:
            assert content(store, store.knowledge_base("sound")) == whole["sound"], (file, how)
            base = store.knowledge_base("harmed")
            if base.problem:
                outcomes["the knowledge base is refused"] += 1
            else:
                assert store.check(base, deep=True) == [], (file, how)
                assert content(store, base) == whole["harmed"], (file, how)
                outcomes["nothing has changed"] += 1
        finally:
            store.close()
    return outcomes


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "crashed"])
def test_random_harm_is_named_or_without_effect(tmp_path: Path, crash: bool) -> None:
    outcomes = harmed_again_and_again("file", tmp_path, SHORT_TIMES, 0, crash=crash)
    assert outcomes["the knowledge base is refused"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("engine", "crash"), [("file", False), ("file", True), ("chdb", False)], ids=["file", "crashed", "chdb"]
)
def test_much_random_harm_is_named_or_without_effect(tmp_path: Path, engine: str, crash: bool) -> None:
    print(engine, dict(harmed_again_and_again(engine, tmp_path, TIMES[engine], 1, crash=crash)))
