"""The store in a ClickHouse engine: embedded (`chdb:///path`), or a server's (`clickhouse://…`, `myscale://…`)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from memory_service.bounded_cache import BoundedCache
from memory_service.errors import (
    DocumentNotFound,
    KnowledgeBaseDamaged,
    KnowledgeBaseNotFound,
    StoreUnavailable,
)
from memory_service.identity import WriterIdentity
from memory_service.stores import (
    Found,
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
from memory_service.stores.batches import BatchLog
from memory_service.stores.engine import Engine
from memory_service.stores.migrations import migrate, missing
from memory_service.stores.myscale import require_vector_indices
from memory_service.stores.nearest import Search
from memory_service.stores.registry import Registry
from memory_service.stores.rows import deleted_columns, document_columns, reference_columns
from memory_service.stores.soundness import (
    DetachedPart,
    detached_parts,
    find_changed_files,
    find_changed_payloads,
    find_problems,
)
from memory_service.stores.visibility import Visibility
from memory_service.stores.word_ranking import Candidate, WordRanking
from memory_service.stores.writer_claim import Repeater, WriterClaim, WriterElsewhere

# Keys in one statement: as text in an address they stay below the megabyte that a server takes.
_KEYS_AT_ONCE = 256
# A process that reads while another one writes may see half of a batch; it looks again.
_READER_CHECKS = 3
# Up to this size the embedded engine compares all its files' checksums before a knowledge base is served.
_START_CHECK_BYTES = 8 << 30


class ClickHouseStore(Store):
    """See Store for the contract. Embedded, one process a path: the engine locks its folder. On a server one process
    writes (`writer_claim`); others read, see what it wrote within seconds, and take its place when it is gone.
    """  # noqa: D205

    def __init__(self, engine: Engine, *, payload_cache_bytes: int, word_cache_bytes: int) -> None:
        """Opens the tables; the process that may write first puts them in order."""
        self._engine = engine
        self._hot: BoundedCache[bytes] = BoundedCache("payloads", payload_cache_bytes, len)
        self._ranking = WordRanking(word_cache_bytes)
        self._write_lock = threading.RLock()
        self._visibility = Visibility()
        self._masked: set[int] = set()  # knowledge bases whose deleted rows the index still finds
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
        """Opens the engine at an address; raises StoreUnavailable."""
        engine = Engine(address, options)
        try:
            return cls(
                engine,
                payload_cache_bytes=options.payload_cache_bytes,
                word_cache_bytes=options.word_cache_bytes,
            )
        except BaseException:
            engine.close()
            raise

    def _begin_writing(self) -> None:
        """Migrates, undoes or finishes what a killed process left, and checks every knowledge base."""
        engine = self._engine
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
        self._log = BatchLog(engine, self._remove, self._visibility)
        self._recover({part.partition for part in detached if not part.superseded})
        if not engine.dialect.shared:
            rows = engine.rows(
                "SELECT DISTINCT partition_id FROM system.parts WHERE active AND has_lightweight_delete"
                " AND database = currentDatabase() AND startsWith(table, 'references_')"
            )
            self._masked |= {int(row[0]) for row in rows}
        for base in self._registry.all():
            problems = self._problems(base, detached)
            if not problems and not engine.dialect.shared and self._bytes_of(base) <= _START_CHECK_BYTES:
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
        self._log = BatchLog(engine, self._remove, self._visibility)
        detached = detached_parts(engine)
        for base in self._registry.all():
            for _ in range(_READER_CHECKS):
                problems = self._problems(base, detached)
                if not problems or base.number in self._log.unfinished():
                    break
                self._log.refresh()
            else:
                self._registry.set_problem(base, problem_text(problems))

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

    # Knowledge bases

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
            self._masked.discard(base.number)

    # Reading

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        """See Store."""
        require_sound(base)
        started = time.perf_counter_ns()
        for _ in range(2):
            with self._engine.reader() as client, self._visibility.searching(base.number) as hidden:
                found = [
                    self._search(client, base, number, query, hidden) for number in range(len(query.vectors))
                ]
                hits, rank_ns = [of_query for of_query, _ in found], sum(ranked for _, ranked in found)
                searched = time.perf_counter_ns()
                wanted = {hit.memory_id for of_query in hits for hit in of_query} - query.held_ids
                payloads = self._hot_payloads(client, base.number, wanted)
            missing = wanted - payloads.keys()
            if not missing:
                done = time.perf_counter_ns()
                search_us, rank_us = (searched - started - rank_ns) // 1000, rank_ns // 1000
                return Retrieved(hits, payloads, search_us, (done - searched) // 1000, rank_us)
            # Another process replaced a document between the two reads: the second search finds its successor.
        raise KnowledgeBaseDamaged(
            f"knowledge base {base.name!r}: memory {min(missing)} has no payload: run `memory-service doctor`",
            knowledge_base=base.name,
        )

    def _search(
        self, client: Any, base: KnowledgeBase, number: int, query: Query, hidden: frozenset[int]
    ) -> tuple[list[Found], int]:
        """The hits of query `number`, and how long ordering them by words took, in ns."""
        by_words = bool(query.words and query.words[number])
        dialect = self._engine.dialect
        search = Search(
            client, dialect, f"references_{base.identity.dimension}", base.number,
            masked=dialect.shared or base.number in self._masked, hidden=hidden,
        )  # fmt: skip
        found = search.nearest(
            query.vectors[number], max(query.k, query.candidates) if by_words else query.k,
            metadata_filter=query.metadata_filter, with_text=query.return_text,
        )  # fmt: skip
        if query.minimum_score is not None:
            found = [hit for hit in found if hit.score >= query.minimum_score]
        if not (by_words and found):
            return found, 0
        started = time.perf_counter_ns()

        def texts(memory_ids: Sequence[int]) -> dict[int, str]:
            rows = client.query(
                f"SELECT id, text FROM references_{base.identity.dimension} WHERE kb = {base.number}"
                f" AND id IN ({', '.join(map(str, memory_ids))}) SETTINGS max_threads = 1"
            ).result_rows
            return {int(memory_id): text for memory_id, text in rows}

        candidates = [Candidate(hit.memory_id, hit.score, hit.title) for hit in found]
        best = self._ranking.best(base.number, query.words[number], candidates, query.maximum_drop, texts)
        return [found[place] for place in best[: query.k]], time.perf_counter_ns() - started

    def _hot_payloads(self, client: Any, kb: int, memory_ids: set[int]) -> dict[int, bytes]:
        """Payloads from memory where they are there, the rest from the engine."""
        payloads = self._hot.get_many(kb, memory_ids)
        if cold := memory_ids - payloads.keys():
            read = self._payloads(client, kb, cold)
            # An empty one is still to be written, see `late_memories`.
            self._hot.put_many(kb, {one: payload for one, payload in read.items() if payload})
            payloads.update(read)
        return payloads

    @staticmethod
    def _payloads(client: Any, kb: int, memory_ids: set[int]) -> dict[int, bytes]:
        if not memory_ids:
            return {}
        rows = client.query(
            f"SELECT id, payload FROM payloads WHERE kb = {kb} AND id IN ({', '.join(map(str, memory_ids))})"
            " SETTINGS max_threads = 1",
            column_formats={"payload": "bytes"},
        ).result_rows
        return {int(memory_id): payload for memory_id, payload in rows}

    def versions(self, base: KnowledgeBase, keys: Sequence[str]) -> dict[str, StoredVersion]:
        """See Store."""
        require_sound(base)
        found = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            rows = self._engine.rows(
                "SELECT key, content_hash, memory_ids FROM documents FINAL"
                " WHERE kb = {kb:UInt32} AND key IN {keys:Array(String)} AND deleted = 0",
                {"kb": base.number, "keys": list(keys[start : start + _KEYS_AT_ONCE])},
            )
            for key, content_hash, ids in rows:
                found[key] = StoredVersion(bytes(content_hash), tuple(map(int, ids)))
        return found

    def document(self, base: KnowledgeBase, key: str) -> StoredDocument:
        """See Store."""
        require_sound(base)
        rows = self._engine.rows(
            "SELECT title, metadata, content_hash, toUnixTimestamp64Milli(stored_at), memory_ids FROM documents FINAL"
            " WHERE kb = {kb:UInt32} AND key = {key:String} AND deleted = 0",
            {"kb": base.number, "key": key},
        )
        if not rows:
            raise DocumentNotFound(
                f"knowledge base {base.name!r} has no document {key[:200]!r}", document_key=key
            )
        title, metadata, content_hash, ms, ids = rows[0]
        found = self._engine.rows(
            f"SELECT id, text FROM references_{base.identity.dimension}"
            " WHERE kb = {kb:UInt32} AND id IN {ids:Array(UInt64)}",
            {"kb": base.number, "ids": list(ids)},
        )
        texts: dict[int, str] = dict(map(tuple, found))
        stored_at = datetime.fromtimestamp(ms / 1000, timezone.utc)
        references = [(int(memory_id), texts.get(memory_id, "")) for memory_id in ids]
        return StoredDocument(key, title, dict(metadata), bytes(content_hash), stored_at, references)

    def revision(self, base: KnowledgeBase) -> Revision:
        """See Store."""
        require_sound(base)
        if self._claim is not None and not self._claim.held:
            self._log.refresh()
        totals = self._log.totals(base.number)
        return Revision(totals.batch, totals.memories, totals.digest)

    def memories(self, base: KnowledgeBase, *, after_id: int | None, count: int) -> list[StoredMemory]:
        """See Store."""
        require_sound(base)
        after = "" if after_id is None else f" AND id > {int(after_id)}"
        with self._engine.reader() as client:
            rows = client.query(
                "SELECT id, document_key, title, chunk, text, crc32c, CAST(embedding, 'Array(Float32)')"
                f" FROM references_{base.identity.dimension} WHERE kb = {base.number}{after}"
                f" ORDER BY id LIMIT {int(count)} SETTINGS max_threads = 1"
            ).result_rows
            payloads = self._payloads(client, base.number, {int(row[0]) for row in rows})
        # A memory without payload was removed between the two reads, which the revision tells.
        return [
            StoredMemory(
                int(row[0]), row[1], row[2], int(row[3]), row[4], np.asarray(row[6], np.float32),
                payloads.get(int(row[0]), b""), int(row[5]),
            )
            for row in rows
        ]  # fmt: skip

    def keys(self, base: KnowledgeBase, prefix: str, *, after_key: str | None, count: int) -> list[str]:
        """See Store."""
        require_sound(base)
        rows = self._engine.rows(
            "SELECT key FROM documents FINAL WHERE kb = {kb:UInt32} AND deleted = 0"
            " AND startsWith(key, {prefix:String}) AND key > {after:String} ORDER BY key LIMIT {count:UInt32}",
            {"kb": base.number, "prefix": prefix, "after": after_key or "", "count": count},
        )
        return [row[0] for row in rows]

    def unwritten(self, base: KnowledgeBase, count: int) -> list[str]:
        """See Store."""
        require_sound(base)
        rows = self._engine.rows(
            "SELECT key FROM documents FINAL WHERE kb = {kb:UInt32} AND deleted = 0 AND payload_bytes = 0"
            " LIMIT {count:UInt32}",
            {"kb": base.number, "count": count},
        )
        return [row[0] for row in rows]

    def statistics(self, base: KnowledgeBase) -> Statistics:
        """See Store."""
        require_sound(base)
        documents, references, payload_bytes, text_bytes, unwritten = self._engine.rows(
            "SELECT count(), sum(length(memory_ids)), sum(payload_bytes), sum(text_bytes), countIf(payload_bytes = 0)"
            " FROM documents FINAL WHERE kb = {kb:UInt32} AND deleted = 0",
            {"kb": base.number},
        )[0]
        return Statistics(
            int(documents), int(references), int(payload_bytes), int(text_bytes), self._bytes_of(base),
            int(unwritten),
        )  # fmt: skip

    def _bytes_of(self, base: KnowledgeBase) -> int:
        """What it takes on disk."""
        rows = self._engine.rows(
            f"SELECT sum(bytes_on_disk) FROM {self._engine.dialect.system('parts')}"
            " WHERE active AND database = currentDatabase() AND partition_id = {kb:String}",
            {"kb": str(base.number)},
        )
        return int(rows[0][0])

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

    # Writing

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store."""
        with self._write_lock:
            self._require_writer()
            self._require_living(base)
            stored = self.versions(base, [document.key for document in documents])
            fresh = [
                d for d in documents if d.key not in stored or stored[d.key].content_hash != d.content_hash
            ]
            if fresh:
                replaced = [stored[document.key] for document in fresh if document.key in stored]
                self._log.run(
                    base.number,
                    added=[reference.memory_id for document in fresh for reference in document.references],
                    removed=[memory_id for version in replaced for memory_id in version.memory_ids],
                    documents_change=len(fresh) - len(replaced),
                    insert=lambda: self._insert_references(base, fresh),
                    commit=lambda batch: self._engine.insert(
                        "documents", document_columns(base.number, fresh, batch)
                    ),
                )
            new = {document.key for document in fresh}
            return [
                Written(
                    d.key,
                    len(d.references),
                    replaced=d.key in stored and d.key in new,
                    unchanged=d.key not in new,
                )
                for d in documents
            ]

    def _require_living(self, base: KnowledgeBase) -> None:
        """A stream may outlive its knowledge base; what it still writes must not stay behind as nobody's."""
        if self._registry.numbered(base.number) is None:
            message = f"knowledge base {base.name!r} was deleted meanwhile"
            raise KnowledgeBaseNotFound(message, knowledge_base=base.name)

    def _insert_references(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> None:
        for payloads, references in reference_columns(base.number, documents):
            self._engine.insert("payloads", payloads)  # first: a reference that can be found has its memory
            self._engine.insert(f"references_{base.identity.dimension}", references)

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        with self._write_lock:
            self._require_writer()
            self._require_living(base)
            stored = self.versions(base, keys)
            gone = [memory_id for version in stored.values() for memory_id in version.memory_ids]
            if stored:
                self._log.run(
                    base.number,
                    added=[],
                    removed=gone,
                    documents_change=-len(stored),
                    insert=lambda: None,
                    commit=lambda batch: self._engine.insert(
                        "documents", deleted_columns(base.number, list(stored), batch)
                    ),
                )
            return len(stored), len(gone)

    def _remove(self, kb: int, memory_ids: Sequence[int]) -> None:
        """Removes references and payloads; ids that are not there are no error."""
        base = self._registry.numbered(kb)
        assert base is not None, "batches are of living knowledge bases"
        self._masked.add(kb)
        for table in (f"references_{base.identity.dimension}", "payloads"):
            self._engine.delete(table, kb, memory_ids)

    def close(self) -> None:
        """See Store."""
        if self._repeater is not None:
            self._repeater.stop()
        with self._write_lock:
            if self._claim is not None:
                with contextlib.suppress(StoreUnavailable):  # a server that is gone takes no leave
                    self._claim.release()
            self._engine.close()
