"""The store in a ClickHouse engine: embedded (`chdb:///path`), or a server's (`clickhouse://…`, `myscale://…`)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from memory_service.errors import StoreUnavailable
from memory_service.stores import (
    KnowledgeBase,
    NewDocument,
    Query,
    Retrieved,
    Revision,
    Statistics,
    Store,
    StoredDocument,
    StoredMemory,
    StoredVersion,
    StoreOptions,
    Written,
    problem_text,
    require_sound,
)
from memory_service.stores.address import StoreAddress
from memory_service.stores.clickhouse.contents import Contents
from memory_service.stores.clickhouse.document_batches import DocumentBatches
from memory_service.stores.clickhouse.engine import Engine, engine_errors
from memory_service.stores.clickhouse.finder import Finder
from memory_service.stores.clickhouse.migrations import migrate, missing
from memory_service.stores.clickhouse.myscale import require_vector_indices
from memory_service.stores.clickhouse.registry import Registry
from memory_service.stores.clickhouse.soundness import (
    DetachedPart,
    detached_parts,
    find_changed_files,
    find_changed_payloads,
    find_problems,
)
from memory_service.stores.clickhouse.visibility import Visibility
from memory_service.stores.clickhouse.writer_claim import Repeater, WriterClaim, WriterElsewhere
from memory_service.stores.filters import Filter, matches
from memory_service.stores.identity import WriterIdentity

# A process that reads while another one writes may see half of a batch; it looks again.
_READER_CHECKS = 3
# Up to this size the embedded engine compares all its files' checksums before a knowledge base is served.
_START_CHECK_BYTES = 8 << 30


class ClickHouseStore(Store):
    """See Store for the contract. Embedded, one process a path: the engine locks its folder. On a server one process
    writes (`writer_claim`); others read, see what it wrote within seconds, and take its place when it is gone.
    """  # noqa: D205

    def __init__(self, engine: Engine, options: StoreOptions) -> None:
        """Opens the tables; the process that may write first puts them in order."""
        self._engine = engine
        self._write_lock = threading.RLock()
        self._visibility = Visibility()
        self._contents = Contents(engine)
        self._finder = Finder(engine, self._visibility, options)
        self._claim = WriterClaim(engine) if engine.dialect.shared else None
        self._repeater: Repeater | None = None
        try:
            if self._claim is not None:
                self._claim.take()
            self._begin_writing()
        except WriterElsewhere:
            self._begin_reading()
        if self._claim is not None:
            self._repeater = Repeater(self._keep_up)

    @classmethod
    def open(cls, address: StoreAddress, options: StoreOptions) -> ClickHouseStore:
        """Opens the engine at an address; raises StoreUnavailable, or KnowledgeBaseDamaged for its own tables."""
        engine = Engine(address, options)
        try:
            with engine_errors("opening the store"):
                return cls(engine, options)
        except BaseException:
            engine.close()
            raise

    def _begin_writing(self) -> None:
        """Migrates, undoes or finishes what a killed process left, and checks every knowledge base."""
        engine, embedded = self._engine, not self._engine.dialect.shared
        migrate(engine.writer, engine.dialect, set())
        detached = detached_parts(engine)
        for part in detached:
            if part.table in ("knowledge_bases", "migrations") and not part.superseded:
                raise StoreUnavailable(
                    f"part {part.name} of the store's own table {part.table} is damaged: restore a backup"
                )
        self._registry = Registry(engine)
        self._migrate({base.identity.dimension for base in self._registry.all()})
        detached = self._registry.drop_leftovers(detached)
        self._open_log()
        self._recover({part.partition for part in detached if not part.superseded})
        if embedded:
            rows = engine.rows(
                "SELECT DISTINCT partition_id FROM system.parts WHERE active AND has_lightweight_delete"
                " AND database = currentDatabase() AND startsWith(table, 'references_')"
            )
            self._finder.masked.update(int(row[0]) for row in rows)
        for base in self._registry.all():
            problems = self._problems(base, detached)
            if not problems and embedded and self._contents.bytes_on_disk(base) <= _START_CHECK_BYTES:
                problems = find_changed_files(engine, base.number, base.identity.dimension)
            self._registry.set_problem(base, problem_text(problems))

    def _begin_reading(self) -> None:
        """Checks every knowledge base; what another process is writing at the moment is no problem."""
        engine = self._engine
        self._registry = Registry(engine)
        wanted = {base.identity.dimension for base in self._registry.all()}
        if lacking := missing(engine.writer, wanted):
            raise StoreUnavailable(
                f"the store's tables lack migration {lacking[0][0].name}: update the service that writes to it first"
            )
        self._open_log()
        detached = detached_parts(engine)
        for base in self._registry.all():
            for _ in range(_READER_CHECKS):
                problems = self._problems(base, detached)
                if not problems or base.number in self._log.unfinished():
                    break
                self._log.refresh()
            else:
                self._registry.set_problem(base, problem_text(problems))

    def _open_log(self) -> None:
        self._batches = DocumentBatches(
            self._engine, self._registry, self._contents, self._visibility, self._finder.masked
        )
        self._log = self._batches.log

    def _migrate(self, dimensions: set[int]) -> None:
        migrate(self._engine.writer, self._engine.dialect, dimensions)
        if self._engine.dialect.myscale and dimensions:
            require_vector_indices(self._engine, dimensions)

    def _keep_up(self) -> None:
        """Every few seconds: keeps the claim to write and undoes what broke off, or reads what the writer did."""
        claim = self._claim
        assert claim is not None, "only a shared store keeps up"
        if claim.held:
            claim.repeat()
            self._settle()
        else:
            self._registry.refresh()
            self._log.refresh()

    def _settle(self) -> None:
        """Undoes or finishes batches that broke off when the server did not answer; not while another one runs."""
        if self._log.unsettled and self._write_lock.acquire(blocking=False):
            try:
                for kb in list(self._log.unsettled):
                    self._log.recover(kb)
            finally:
                self._write_lock.release()

    def _require_writer(self) -> None:
        """Raises StoreUnavailable when another process writes; otherwise takes its place where it is gone."""
        if self._claim is not None and not self._claim.held:
            self._claim.take()
            self._begin_writing()

    def _recover(self, damaged: set[str]) -> None:
        """Undoes or finishes unfinished batches, but leaves what is damaged as it is: that needs the tables whole."""
        for kb in self._log.unfinished():
            if self._registry.numbered(kb) and str(kb) not in damaged and kb not in self._log.damaged:
                self._log.recover(kb)
        if not damaged:
            self._log.prune()

    def ping(self) -> None:
        """See Store: a server is asked, not our list of what it holds."""
        self._engine.ping()

    def knowledge_bases(self) -> list[KnowledgeBase]:
        """See Store."""
        return self._registry.all()

    def knowledge_base(self, name: str) -> KnowledgeBase:
        """See Store."""
        return self._registry.named(name)

    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        """See Store."""
        with self._write_lock:
            self._require_writer()
            self._migrate({identity.dimension})
            return self._registry.create(name, description, identity)

    def drop(self, base: KnowledgeBase) -> None:
        """See Store."""
        with self._write_lock:
            self._require_writer()
            self._registry.drop(base)
            self._log.forget(base.number)
            self._finder.masked.discard(base.number)

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        """See Store."""
        return self._finder.retrieve(base, query)

    def versions(self, base: KnowledgeBase, keys: Sequence[str]) -> dict[str, StoredVersion]:
        """See Store."""
        return self._contents.versions(base, keys)

    def document(self, base: KnowledgeBase, key: str) -> StoredDocument:
        """See Store."""
        return self._contents.document(base, key)

    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        """See Store."""
        return self._contents.memories(base, after_id=after_id, count=count)

    def keys(
        self,
        base: KnowledgeBase,
        prefix: str,
        *,
        after_key: str | None,
        count: int,
        filter: Filter | None = None,
    ) -> list[str]:
        """See Store."""
        found: list[str] = []
        while len(found) < count and (
            page := self._contents.keys(base, prefix, after_key=after_key, count=count)
        ):
            after_key = page[-1]
            passing = (
                page
                if filter is None
                else [k for k in page if matches(filter, self.document(base, k).metadata)]
            )
            found += passing
        return found[:count]

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        """See Store."""
        return self._contents.unwritten(base, count)

    def statistics(self, base: KnowledgeBase) -> Statistics:
        """See Store."""
        return self._contents.statistics(base)

    def revision(self, base: KnowledgeBase) -> Revision:
        """See Store."""
        require_sound(base)
        if self._claim is not None and not self._claim.held:
            self._log.refresh()
        totals = self._log.totals(base.number)
        return Revision(totals.batch, totals.memories, totals.digest)

    def check(self, base: KnowledgeBase, *, deep: bool = False) -> list[str]:
        """See Store."""
        with self._write_lock:
            problems = self._problems(base, detached_parts(self._engine))
            if deep and not problems:
                problems = find_changed_files(self._engine, base.number, base.identity.dimension)
            if deep and not problems:
                problems = find_changed_payloads(self._engine, base.number, base.identity.dimension)
            return problems

    def _problems(self, base: KnowledgeBase, detached: Sequence[DetachedPart]) -> list[str]:
        if problem := self._log.damaged.get(base.number):
            return [problem]
        totals = self._log.totals(base.number)
        return find_problems(self._engine, base.number, base.identity.dimension, totals, detached)

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store."""
        with self._write_lock:
            self._require_writer()
            return self._batches.write(base, documents)

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        with self._write_lock:
            self._require_writer()
            return self._batches.delete(base, keys)

    def close(self) -> None:
        """See Store."""
        if self._repeater is not None:
            self._repeater.stop()
        with self._write_lock:
            if self._claim is not None:
                with contextlib.suppress(StoreUnavailable):  # a server that is gone takes no leave
                    self._claim.release()
            self._engine.close()
