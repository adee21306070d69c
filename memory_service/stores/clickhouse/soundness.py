"""Does a knowledge base hold what was written? Counts and digests of three tables against the totals of a fourth.

The engine detaches a part it cannot read when it starts, and serves less without a word; nobody but us notices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c

from memory_model.errors import Memory3Error
from memory_service.stores.clickhouse.batches import Totals
from memory_service.stores.clickhouse.engine import Engine

_NUMBERS = ("first", "last", "level", "mutation")
# What the engine calls a part: its partition, its blocks, how often it was merged and the last mutation it has seen.
_PART = re.compile(
    r"(?:^|[a-z]_)(?P<partition>\d+|all)_(?P<first>\d+)_(?P<last>\d+)_(?P<level>\d+)(?:_(?P<mutation>\d+))?$"
)


@dataclass(frozen=True)
class DetachedPart:
    """A part of a table that the engine set aside; `partition` is the number of the knowledge base.

    superseded: another part, which is in use, was made of it: nothing is lost with it.
    """

    table: str
    partition: str
    name: str
    reason: str
    superseded: bool = False


def detached_parts(engine: Engine) -> list[DetachedPart]:
    """All parts that the engine set aside."""
    rows = engine.rows(
        "SELECT table, ifNull(partition_id, ''), name, ifNull(reason, '')"
        f" FROM {engine.dialect.system('detached_parts')} WHERE database = currentDatabase() ORDER BY table, name"
    )
    in_use = _parts_in_use(engine) if rows and not engine.dialect.cluster else []  # names are a shard's own
    return [
        DetachedPart(
            engine.dialect.logical(table),
            partition,
            name,
            reason,
            any(made_of(one, table, name) for one in in_use),
        )
        for table, partition, name, reason in rows
    ]


def _parts_in_use(engine: Engine) -> list[tuple[str, str]]:
    rows = engine.rows("SELECT table, name FROM system.parts WHERE active AND database = currentDatabase()")
    return [(table, name) for table, name in rows]


def made_of(in_use: tuple[str, str], table: str, name: str) -> bool:
    """Whether a part in use holds the blocks of the one called `name`, in a state at least as new."""
    newer, older = _PART.search(in_use[1]), _PART.search(name)
    if newer is None or older is None or in_use[0] != table or newer["partition"] != older["partition"]:
        return False
    first, last, level, mutation = ([int(found[part] or 0) for found in (newer, older)] for part in _NUMBERS)
    return first[0] <= first[1] and last[0] >= last[1] and level[0] >= level[1] and mutation[0] >= mutation[1]


def find_problems(
    engine: Engine, kb: int, dimension: int, totals: Totals, detached: Sequence[DetachedPart]
) -> list[str]:
    """Everything wrong with knowledge base number `kb`, a sentence each; empty when it is whole."""
    problems = [
        f"the engine set aside part {part.name} of {part.table} ({part.reason or 'no reason given'})"
        for part in detached
        if part.partition == str(kb) and not part.superseded
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
