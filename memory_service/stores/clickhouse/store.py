"""The store in a ClickHouse engine: a server's (`clickhouse://…`, `myscale://…`).

Any number of processes read and write it; there is no claim, lease or recovery. How a write is committed is described
in `writes`, how a search leaves out what is not committed in `search`. `chdb:///path`, ClickHouse as a library, is for
tests and trials: one process, a tenth as fast as `file:///path`, without a check of what is on the disk, and blind to
writes that fail (decision 0073).
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from memory3.errors import Memory3Error
from memory_service.stores.address import StoreAddress, StoreOptions
from memory_service.stores.clickhouse.bases import Bases
from memory_service.stores.clickhouse.dialect import filter_sql, quoted
from memory_service.stores.clickhouse.engine import Engine, engine_errors
from memory_service.stores.clickhouse.migrations import migrate
from memory_service.stores.clickhouse.myscale import failed_sql, failures
from memory_service.stores.clickhouse.search import payloads_of, retrieve
from memory_service.stores.clickhouse.snapshot import snapshot
from memory_service.stores.clickhouse.uses import Uses
from memory_service.stores.clickhouse.writes import Writes
from memory_service.stores.filters import Filter
from memory_service.stores.store import (
    ALL_REFERENCES,
    KnowledgeBase,
    NewDocument,
    Query,
    ReadReference,
    Retrieved,
    Revision,
    Snapshot,
    Statistics,
    Store,
    StoredDocument,
    StoredMemory,
    StoredVersion,
    UsageGroup,
    WriterIdentity,
    Written,
    require_sound,
    unknown_document,
)
from memory_service.telemetry.logs import logger

_REFRESH_S = 1.0
_INDEX_CHECK_S = 60.0
_ATTEMPTS = 3
_RISK = "this engine does not notice writes that fail: a full disk can lose what was stored; file:///path does not"


@contextlib.contextmanager
def _logged(base: KnowledgeBase | None = None) -> Iterator[None]:
    """Logs an error of the upkeep instead of raising it."""
    try:
        yield
    except Memory3Error as error:
        named = {} if base is None else {"knowledge_base": base.name}
        logger().warning("store_upkeep_failed", **named, error=str(error))


class ClickHouseStore(Store):
    """See Store for the contract. Embedded, one process a path: the engine locks its folder."""

    def __init__(self, address: StoreAddress, options: StoreOptions) -> None:
        """Applies missing migrations and reads the knowledge bases.

        Raises StoreUnavailable, or KnowledgeBaseDamaged for the store's own tables.
        """
        self._engine = engine = Engine(address, options)
        self._sweep_after_s = options.sweep_after_s
        try:
            with engine_errors("opening the store"):
                migrate(engine, set())
                self._bases = Bases(engine)
                migrate(engine, {base.identity.dimension for base in self._bases.all()})
        except BaseException:
            engine.close()
            raise
        if not engine.dialect.shared:
            logger().warning("store_for_trials", store=str(address), risk=_RISK)
        self._uses = Uses(engine)
        self._writes = Writes(engine, self._bases, options.sweep_after_s)
        self._more_to_sweep = False
        self._closing = threading.Event()
        self._upkeep = threading.Thread(target=self._keep_up, name="store-upkeep", daemon=True)
        self._upkeep.start()

    def _keep_up(self) -> None:
        """Reads the list of knowledge bases every second, and sweeps at a random time of every sweep's age.

        A sweep that left something is followed by the next once the engine has removed what it found.

        On MyScale it also logs indexes whose building failed, every minute where there are any.
        """
        sweep_at = time.monotonic() + self._sweep_after_s * random.uniform(0.5, 1.0)
        check_at = time.monotonic() + _INDEX_CHECK_S
        while not self._closing.wait(_REFRESH_S):
            with _logged():  # the next turn may find the store well again
                if self._engine.dialect.shared:
                    self._bases.refresh()
                if time.monotonic() > sweep_at or (self._more_to_sweep and not self._engine.mutating()):
                    sweep_at = time.monotonic() + self._sweep_after_s * random.uniform(0.5, 1.0)
                    self.sweep(self._sweep_after_s)
                if time.monotonic() > check_at:
                    check_at = time.monotonic() + _INDEX_CHECK_S
                    for failure in self.failed_indexes():
                        logger().warning("vector_index_failed", error=failure)

    def sweep(self, older_than_s: float) -> int:
        """Removes rows of no document that are so old; returns how many references there were. Any process may.

        At most a batch of each knowledge base. An error of one is logged, and the others are swept.
        """
        swept, more = 0, list[bool]()
        with _logged():
            self._bases.drop_leftovers()
        for base in self._bases.all():
            if not base.problem:
                with _logged(base):
                    more.append(self._uses.forget(base))
                with _logged(base):
                    count, left = self._writes.sweep(base, older_than_s)
                    swept += count
                    more.append(left)
        self._more_to_sweep = any(more)
        return swept

    def failed_indexes(self) -> list[str]:
        """MyScale's vector indexes whose building failed, and why; none of ClickHouse, which builds as it inserts."""
        dialect = self._engine.dialect
        sql = failed_sql(dialect.system("vector_indices"))
        return list(failures(self._engine.rows(sql))) if dialect.myscale else []

    # Knowledge bases

    def ping(self) -> None:
        """See Store. Queries the server, not a local list."""
        self._engine.ping()

    def knowledge_bases(self) -> list[KnowledgeBase]:
        """See Store. Another process's are listed within a second."""
        return self._bases.all()

    def knowledge_base(self, name: str) -> KnowledgeBase:
        return self._bases.named(name)

    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        migrate(self._engine, {identity.dimension})
        return self._bases.create(name, description, identity)

    def adopt(self, base: KnowledgeBase, identity: WriterIdentity) -> KnowledgeBase:
        return self._bases.adopt(base, identity)

    def drop(self, base: KnowledgeBase) -> None:
        """See Store. What other processes write into it meanwhile is swept."""
        self._bases.drop(base)

    # Documents

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        return retrieve(self._engine, base, query)

    def versions(self, base: KnowledgeBase, keys: Sequence[str]) -> dict[str, StoredVersion]:
        found, _ = self._writes.newest(base, keys)
        return {
            key: StoredVersion(one.content_hash, one.memory_ids, one.written, one.size_bytes)
            for key, one in found.items()
            if not one.deleted
        }

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        return self._writes.write(base, documents)

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        return self._writes.delete(base, keys)

    def document(self, base: KnowledgeBase, key: str, *, first: int = 0, count: int = ALL_REFERENCES) -> StoredDocument:
        require_sound(base)
        for _ in range(_ATTEMPTS):
            rows = self._documents(
                base,
                "title, metadata, content_hash, toUnixTimestamp64Milli(stored_at), memory_ids, written = 1",
                f"key = {quoted(key)}",
            )
            if not rows:
                break
            title, metadata, content_hash, ms, every_id, written = rows[0]
            ids = every_id[first : first + count]
            found = (
                self._engine.rows(
                    f"SELECT id, text FROM references_{base.identity.dimension}"
                    f" WHERE kb = {base.number} AND id IN ({', '.join(map(str, ids))})"
                )
                if ids
                else ()
            )
            texts: dict[int, str] = dict(map(tuple, found))
            if len(texts) < len(ids):  # replaced and swept between the two reads
                continue
            stored_at = datetime.fromtimestamp(ms / 1000, timezone.utc)
            references = [(int(memory_id), texts[memory_id]) for memory_id in ids]
            return StoredDocument(
                key, title, dict(metadata), bytes(content_hash), stored_at, references, len(every_id), bool(written)
            )
        raise unknown_document(base, key)

    def keys(
        self, base: KnowledgeBase, prefix: str, *, after_key: str | None, count: int, filter: Filter | None = None
    ) -> list[str]:
        where = f"startsWith(key, {quoted(prefix)}) AND key > {quoted(after_key or '')} AND {filter_sql(filter)}"
        rows = self._documents(base, "key", where, f" ORDER BY key LIMIT {int(count)}")
        return [row[0] for row in rows]

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        read = self._uses.unwritten(base, count)
        if len(read) == count:
            return read
        rows = self._documents(base, "key", "written != 1", f" LIMIT {int(count)}")
        return list(dict.fromkeys([*read, *(row[0] for row in rows)]))[:count]

    def add_reads(self, base: KnowledgeBase, reads: Mapping[tuple[str, int], int]) -> None:
        self._uses.add(base, reads)

    def most_read(self, base: KnowledgeBase, count: int) -> list[ReadReference]:
        return self._uses.most_read(base, count)

    def usage(self, base: KnowledgeBase, bounds: Sequence[int]) -> list[UsageGroup]:
        return self._uses.usage(base, bounds)

    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        require_sound(base)
        following = 0 if after_id is None else after_id + 1
        while True:
            with self._engine.reader() as client:
                # Rows of one id are read together: only one of them is of the newest version.
                rows = client.query(
                    "SELECT id, version, document_key, title, chunk, text, crc32c, CAST(embedding, 'Array(Float32)')"
                    f" FROM references_{base.identity.dimension} WHERE kb = {base.number} AND id >= {following}"
                    f" ORDER BY id LIMIT {int(count)} WITH TIES SETTINGS max_threads = 1"
                ).result_rows
                payloads = payloads_of(client, base.number, {int(row[0]) for row in rows})
            newest, _ = self._writes.newest(base, sorted({row[2] for row in rows}))
            visible = {
                int(row[0]): row
                for row in rows
                if (one := newest.get(row[2])) and one.version == int(row[1]) and not one.deleted
            }
            if visible or len(rows) < count:
                # A memory without payload was removed between the reads, which the revision tells.
                return [
                    StoredMemory(
                        memory_id,
                        row[2],
                        row[3],
                        int(row[4]),
                        row[5],
                        np.asarray(row[7], np.float32),
                        payloads.get(memory_id, b""),
                        int(row[6]),
                    )
                    for memory_id, row in visible.items()
                ]
            following = int(rows[-1][0]) + 1

    @contextlib.contextmanager
    def snapshot(self, base: KnowledgeBase, *, first_only: bool = False) -> Iterator[Snapshot]:
        require_sound(base)
        yield snapshot(self._engine, base, first_only)

    def _documents(self, base: KnowledgeBase, columns: str, where: str, after: str = "") -> Sequence[Sequence[Any]]:
        """Rows of the documents that are there."""
        require_sound(base)
        return self._engine.rows(
            f"SELECT {columns} FROM documents FINAL WHERE kb = {base.number} AND deleted = 0 AND {where}{after}"
        )

    # Counts

    def revision(self, base: KnowledgeBase) -> Revision:
        """See Store. The number is the time of the newest commit in microseconds."""
        require_sound(base)
        number, memories, digest = self._engine.rows(
            "SELECT max(toUnixTimestamp64Micro(stored_at)), sumIf(length(memory_ids), deleted = 0),"
            f" groupBitXorArrayIf(memory_ids, deleted = 0) FROM documents FINAL WHERE kb = {base.number}"
        )[0]
        return Revision(max(int(number), 0), int(memories), int(digest))

    def statistics(self, base: KnowledgeBase) -> Statistics:
        columns = (
            "count(), sum(length(memory_ids)), sum(payload_bytes), sum(text_bytes), countIf(written != 1),"
            " sumIf(length(memory_ids), written != 1)"
        )
        documents, references, payload, text, *unwritten = map(int, self._documents(base, columns, "1")[0])
        stored = self._bases.bytes_on_disk(base)
        return Statistics(documents, references, payload, text, stored, *unwritten)

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        self._upkeep.join(60)
        self._engine.close()
