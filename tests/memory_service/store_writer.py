"""Writes, replaces and deletes documents until it is killed; says on stdout what it begins and what was acknowledged.

    python -m tests.memory_service.store_writer URL SEED

Lines are JSON: {"write": [[key, version], …]} or {"delete": [key, …]} before a batch, {"create": name} or
{"drop": name} before another knowledge base of one document is made or deleted, "done" after it.
"""

from __future__ import annotations

import json
import random
import sys

from memory_service.stores.local import knowledge_base
from memory_service.stores.opening import open_store
from memory_service.stores.store import NewDocument
from memory_service.telemetry.logs import configure_logs
from tests.memory_service.stored import IDENTITY, document

KEYS = 60
OTHER = "other"


def version_of(key: str, version: int) -> NewDocument:
    """The document with this key in its so many-th version: one to four references."""
    texts = [f"{key} in version {version}, part {part}" for part in range(1 + version % 4)]
    return document(key, *texts, metadata={"version": str(version)})


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


def main(url: str, seed: str) -> None:
    """Never ends by itself."""
    configure_logs()  # on stderr: stdout is for what is said
    chance = random.Random(seed)
    knowledge_base.SAVE_ROWS, knowledge_base.SAVE_SHARE = 0, 0.01  # the index is saved all the time
    store = open_store(url)
    there = {base.name: base for base in store.knowledge_bases()}
    base = there.get("kb") or store.create("kb", "", IDENTITY)
    if other := there.get(OTHER):
        store.write(other, [document("one", "document")])  # if its making was cut off
    say("open")
    while True:
        keys = [f"d{n}" for n in chance.sample(range(KEYS), chance.choice((1, 3, 40)))]
        match chance.choices(("other", "delete", "write"), (1, 2, 7))[0]:
            case "other" if other is None:
                say({"create": OTHER})
                other = store.create(OTHER, "", IDENTITY)
                store.write(other, [document("one", "document")])
            case "other":
                say({"drop": OTHER})
                other = store.drop(other)
            case "delete":
                say({"delete": keys})
                store.delete(base, keys)
            case "write":
                batch = [(key, chance.randrange(1000)) for key in keys]
                say({"write": batch})
                store.write(base, [version_of(key, version) for key, version in batch])
        say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
