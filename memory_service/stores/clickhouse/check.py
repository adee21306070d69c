"""Whether a knowledge base of an embedded engine holds what its documents name, and all documents that it had.

The engine sets aside a part that it cannot read when it starts, and serves less without a word. Counts and ids of
three tables are compared with each other. What `documents` itself should hold is said by the parts that were set
aside, and by a note that the store makes when it is closed: what has come since may hide that a part is gone without
a trace (as after kill -9).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from memory_model.errors import Memory3Error
from memory_service.stores import KnowledgeBase
from memory_service.stores.clickhouse.engine import Engine

_NOTE = "documents.json"


def find_problems(engine: Engine, base: KnowledgeBase, *, files: bool) -> list[str]:
    """Everything wrong with a knowledge base of an embedded engine, a sentence each; empty when it is whole.

    files: has the engine read all files and compare them with the checksums it wrote.
    """
    try:
        problems = _differences(engine, base) or _lost_parts(engine, base) or _lost_since_closed(engine, base)
    except Memory3Error as error:
        problems = [f"table documents cannot be read: {error}"]
    return problems or (_changed_files(engine, base) if files else [])


def note_documents(engine: Engine, bases: Sequence[KnowledgeBase]) -> None:
    """Writes down the sum of the newest versions of each sound knowledge base's documents, which only ever grows."""
    sums = {str(base.number): _sum_of_versions(engine, base) for base in bases if not base.problem}
    temporary = engine.folder / f".{_NOTE}.new"
    temporary.write_text(json.dumps(_noted(engine) | sums))
    temporary.replace(engine.folder / _NOTE)


def _noted(engine: Engine) -> dict[str, int]:
    """By the number of the knowledge base; without the note nothing is lost."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return {str(kb): int(found) for kb, found in json.loads((engine.folder / _NOTE).read_text()).items()}
    return {}


def _sum_of_versions(engine: Engine, base: KnowledgeBase) -> int:
    sql = f"SELECT toString(sum(toUInt128(version))) FROM documents FINAL WHERE kb = {base.number}"
    return int(engine.rows(sql)[0][0])


def _lost_since_closed(engine: Engine, base: KnowledgeBase) -> list[str]:
    """Whether documents are gone, or older versions of them are back."""
    lost = _sum_of_versions(engine, base) < _noted(engine).get(str(base.number), 0)
    return ["documents that were there when the store was closed are lost"] if lost else []


def _differences(engine: Engine, base: KnowledgeBase) -> list[str]:
    kb, table = base.number, f"references_{base.identity.dimension}"
    living = f"FROM documents FINAL WHERE kb = {kb} AND deleted = 0"
    ((count, digest),) = engine.rows(f"SELECT sum(length(memory_ids)), groupBitXorArray(memory_ids) {living}")
    problems = []
    for name, within in (
        (table, f"(document_key, version) IN (SELECT key, version {living})"),
        ("payloads", f"(id, version) IN (SELECT arrayJoin(memory_ids), version {living})"),
    ):
        ids = f"SELECT DISTINCT id FROM {name} WHERE kb = {kb} AND {within}"
        try:
            ((found, their_digest),) = engine.rows(f"SELECT count(), groupBitXor(id) FROM ({ids})")
        except Memory3Error as error:
            problems.append(f"table {name} cannot be read: {error}")
            continue
        if (found, their_digest) != (count, digest):
            problems.append(f"table {name} holds {found} memories of the {count} that its documents name")
    return problems


def _lost_parts(engine: Engine, base: KnowledgeBase) -> list[str]:
    """Parts of `documents` that an embedded engine set aside, unless one in use was merged of them."""
    rows = engine.rows(
        "SELECT name FROM system.detached_parts AS lost WHERE database = currentDatabase() AND table = 'documents'"
        f" AND partition_id = '{base.number}' AND name NOT IN (SELECT older.name FROM system.detached_parts AS older"
        " JOIN system.parts AS newer ON older.partition_id = newer.partition_id WHERE newer.active"
        " AND newer.database = currentDatabase() AND newer.table = 'documents' AND older.table = 'documents'"
        " AND newer.min_block_number <= older.min_block_number AND newer.max_block_number >= older.max_block_number)"
    )
    return [f"documents of part {row[0]} are lost" for row in rows]


def _changed_files(engine: Engine, base: KnowledgeBase) -> list[str]:
    problems = []
    for table in ("documents", f"references_{base.identity.dimension}", "payloads"):
        statement = f"CHECK TABLE {table} PARTITION ID '{base.number}' SETTINGS check_query_single_value_result = 0"
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
