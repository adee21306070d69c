"""Writes, replaces and deletes documents until it is killed; says on stdout what it begins and what was acknowledged.

    python store_writer.py KIND FOLDER SEED

Lines are JSON: {"write": [[key, version], …]} or {"delete": [key, …]} before a batch, {"create": name} or
{"drop": name} before another knowledge base of one document is made or deleted, "done" after it.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from memory_service.ops.logs import configure_logs
from memory_service.stores import NewDocument, Store, open_store
from memory_service.stores.local.knowledge_base import LocalRules
from memory_service.stores.local.store import LocalStore
from tests.memory_service.stored import IDENTITY, document

RULES = LocalRules(save_share=0.01, dead_rows=60)  # the index is saved and built again all the time
KEYS = 60
OTHER = "other"


def opened_store(kind: str, folder: Path) -> Store:
    """The store that is written to."""
    return LocalStore(folder, RULES) if kind == "file" else open_store(f"{kind}://{folder}")


def version_of(key: str, version: int) -> NewDocument:
    """The document with this key in its so many-th version: one to four references."""
    texts = [f"{key} in version {version}, part {part}" for part in range(1 + version % 4)]
    return document(key, *texts, metadata={"version": str(version)})


def main(kind: str, folder: str, seed: str) -> None:
    """Never ends by itself."""
    configure_logs()  # on stderr: stdout is for what is said
    chance = random.Random(seed)
    store = opened_store(kind, Path(folder))
    there = {base.name: base for base in store.knowledge_bases()}
    base = there.get("kb") or store.create("kb", "", IDENTITY)
    if other := there.get(OTHER):
        store.write(other, [document("one", "document")])  # if its making was cut off
    print(json.dumps("open"), flush=True)
    while True:
        if chance.random() < 0.1:
            print(json.dumps({"create" if other is None else "drop": OTHER}), flush=True)
            if other is None:
                other = store.create(OTHER, "", IDENTITY)
                store.write(other, [document("one", "document")])
            else:
                other = store.drop(other)
            print(json.dumps("done"), flush=True)
        keys = [f"d{n}" for n in chance.sample(range(KEYS), chance.choice((1, 3, 40)))]
        if chance.random() < 0.2:
            print(json.dumps({"delete": keys}), flush=True)
            store.delete(base, keys)
        else:
            batch = [(key, chance.randrange(1000)) for key in keys]
            print(json.dumps({"write": batch}), flush=True)
            store.write(base, [version_of(key, version) for key, version in batch])
        print(json.dumps("done"), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
