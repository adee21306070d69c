"""The store in a ClickHouse engine, here the embedded one: `chdb:///path`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from memory_service.errors import (
    DocumentNotFound,
    KnowledgeBaseDamaged,
    KnowledgeBaseExists,
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
    Statistics,
    Store,
    StoredDocument,
    StoredVersion,
    Written,
)
from memory_service.stores.batches import BatchLog
from memory_service.stores.engine import Engine
from memory_service.stores.migrations import migrate
from memory_service.stores.nearest import nearest
from memory_service.stores.soundness import (
    DetachedPart,
    detached_parts,
    find_changed_payloads,
    find_problems,
    problem_text,
)

# Payloads sent to the engine in one insert: some 20 MB of the paper's size.
_INSERT_ROWS = 512


class ClickHouseStore(Store):
    """See Store for the contract. One process per path: the engine locks its folder."""

    def __init__(self, engine: Engine) -> None:
        """Migrates, undoes or finishes what a killed process left, and checks every knowledge base."""
        self._engine = engine
        self._write_lock = threading.RLock()
        migrate(engine.writer, set())
        detached = detached_parts(engine)
        for part in detached:
            if part.table in ("knowledge_bases", "migrations"):
                raise StoreUnavailable(f"part {part.name} of the store's own table {part.table} is damaged: restore a backup")
        bases = self._read_bases()
        migrate(engine.writer, {base.identity.dimension for base in bases})
        self._bases = {base.name: base for base in bases}
        self._by_number = {base.number: base for base in bases}
        self._log = BatchLog(engine, self._remove)
        self._masked: set[int] = set()
        self._drop_leftovers(detached)
        damaged = {part.partition for part in detached}
        for kb in self._log.unfinished():
            # What is damaged stays as it is: undoing a batch needs the tables whole.
            if kb in self._by_number and str(kb) not in damaged:
                self._log.recover(kb)
        if not damaged:
            self._log.prune()
        self._masked |= {
            int(row[0])
            for row in engine.rows(
                "SELECT DISTINCT partition_id FROM system.parts WHERE active AND has_lightweight_delete"
                " AND database = currentDatabase() AND startsWith(table, 'references_')"
            )
        }
        for base in bases:
            self._set(replace(base, problem=problem_text(self._problems(base, detached))))

    @classmethod
    def open(cls, path: Path, *, read_connections: int = 2) -> ClickHouseStore:
        """Opens the engine at `path`; raises StoreUnavailable."""
        engine = Engine(path, read_connections)
        try:
            return cls(engine)
        except BaseException:
            engine.close()
            raise

    # Knowledge bases

    def _read_bases(self) -> list[KnowledgeBase]:
        rows = self._engine.rows(
            "SELECT number, name, description, model_id, codec_id, memory_format_id, embedder_id, dimension,"
            " toUnixTimestamp64Milli(created_at) FROM knowledge_bases FINAL WHERE dropped = 0 ORDER BY name"
        )
        return [
            KnowledgeBase(number, name, description, WriterIdentity(*ids), datetime.fromtimestamp(ms / 1000, timezone.utc))
            for number, name, description, *ids, ms in rows
        ]

    def _set(self, base: KnowledgeBase) -> None:
        self._bases[base.name] = self._by_number[base.number] = base

    def _record(self, base: KnowledgeBase, dropped: int) -> None:
        identity = base.identity
        values = {
            "number": base.number, "name": base.name, "description": base.description,
            "model_id": identity.model_id, "codec_id": identity.codec_id, "memory_format_id": identity.memory_format_id,
            "embedder_id": identity.embedder_id, "dimension": identity.dimension,
            "created_at": base.created_at, "dropped": dropped, "change": time.time_ns(),
        }  # fmt: skip
        self._engine.insert("knowledge_bases", {name: [value] for name, value in values.items()})

    def knowledge_bases(self) -> list[KnowledgeBase]:
        """See Store."""
        return [self._bases[name] for name in sorted(self._bases)]

    def knowledge_base(self, name: str) -> KnowledgeBase:
        """See Store."""
        base = self._bases.get(name)
        if base is None:
            known = ", ".join(sorted(self._bases)[:20]) or "none"
            raise KnowledgeBaseNotFound(f"no knowledge base is called {name!r}; there are: {known}", knowledge_base=name)
        return base

    def create(self, name: str, description: str, identity: WriterIdentity) -> KnowledgeBase:
        """See Store."""
        with self._write_lock:
            if name in self._bases:
                raise KnowledgeBaseExists(f"a knowledge base called {name!r} is there already", knowledge_base=name)
            migrate(self._engine.writer, {identity.dimension})
            number = 1 + int(self._engine.rows("SELECT max(number) FROM knowledge_bases")[0][0])
            now = datetime.fromtimestamp(int(time.time() * 1000) / 1000, timezone.utc)
            base = KnowledgeBase(number, name, description, identity, now)
            self._record(base, dropped=0)
            self._set(base)
            return base

    def drop(self, base: KnowledgeBase) -> None:
        """See Store."""
        with self._write_lock:
            self._record(base, dropped=1)
            self._bases.pop(base.name, None)
            self._by_number.pop(base.number, None)
            self._log.forget(base.number)
            self._masked.discard(base.number)
            for table in self._tables():
                self._engine.command(f"ALTER TABLE {table} DROP PARTITION ID '{base.number}'")
            self._drop_detached([part for part in detached_parts(self._engine) if part.partition == str(base.number)])

    def _tables(self) -> list[str]:
        """Tables that are partitioned by knowledge base."""
        rows = self._engine.rows(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND partition_key = 'kb' ORDER BY name"
        )
        return [row[0] for row in rows]

    def _drop_detached(self, parts: Sequence[DetachedPart]) -> None:
        for part in parts:
            self._engine.command(
                f"ALTER TABLE {part.table} DROP DETACHED PART {{name:String}} SETTINGS allow_drop_detached = 1", {"name": part.name}
            )

    def _drop_leftovers(self, detached: list[DetachedPart]) -> None:
        """Removes what a process that died while dropping a knowledge base left."""
        dropped = {str(row[0]) for row in self._engine.rows("SELECT number FROM knowledge_bases FINAL WHERE dropped = 1")}
        left = self._engine.rows(
            "SELECT DISTINCT table, partition_id FROM system.parts WHERE active AND database = currentDatabase()"
        )
        for table, partition in left:
            if partition in dropped:
                self._engine.command(f"ALTER TABLE {table} DROP PARTITION ID '{partition}'")
        gone = [part for part in detached if part.partition in dropped]
        self._drop_detached(gone)
        detached[:] = [part for part in detached if part not in gone]

    # Reading

    @staticmethod
    def _require_sound(base: KnowledgeBase) -> None:
        if base.problem:
            raise KnowledgeBaseDamaged(f"knowledge base {base.name!r} is damaged: {base.problem}", knowledge_base=base.name)

    def retrieve(self, base: KnowledgeBase, query: Query) -> Retrieved:
        """See Store."""
        self._require_sound(base)
        started = time.perf_counter_ns()
        for attempt in (1, 2):
            with self._engine.reader() as client:
                hits = [self._search(client, base, vector, query) for vector in query.vectors]
                searched = time.perf_counter_ns()
                wanted = {hit.memory_id for of_query in hits for hit in of_query} - query.held_ids
                payloads = self._payloads(client, base.number, wanted)
            missing = wanted - payloads.keys()
            if not missing:
                break
            # The document was replaced between the two reads: the second search finds its successor.
            if attempt == 2:
                raise KnowledgeBaseDamaged(
                    f"knowledge base {base.name!r}: memory {min(missing)} has no payload: run `memory-service doctor`",
                    knowledge_base=base.name,
                )
        done = time.perf_counter_ns()
        return Retrieved(hits, payloads, (searched - started) // 1000, (done - searched) // 1000)

    def _search(self, client: Any, base: KnowledgeBase, vector: Any, query: Query) -> list[Found]:
        found = nearest(
            client, f"references_{base.identity.dimension}", base.number, vector, query.k,
            masked=base.number in self._masked, metadata_filter=query.metadata_filter, with_text=query.return_text,
        )  # fmt: skip
        if query.minimum_score is None:
            return found
        return [hit for hit in found if hit.score >= query.minimum_score]

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
        self._require_sound(base)
        rows = self._engine.rows(
            "SELECT key, content_hash, memory_ids FROM documents FINAL"
            " WHERE kb = {kb:UInt32} AND key IN {keys:Array(String)} AND deleted = 0",
            {"kb": base.number, "keys": list(keys)},
        )
        return {key: StoredVersion(bytes(content_hash), tuple(map(int, ids))) for key, content_hash, ids in rows}

    def document(self, base: KnowledgeBase, key: str) -> StoredDocument:
        """See Store."""
        self._require_sound(base)
        rows = self._engine.rows(
            "SELECT title, metadata, content_hash, toUnixTimestamp64Milli(stored_at), memory_ids FROM documents FINAL"
            " WHERE kb = {kb:UInt32} AND key = {key:String} AND deleted = 0",
            {"kb": base.number, "key": key},
        )
        if not rows:
            raise DocumentNotFound(f"knowledge base {base.name!r} has no document {key!r}", document_key=key)
        title, metadata, content_hash, ms, ids = rows[0]
        texts = dict(
            self._engine.rows(
                f"SELECT id, text FROM references_{base.identity.dimension}"
                " WHERE kb = {kb:UInt32} AND id IN {ids:Array(UInt64)}",
                {"kb": base.number, "ids": list(ids)},
            )
        )
        stored_at = datetime.fromtimestamp(ms / 1000, timezone.utc)
        references = [(int(memory_id), texts.get(memory_id, "")) for memory_id in ids]
        return StoredDocument(key, title, dict(metadata), bytes(content_hash), stored_at, references)

    def statistics(self, base: KnowledgeBase) -> Statistics:
        """See Store."""
        documents, references, payload_bytes, text_bytes = self._engine.rows(
            "SELECT count(), sum(length(memory_ids)), sum(payload_bytes), sum(text_bytes) FROM documents FINAL"
            " WHERE kb = {kb:UInt32} AND deleted = 0",
            {"kb": base.number},
        )[0]
        stored_bytes = self._engine.rows(
            "SELECT sum(bytes_on_disk) FROM system.parts"
            " WHERE active AND database = currentDatabase() AND partition_id = {kb:String}",
            {"kb": str(base.number)},
        )[0][0]
        return Statistics(int(documents), int(references), int(payload_bytes), int(text_bytes), int(stored_bytes))

    def check(self, base: KnowledgeBase, *, deep: bool = False) -> list[str]:
        """See Store."""
        with self._write_lock:
            problems = self._problems(base, detached_parts(self._engine))
            if deep and not problems:
                problems = find_changed_payloads(self._engine, base.number, base.identity.dimension)
            return problems

    def _problems(self, base: KnowledgeBase, detached: list[DetachedPart]) -> list[str]:
        totals = self._log.totals(base.number)
        return find_problems(self._engine, base.number, base.identity.dimension, totals, detached)

    # Writing

    def write(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> list[Written]:
        """See Store."""
        with self._write_lock:
            self._require_sound(base)
            stored = self.versions(base, [document.key for document in documents])
            fresh = [d for d in documents if d.key not in stored or stored[d.key].content_hash != d.content_hash]
            if fresh:
                replaced = [stored[document.key] for document in fresh if document.key in stored]
                self._log.run(
                    base.number,
                    added=[reference.memory_id for document in fresh for reference in document.references],
                    removed=[memory_id for version in replaced for memory_id in version.memory_ids],
                    documents_change=len(fresh) - len(replaced),
                    insert=lambda: self._insert_references(base, fresh),
                    commit=lambda batch: self._insert_documents(base, fresh, batch),
                )
            new = {document.key for document in fresh}
            return [
                Written(d.key, len(d.references), replaced=d.key in stored and d.key in new, unchanged=d.key not in new)
                for d in documents
            ]

    def _insert_references(self, base: KnowledgeBase, documents: Sequence[NewDocument]) -> None:
        rows = [(d, chunk, reference) for d in documents for chunk, reference in enumerate(d.references)]
        for start in range(0, len(rows), _INSERT_ROWS):
            part = rows[start : start + _INSERT_ROWS]
            kb, ids = [base.number] * len(part), [reference.memory_id for _, _, reference in part]
            # Payloads first: a reference that can be found has its memory.
            self._engine.insert("payloads", {"kb": kb, "id": ids, "payload": [r.payload for _, _, r in part]})
            self._engine.insert(
                f"references_{base.identity.dimension}",
                {
                    "kb": kb, "id": ids, "document_key": [d.key for d, _, _ in part], "title": [d.title for d, _, _ in part],
                    "chunk": [chunk for _, chunk, _ in part], "text": [r.text for _, _, r in part],
                    "metadata": [dict(d.metadata) for d, _, _ in part], "crc32c": [r.crc32c for _, _, r in part],
                    "embedding": [r.vector.tolist() for _, _, r in part],
                },
            )  # fmt: skip

    def _insert_documents(self, base: KnowledgeBase, documents: Sequence[NewDocument], batch: int) -> None:
        now = datetime.now(timezone.utc)
        self._engine.insert(
            "documents",
            self._document_rows(
                base, [d.key for d in documents], batch, deleted=0, stored_at=now,
                content_hash=[d.content_hash for d in documents], title=[d.title for d in documents],
                metadata=[dict(d.metadata) for d in documents],
                memory_ids=[[r.memory_id for r in d.references] for d in documents],
                text_bytes=[sum(len(r.text.encode()) for r in d.references) for d in documents],
                payload_bytes=[sum(len(r.payload) for r in d.references) for d in documents],
            ),
        )  # fmt: skip

    @staticmethod
    def _document_rows(
        base: KnowledgeBase, keys: Sequence[str], batch: int, *, deleted: int, stored_at: datetime, **columns: Sequence[Any]
    ) -> Mapping[str, Sequence[Any]]:
        n = len(keys)
        return {
            "kb": [base.number] * n, "key": keys, "batch": [batch] * n, "deleted": [deleted] * n,
            "stored_at": [stored_at] * n, **columns,
        }  # fmt: skip

    def delete(self, base: KnowledgeBase, keys: Sequence[str]) -> tuple[int, int]:
        """See Store."""
        with self._write_lock:
            stored = self.versions(base, keys)
            gone = [memory_id for version in stored.values() for memory_id in version.memory_ids]
            if stored:
                n = len(stored)

                def commit(batch: int) -> None:
                    now = datetime.now(timezone.utc)
                    rows = self._document_rows(
                        base, list(stored), batch, deleted=1, stored_at=now, content_hash=[bytes(32)] * n, title=[""] * n,
                        metadata=[{}] * n, memory_ids=[[]] * n, text_bytes=[0] * n, payload_bytes=[0] * n,
                    )  # fmt: skip
                    self._engine.insert("documents", rows)

                self._log.run(base.number, [], gone, -n, lambda: None, commit)
            return len(stored), len(gone)

    def _remove(self, kb: int, memory_ids: Sequence[int]) -> None:
        """Removes references and payloads; ids that are not there are no error."""
        base = self._by_number[kb]
        self._masked.add(kb)
        for table in (f"references_{base.identity.dimension}", "payloads"):
            ids = {"ids": list(memory_ids)}
            if self._engine.rows(f"SELECT 1 FROM {table} WHERE kb = {kb} AND id IN {{ids:Array(UInt64)}} LIMIT 1", ids):
                self._engine.command(
                    f"DELETE FROM {table} IN PARTITION ID '{kb}' WHERE id IN {{ids:Array(UInt64)}}", ids
                )

    def close(self) -> None:
        """See Store."""
        with self._write_lock:
            self._engine.close()


