"""A process that reads and writes one store with others, and says on stdout what it begins and how it ended.

    python -m tests.memory_service.pod URL SEED TIMEOUT_S SWEEP_AFTER_S [newer]

A line is JSON: [time, "begin", number, operation, arguments …], then [time, "done" | "failed", number, result]. Times
are of the monotonic clock, which all processes share. newer: it is of a later release, which has one more migration.
"""

import itertools
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from memory3.errors import Memory3Error
from memory_service.errors import KnowledgeBaseExists, KnowledgeBaseNotFound
from memory_service.stores.address import StoreOptions
from memory_service.stores.clickhouse.migrations import MIGRATIONS, Migration
from memory_service.stores.opening import open_store
from memory_service.stores.store import NewDocument, Query
from memory_service.telemetry.logs import configure_logs
from testing.clickhouse import PASSWORD
from testing.encoders import vector_of
from tests.memory_service.stored import IDENTITY, document

KEYS = [f"d{n}" for n in range(12)]
OTHERS = ("red", "green")
K = 200


def version_of(key: str, value: int) -> NewDocument:
    """The document with this key that the so many-th write of all has made: one to four references."""
    texts = [f"{key} part {part}" for part in range(1 + value % 4)]
    return document(key, *texts, title=str(value), metadata={"value": str(value)})


def main(url: str, seed: str, timeout_s: str, sweep_after_s: str, release: str = "") -> None:
    """Never ends by itself."""
    configure_logs("error")  # on stderr: stdout is for what is said
    chance, numbers, values = random.Random(seed), itertools.count(), itertools.count(int(seed) * 1_000_000)
    if release:
        statement = "ALTER TABLE documents ADD COLUMN IF NOT EXISTS note String"
        MIGRATIONS.append(Migration("note", lambda dialect, dimension: [statement]))
    options = StoreOptions(
        read_connections=1, password=PASSWORD, timeout_s=float(timeout_s), sweep_after_s=float(sweep_after_s)
    )

    def say(*what: Any) -> None:
        print(json.dumps([time.monotonic(), *what]), flush=True)

    while True:
        try:
            store = open_store(url, options)
            base = store.knowledge_base("kb")
            break
        except Memory3Error:
            time.sleep(0.1)
    say("open")

    def found() -> list[tuple[str, int, int]]:
        (hits,) = store.retrieve(base, Query(vector_of(f"{chance.choice(KEYS)} part 0")[None], K)).hits
        return [(hit.document_key, int(hit.title), hit.chunk_number) for hit in hits]

    def of_other(operation: str, name: str) -> bool:
        try:
            if operation == "create":
                return bool(store.create(name, "", IDENTITY).number)
            other = store.knowledge_base(name)
            if operation == "drop":
                store.drop(other)
            else:
                store.write(other, [version_of("one", next(values))])
        except (KnowledgeBaseExists, KnowledgeBaseNotFound):
            return False
        return True

    operations = ("write",) * 5 + ("search",) * 3 + ("delete", "create", "drop", "fill")
    while True:
        operation, number = chance.choice(operations), next(numbers)
        arguments: list[Any] = chance.sample(KEYS, chance.choice((1, 2, 6)))
        action: Callable[[], Any]
        if operation == "write":
            arguments = [(key, next(values)) for key in arguments]
            documents = [version_of(key, value) for key, value in arguments]
            action = lambda: bool(store.write(base, documents))  # noqa: E731, B023
        elif operation == "delete":
            action = lambda: store.delete(base, arguments)  # noqa: E731, B023
        elif operation == "search":
            arguments, action = [], found
        else:
            arguments = [chance.choice(OTHERS)]
            action = lambda: of_other(operation, *arguments)  # noqa: E731, B023
        say("begin", number, operation, arguments)
        try:
            say("done", number, action())
        except Memory3Error as error:
            say("failed", number, type(error).__name__, str(error)[:150])
            time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
