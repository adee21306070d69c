"""A process that reads and writes one store with others, and says on stdout what it begins and how it ended.

    python -m tests.memory_service.pod URL SEED TIMEOUT_S SWEEP_AFTER_S [newer]

A line is JSON: [time, "begin", number, operation, arguments …], then [time, "done" | "failed", number, result]. Times
are of the monotonic clock, which all processes share. newer: it is of a later release, which has one more migration.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from memory_model.errors import Memory3Error
from memory_service.errors import KnowledgeBaseExists, KnowledgeBaseNotFound
from memory_service.ops.logs import configure_logs
from memory_service.stores import KnowledgeBase, NewDocument, Query, StoreOptions, open_store
from memory_service.stores.clickhouse.migrations import MIGRATIONS, Migration
from tests.memory_service.encoders import vector_of
from tests.memory_service.stored import IDENTITY, PASSWORD, document

KEYS = [f"d{n}" for n in range(12)]
OTHERS = ("red", "green")
K = 200


def version_of(key: str, value: int) -> NewDocument:
    """The document with this key that the so many-th write of all has made: one to four references."""
    texts = [f"{key} part {part}" for part in range(1 + value % 4)]
    return document(key, *texts, title=str(value), metadata={"value": str(value)})


def later_release() -> None:
    """One more migration, as a later release would bring."""
    statement = "ALTER TABLE documents ADD COLUMN IF NOT EXISTS note String"
    MIGRATIONS.append(Migration("note", lambda dialect, dimension: [statement]))


def main(url: str, seed: str, timeout_s: str, sweep_after_s: str, release: str = "") -> None:
    """Never ends by itself."""
    configure_logs("error")  # on stderr: stdout is for what is said
    chance, numbers = random.Random(seed), itertools.count()
    if release:
        later_release()
    options = StoreOptions(
        read_connections=1, password=PASSWORD, timeout_s=float(timeout_s), sweep_after_s=float(sweep_after_s)
    )

    def say(*what: Any) -> None:
        print(json.dumps([time.monotonic(), *what]), flush=True)

    def run(operation: str, arguments: list[Any], action: Callable[[], Any]) -> None:
        number = next(numbers)
        say("begin", number, operation, arguments)
        try:
            say("done", number, action())
        except Memory3Error as error:
            say("failed", number, type(error).__name__, str(error)[:150])
            time.sleep(0.1)

    while True:
        try:
            store = open_store(url, options)
            base = store.knowledge_base("kb")
            break
        except Memory3Error:
            time.sleep(0.1)
    say("open")
    value_of = (int(seed) * 1_000_000 + n for n in itertools.count())

    def found() -> list[tuple[str, int, int]]:
        (hits,) = store.retrieve(base, Query(vector_of(f"{chance.choice(KEYS)} part 0")[None], K)).hits
        return [(hit.document_key, int(hit.title), hit.chunk_number) for hit in hits]

    def late(keys: list[str]) -> list[str]:
        """As a cold start does: documents are written again in the place of the versions that were read."""
        stored = store.versions(base, keys)
        documents = [
            replace(version_of(key, value), replaces=one.content_hash)
            for (key, one), value in zip(stored.items(), value_of, strict=False)
        ]
        return [one.key for one in store.write(base, documents) if not one.unchanged]

    def fill(name: str) -> None:
        other: KnowledgeBase = store.knowledge_base(name)
        store.write(other, [version_of("one", next(value_of))])

    def create(name: str) -> bool:
        try:
            return bool(store.create(name, "", IDENTITY).number)
        except KnowledgeBaseExists:
            return False

    def drop(name: str) -> bool:
        try:
            store.drop(store.knowledge_base(name))
        except KnowledgeBaseNotFound:
            return False
        return True

    while True:
        keys = chance.sample(KEYS, chance.choice((1, 2, 6)))
        match chance.choice(
            ("write",) * 5 + ("delete", "search", "search", "search", "create", "drop", "fill")
        ):
            case "write":
                written = [(key, next(value_of)) for key in keys]
                documents = [version_of(key, value) for key, value in written]
                run("write", written, lambda documents=documents: bool(store.write(base, documents)))
            case "delete":
                run("delete", keys, lambda keys=keys: store.delete(base, keys))
            case "search":
                run("search", [], found)
            case "create":
                name = chance.choice(OTHERS)
                run("create", [name], lambda name=name: create(name))
            case "drop":
                name = chance.choice(OTHERS)
                run("drop", [name], lambda name=name: drop(name))
            case "fill":
                name = chance.choice(OTHERS)
                run("fill", [name], lambda name=name: fill(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
