"""Does a knowledge base hold what was written? Counts and digests of three tables against the totals of a fourth.

The engine detaches a part it cannot read when it starts, and serves less without a word; nobody but us notices.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c

from memory_model.errors import Memory3Error
from memory_service.stores.batches import Totals
from memory_service.stores.engine import Engine


@dataclass(frozen=True)
class DetachedPart:
    """A part of a table that the engine set aside; `partition` is the number of the knowledge base."""

    table: str
    partition: str
    name: str
    reason: str


def detached_parts(engine: Engine) -> list[DetachedPart]:
    """All parts that the engine set aside."""
    rows = engine.rows(
        "SELECT table, ifNull(partition_id, ''), name, ifNull(reason, '')"
        f" FROM {engine.dialect.system('detached_parts')} WHERE database = currentDatabase() ORDER BY table, name"
    )
    return [DetachedPart(engine.dialect.logical(table), *rest) for table, *rest in rows]


def find_problems(
    engine: Engine, kb: int, dimension: int, totals: Totals, detached: Sequence[DetachedPart]
) -> list[str]:
    """Everything wrong with knowledge base number `kb`, a sentence each; empty when it is whole."""
    problems = [
        f"the engine set aside part {part.name} of {part.table} ({part.reason or 'no reason given'})"
        for part in detached
        if part.partition == str(kb)
    ]
    where = f"WHERE kb = {int(kb)}"
    queries = {
        "documents": "SELECT count(), sum(length(memory_ids)), groupBitXorArray(memory_ids)"
        f" FROM documents FINAL {where} AND deleted = 0",
        f"references_{dimension}": f"SELECT NULL, count(), groupBitXor(id) FROM references_{dimension} {where}",
        "payloads": f"SELECT NULL, count(), groupBitXor(id) FROM payloads {where}",
    }
    for table, sql in queries.items():
        try:
            documents, memories, digest = engine.rows(sql)[0]
        except Memory3Error as error:
            problems.append(f"table {table} cannot be read: {error}")
            continue
        if documents is not None and documents != totals.documents:
            problems.append(f"table {table} holds {documents} documents, {totals.documents} were written")
        if memories != totals.memories:
            problems.append(f"table {table} holds {memories} memories, {totals.memories} were written")
        elif digest != totals.digest:
            problems.append(f"table {table} holds other memories than were written")
    return problems


def find_changed_files(engine: Engine, kb: int, dimension: int) -> list[str]:
    """Has the engine read all of the knowledge base's files and compare them with the checksums it wrote."""
    problems = []
    for table in ("documents", f"references_{dimension}", "payloads", "totals"):
        statement = (
            f"CHECK TABLE {engine.dialect.stored(table)} PARTITION ID '{int(kb)}'"
            " SETTINGS check_query_single_value_result = 0"
        )
        try:
            with engine.reader() as client:
                said = client.raw_query(statement, fmt="JSONCompactEachRow").decode(errors="replace")
        except Memory3Error as error:
            problems.append(f"table {table} cannot be checked: {error}")
            continue
        for part, sound, message in map(json.loads, said.splitlines()):
            if not sound:
                problems.append(f"part {part} of {table} is not what was written ({message[:200]})")
    return problems


def find_changed_payloads(engine: Engine, kb: int, dimension: int, batch: int = 256) -> list[str]:
    """Reads every payload of the knowledge base and compares its CRC-32C with the one computed when it was written."""
    problems: list[str] = []
    following = 0
    while True:
        rows = engine.rows(
            f"SELECT id, crc32c FROM references_{dimension}"
            f" WHERE kb = {int(kb)} AND id >= {following} ORDER BY id LIMIT {batch}"
        )
        if not rows:
            return problems
        following = int(rows[-1][0]) + 1
        wanted = ", ".join(str(int(row[0])) for row in rows)
        try:
            stored = engine.rows(
                f"SELECT id, payload FROM payloads WHERE kb = {int(kb)} AND id IN ({wanted})",
                column_formats={"payload": "bytes"},
            )
        except Memory3Error as error:
            problems.append(f"payloads of {len(rows)} memories from {rows[0][0]} on cannot be read: {error}")
            continue
        found: dict[int, bytes] = dict(map(tuple, stored))
        for memory_id, crc32c in rows:
            payload = found.get(memory_id)
            if payload is None:
                problems.append(f"memory {memory_id} has no payload")
            elif google_crc32c.value(payload) != crc32c:
                problems.append(f"the payload of memory {memory_id} is not the one that was written")
