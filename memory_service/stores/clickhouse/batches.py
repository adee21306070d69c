"""Batches that happen whole or not at all, in an engine without transactions.

    intent    what the batch adds and removes         -- from here on it can be undone
    payloads, references                              -- the new rows
    documents                                         -- from here on it can only be finished: the commit
    removal of the old rows                           -- from here on searches find the new ones (`visibility`)
    totals    what the tables must hold now           -- the end

A process that dies in between leaves an intent that is newer than the totals. When the store is opened again
the batch is undone, or finished if its documents are there. The totals are independent evidence of what every
table must hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores.clickhouse.engine import Engine, Row
from memory_service.stores.clickhouse.visibility import Visibility
from memory_service.stores.digest import digest


@dataclass(frozen=True)
class Totals:
    """What one knowledge base must hold after its newest finished batch."""

    batch: int = 0
    documents: int = 0
    memories: int = 0
    digest: int = 0


@dataclass(frozen=True)
class Batch:
    """One batch of a knowledge base: ids to add and to remove, and by how many the documents grow."""

    kb: int
    number: int
    added: tuple[int, ...]
    removed: tuple[int, ...]
    documents_change: int

    def after(self, before: Totals) -> Totals:
        """The totals once the batch is done."""
        return Totals(
            batch=self.number,
            documents=before.documents + self.documents_change,
            memories=before.memories + len(self.added) - len(self.removed),
            digest=before.digest ^ digest(self.added) ^ digest(self.removed),
        )


class BatchLog:
    """Intents and totals of all knowledge bases. Not thread-safe: the store writes one batch at a time."""

    def __init__(
        self, engine: Engine, remove: Callable[[int, Sequence[int]], None], visibility: Visibility
    ) -> None:
        """`remove(kb, ids)` removes references and payloads; visibility: of what is half written, for searches."""
        self._engine = engine
        self._visibility = visibility
        self._remove = remove
        self._totals: dict[int, Totals] = {}
        self.unsettled: set[int] = (
            set()
        )  # knowledge bases whose batch is under way, or broke off and is not undone
        self.damaged: dict[int, str] = {}  # why the totals or intents of a knowledge base cannot be read
        self.refresh()

    def refresh(self) -> None:
        """Reads the totals again: another process may have written."""
        sql = "SELECT kb, batch, documents, memories, digest FROM totals FINAL"
        for kb, *values in self._rows_of_each("totals", sql):
            self._totals[kb] = Totals(*values)

    def _rows_of_each(self, table: str, sql: str, group: str = "") -> Sequence[Row]:
        """Rows of all knowledge bases; where some cannot be read, those of the others, and `damaged` says which."""
        try:
            return self._engine.rows(sql + group)
        except KnowledgeBaseDamaged:
            partitions = self._engine.rows(
                f"SELECT DISTINCT partition_id FROM {self._engine.dialect.system('parts')}"
                " WHERE active AND database = currentDatabase() AND table = {table:String}",
                {"table": self._engine.dialect.stored(table)},
            )
        rows: list[Row] = []
        for kb in sorted(int(partition) for (partition,) in partitions):
            try:
                rows += self._engine.rows(f"{sql} WHERE kb = {kb}{group}")
            except KnowledgeBaseDamaged as error:
                self.damaged[kb] = f"table {table} cannot be read: {error}"
        return rows

    def totals(self, kb: int) -> Totals:
        """What the knowledge base must hold; zeros for a new one."""
        return self._totals.get(kb, Totals())

    def run(
        self, kb: int, added: Sequence[int], removed: Sequence[int], documents_change: int,
        insert: Callable[[], None], commit: Callable[[int], None],
    ) -> None:  # fmt: skip
        """Runs one batch: `insert` writes the new rows, `commit(batch number)` the documents.

        An error before the commit undoes the batch and is raised; one after it leaves the removal to `recover`. Where
        the engine does not answer, both wait in `unsettled`.
        """
        self.recover(kb)
        number = max(time.time_ns(), self.totals(kb).batch + 1)
        batch = Batch(kb, number, tuple(added), tuple(removed), documents_change)
        self.unsettled.add(kb)
        self._engine.insert(
            "intents", {"kb": [kb], "batch": [number], "added": [list(added)], "removed": [list(removed)]}
        )
        try:
            self._visibility.hide(kb, added)
            insert()
            commit(number)
        except BaseException:
            self.recover(kb)
            raise
        if removed:
            self._visibility.hide(kb, removed)
            self._remove(kb, removed)
        self._finish(kb, batch.after(self.totals(kb)))
        self._visibility.show(kb)
        self.unsettled.discard(kb)

    def _finish(self, kb: int, totals: Totals) -> None:
        self._engine.insert(
            "totals",
            {
                "kb": [kb], "batch": [totals.batch], "documents": [totals.documents],
                "memories": [totals.memories], "digest": [totals.digest],
            },
        )  # fmt: skip
        self._totals[kb] = totals

    def unfinished(self) -> list[int]:
        """Knowledge bases with an intent newer than their totals."""
        newest = self._rows_of_each("intents", "SELECT kb, max(batch) FROM intents", " GROUP BY kb")
        return [kb for kb, number in newest if number > self.totals(kb).batch]

    def recover(self, kb: int) -> bool:
        """Undoes or finishes the knowledge base's unfinished batch; returns whether there was one."""
        totals = self.totals(kb)
        rows = self._engine.rows(
            "SELECT batch, added, removed FROM intents"
            " WHERE kb = {kb:UInt32} AND batch > {batch:UInt64} ORDER BY batch",
            {"kb": kb, "batch": totals.batch},
        )
        for number, added, removed in rows:
            committed = self._engine.rows(
                "SELECT count() FROM documents WHERE kb = {kb:UInt32} AND batch = {batch:UInt64}",
                {"kb": kb, "batch": number},
            )[0][0]
            if gone := removed if committed else added:
                self._visibility.hide(kb, gone)
                self._remove(kb, gone)
            if committed:
                documents = self._engine.rows(
                    "SELECT count() FROM documents FINAL WHERE kb = {kb:UInt32} AND deleted = 0", {"kb": kb}
                )[0][0]
                done = Batch(kb, number, tuple(added), tuple(removed), documents - totals.documents)
                totals = done.after(totals)
            else:
                totals = replace(totals, batch=number)
            self._finish(kb, totals)
        self._visibility.show(kb)
        self.unsettled.discard(kb)
        return bool(rows)

    def forget(self, kb: int) -> None:
        """Drops what is known of a knowledge base that is gone."""
        self._visibility.show(kb)
        self.unsettled.discard(kb)
        self._totals.pop(kb, None)
        self.damaged.pop(kb, None)

    def prune(self) -> None:
        """Removes the intents of finished batches; called when nothing is being written."""
        if not self.unfinished() and not self.damaged:
            self._engine.command(f"TRUNCATE TABLE {self._engine.dialect.changed('intents')}")
