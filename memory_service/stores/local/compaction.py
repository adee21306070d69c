"""Compaction: the living documents are copied into the next generation while the present one is read and written.

    compacted    copies what lives at its beginning, and builds the index; takes as long as it takes
    catch_up     with writing held: removes what died meanwhile and copies what came

Then CURRENT names the new generation, and the old one's files go when their last reader is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import numpy as np

from memory_service.stores.local.commits import Totals
from memory_service.stores.local.generation import Generation
from memory_service.stores.local.stored_document import StoredRow
from memory_service.stores.local.vector_index import IndexRule, VectorIndex

_BATCH_DOCUMENTS = 256


@dataclass
class Compacted:
    """The next generation, not yet the present one. copied_rows: rows of the old one that were looked at."""

    generation: Generation
    index: VectorIndex
    copied_rows: int
    dead_before: frozenset[int]

    def catch_up(self, old: Generation) -> None:
        """Brings it to the state of `old`, which nobody may write to meanwhile; durable when it returns."""
        died = [
            document for document in old.documents.dead()
            if document.id not in self.dead_before and document.first_row < self.copied_rows
        ]  # fmt: skip
        here = self.generation.documents.living([document.key for document in died])
        _copy_from(old, self.copied_rows, self.generation, list(here.values()))
        self.generation.finish_copy([], replace(old.totals, rows=self.generation.totals.rows))


def compacted(
    old: Generation, folder: Path, dimension: int, rule: IndexRule, stop: Event
) -> Compacted | None:
    """Copies the living documents of `old` into the generation after it; None when `stop` was set."""
    new_folder = folder / f"g{int(old.folder.name[1:]) + 1:04d}"
    shutil.rmtree(new_folder, ignore_errors=True)
    copied_rows = old.totals.rows
    dead_before = frozenset(document.id for document in old.documents.dead())
    generation = Generation.create(new_folder, dimension, Totals())
    index = VectorIndex(dimension, rule)
    try:
        _copy_from(old, 0, generation, [], before_row=copied_rows, stop=stop)
        index.grow(generation.vectors.rows(generation.totals.rows), stop)
    except BaseException:
        generation.close()
        shutil.rmtree(new_folder, ignore_errors=True)
        raise
    if stop.is_set():
        generation.close()
        shutil.rmtree(new_folder, ignore_errors=True)
        return None
    return Compacted(generation, index, copied_rows, dead_before)


def _copy_from(
    old: Generation, first_row: int, new: Generation, removed: Sequence[StoredRow], *,
    before_row: int | None = None, stop: Event | None = None,
) -> None:  # fmt: skip
    """Removes `removed` from `new`, then copies the living documents of `old` from `first_row` to `before_row`."""
    if removed:
        new.commit([], removed, new.totals, [])
    while documents := old.documents.living_after(first_row, _BATCH_DOCUMENTS):
        first_row = documents[-1].rows.stop
        part = [d for d in documents if before_row is None or d.first_row < before_row]
        if not part or (stop is not None and stop.is_set()):
            return
        _copy(old, part, new)


def _copy(old: Generation, documents: Sequence[StoredRow], new: Generation) -> None:
    """Copies documents with their records and vectors; each payload is compared with its checksum on the way."""
    rows = [row for document in documents for row in document.rows]
    records = [old.bank_of(row).read(row) for row in rows]
    payloads = [old.bank_of(row).payload(row, record) for row, record in zip(rows, records, strict=True)]
    vectors = old.vectors.rows(rows[-1] + 1)[np.array(rows)]
    totals = replace(new.totals, rows=new.totals.rows + len(rows))
    banks = new.append(
        [record.memory_id for record in records],
        payloads,
        [record.payload_crc32c for record in records],
        vectors,
    )
    copies, row = [], new.totals.rows
    for document in documents:
        copies.append((replace(document, first_row=row), old.documents.references(document.rows)))
        row += document.row_count
    new.commit(copies, [], totals, banks)
