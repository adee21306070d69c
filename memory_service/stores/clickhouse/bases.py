"""The records of knowledge bases in the store, made and dropped by any number of processes.

Numbers follow one another and are never used again. A process that makes a knowledge base inserts the row of the next
number under a token of that number: of several the server stores the first and drops the others, which read what there
is now and try again. So each has seen all names before its own, and no name is there twice.

Those of an embedded engine are checked: whether they hold what their documents name, and all documents that they had.
The engine sets aside a part that it cannot read when it starts, and serves less without a word. Counts and ids of
three tables are compared with each other. What `documents` itself should hold is said by the parts that were set
aside, and by a note that the store makes when it is closed: what has come since may hide that a part is gone without
a trace (as after kill -9).
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone

from memory3.printable import counted
from memory_service.errors import KnowledgeBaseDamaged, StoreFull, StoreUnavailable
from memory_service.stores.clickhouse.engine import Engine, of_the_machine
from memory_service.stores.store import KnowledgeBase, WriterIdentity, damage_text, name_taken, unknown_knowledge_base

_NOTE = "documents.json"
_ATTEMPTS = 60
_PAUSE_S = 0.05
# Up to this size the embedded engine compares all its files' checksums before a knowledge base is served.
_START_CHECK_BYTES = 8 << 30
_WITHOUT_PARTITION = "all"  # what the engine calls all of a table that has none


class Bases:
    """Knowledge bases by name, as they were when last read. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        """Reads the records; raises StoreUnavailable where an embedded engine has rows of none."""
        self._engine = engine
        self._by_name: dict[str, KnowledgeBase] = {}
        self._problems: dict[int, tuple[str, bool]] = {}  # and whether it is damage
        self._numbers: set[int] = set()
        self._lock = threading.Lock()
        self._read_at = 0.0
        self.refresh()
        if engine.dialect.shared:
            return
        recorded = {str(number) for number in self._numbers}
        if lost := sorted({partition for _, partition in self._partitions()} - recorded):
            raise StoreUnavailable(
                f"the store has lost the records of knowledge bases number {', '.join(lost)}, whose memories are there:"
                " restore a backup"
            )

    def refresh(self) -> dict[str, KnowledgeBase]:
        """Reads the records again; returns those that live, by name."""
        started = time.monotonic()
        rows = self._engine.rows(
            "SELECT dropped, number, name, description, model_id, codec_id, memory_format_id, embedder_id, dimension,"
            " toUnixTimestamp64Milli(created_at) FROM knowledge_bases FINAL"
        )
        by_name = {}
        for dropped, number, name, description, *ids, ms in rows:
            if not dropped:
                created_at = datetime.fromtimestamp(ms / 1000, timezone.utc)
                identity, problem = WriterIdentity(*ids), self._problems.get(int(number), ("", False))
                by_name[name] = KnowledgeBase(int(number), name, description, identity, created_at, *problem)
        with self._lock:
            if started >= self._read_at:
                self._by_name, self._read_at = by_name, started
                self._numbers = {int(row[1]) for row in rows}
        return by_name

    def check(self) -> None:
        """Notes what is wrong with each knowledge base of an embedded engine."""
        for base in self.all():
            self._check(base)
        self.refresh()

    def check_again(self) -> bool:
        """Checks those that could not be checked; returns whether any is left."""
        unavailable = [base for base in self.all() if base.problem and not base.damaged]
        for base in unavailable:
            self._check(base)
        if unavailable:
            self.refresh()
        return any(base.problem and not base.damaged for base in self.all())

    def _check(self, base: KnowledgeBase) -> None:
        try:
            small = self.bytes_on_disk(base) <= _START_CHECK_BYTES
            problem = damage_text(find_problems(self._engine, base, files=small))
            self._problems[base.number] = problem, bool(problem)
        except (StoreUnavailable, StoreFull) as error:
            self._problems[base.number] = f"{error}; it is checked again by itself", False

    def all(self) -> list[KnowledgeBase]:
        """All of them, by name."""
        return [base for _, base in sorted(self._by_name.items())]

    def named(self, name: str) -> KnowledgeBase:
        """The one of this name, which another process may just have made; raises KnowledgeBaseNotFound."""
        base = self._by_name.get(name)
        if base is None and self._engine.dialect.shared:
            base = self.refresh().get(name)
        if base is None:
            raise unknown_knowledge_base(name, list(self._by_name))
        return base

    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        """A new one; raises KnowledgeBaseExists."""
        creator, attempt = random.getrandbits(64), 0
        created_at = datetime.fromtimestamp(int(time.time() * 1000) / 1000, timezone.utc)
        while attempt < _ATTEMPTS:
            if name in self.refresh():
                raise name_taken(name)
            # A token without a row is of a store that was set back to an earlier state: its number is passed over.
            number = 1 + max(self._numbers, default=0) + attempt // 20
            base = KnowledgeBase(number, name, description, identity, created_at)
            self._record(base, creator, dropped=0)
            rows = self._engine.rows(f"SELECT creator FROM knowledge_bases WHERE number = {number} AND dropped = 0")
            if rows and int(rows[0][0]) == creator:
                self.refresh()
                return base
            if not rows:
                attempt += 1
                time.sleep(_PAUSE_S)
        raise StoreUnavailable(f"the store has no row of knowledge base {name!r}, which was inserted: try again")

    def drop(self, base: KnowledgeBase) -> None:
        """Removes the record, then the rows; what other processes still write goes by `drop_leftovers`."""
        self._record(base, 0, dropped=1)
        self.refresh()
        self._drop_partitions(str(base.number))

    def drop_leftovers(self) -> None:
        """Removes what is left of dropped knowledge bases."""
        living = {str(base.number) for base in self.refresh().values()}
        dropped = {str(number) for number in self._numbers} - living
        for partition in sorted({partition for _, partition in self._partitions()} & dropped):
            self._drop_partitions(partition)

    def bytes_on_disk(self, base: KnowledgeBase) -> int:
        """What all its tables take on disk, compressed."""
        rows = self._engine.rows(
            f"SELECT sum(bytes_on_disk) FROM {self._engine.dialect.system('parts')}"
            " WHERE active AND database = currentDatabase() AND partition_id = {kb:String}",
            {"kb": str(base.number)},
        )
        return int(rows[0][0])

    def _record(self, base: KnowledgeBase, creator: int, dropped: int) -> None:
        identity = base.identity
        values = {
            "number": base.number,
            "name": base.name,
            "description": base.description,
            "model_id": identity.model_id,
            "codec_id": identity.codec_id,
            "memory_format_id": identity.memory_format_id,
            "embedder_id": identity.embedder_id,
            "dimension": identity.dimension,
            "created_at": base.created_at,
            "creator": creator,
            "dropped": dropped,
            "change": 1 + dropped,
        }
        token = f"{'drop' if dropped else 'number'} {base.number}"
        self._engine.insert("knowledge_bases", {name: [value] for name, value in values.items()}, token)

    def _partitions(self) -> list[tuple[str, str]]:
        """Tables, as they are stored, and the partitions in them."""
        rows = self._engine.rows(
            f"SELECT DISTINCT table, partition_id FROM {self._engine.dialect.system('parts')}"
            f" WHERE active AND database = currentDatabase() AND partition_id != '{_WITHOUT_PARTITION}'"
        )
        return [(str(table), str(partition)) for table, partition in rows]

    def _drop_partitions(self, partition: str) -> None:
        dialect = self._engine.dialect
        tables = self._engine.rows(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND partition_key = 'kb' ORDER BY name"
        )
        for (table,) in tables:
            for what, settings in (("", ""), ("DETACHED ", " SETTINGS allow_drop_detached = 1")):
                self._engine.command(
                    f"ALTER TABLE {table}{dialect.on_cluster} DROP {what}PARTITION ID '{partition}'{settings}"
                )


# The check


def find_problems(engine: Engine, base: KnowledgeBase, *, files: bool) -> list[str]:
    """Everything wrong with a knowledge base of an embedded engine, a sentence each; empty when it is whole.

    Raises StoreUnavailable where the machine does not let it be read.

    files: has the engine read all files and compare them with the checksums it wrote.
    """
    try:
        problems = _differences(engine, base) or _lost_parts(engine, base) or _lost_since_closed(engine, base)
    except KnowledgeBaseDamaged as error:
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
        except KnowledgeBaseDamaged as error:
            problems.append(f"table {name} cannot be read: {error}")
            continue
        if (found, their_digest) != (count, digest):
            problems.append(f"table {name} holds {counted(found, 'memory')} of the {count:,} that its documents name")
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
        except KnowledgeBaseDamaged as error:
            problems.append(f"table {table} cannot be checked: {error}")
            continue
        for part, sound, message in map(json.loads, said.splitlines()):
            if not sound and of_the_machine(message):
                raise StoreUnavailable(f"part {part} of {table} cannot be read ({message[:200]})")
            if not sound:
                problems.append(f"part {part} of {table} is not what was written ({message[:200]})")
    return problems
