"""The files of a local store, one by one: whatever is in them is read as written or refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_service.errors import KnowledgeBaseDamaged
from memory_service.stores.local.bank import Bank, record_bytes_for
from memory_service.stores.local.commits import CommitLog, Totals
from memory_service.stores.local.large_pages import PAGE_BYTES, on_large_pages

TOTALS = st.builds(Totals, *[st.integers(0, 2**64 - 1)] * 6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=300)), min_size=1, max_size=8))
def test_records_are_read_as_they_were_written(records: list[tuple[int, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, size = Path(folder) / "bank", record_bytes_for(max(len(payload) for _, payload in records))
        bank = Bank.create(path, 3, size)
        ids, payloads = [number for number, _ in records], [payload for _, payload in records]
        bank.write(3, ids, payloads, [google_crc32c.value(p) for p in payloads], [7] * len(ids))
        again = Bank.open(path, 3, size, writable=False)
        found = [again.check(row) for row in range(3, 3 + len(records))]
        assert [(record.memory_id, bytes(record.payload), record.vector_crc32c) for record in found] == [
            (number, payload, 7) for number, payload in records
        ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(TOTALS, st.none() | st.integers(0, 2**32 - 1)), min_size=1, max_size=5), st.data())
def test_a_log_is_read_as_written_or_up_to_a_record_or_refused(
    records: list[tuple[Totals, int | None]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        log = CommitLog.create(path, records[0][0])
        for totals, seal in records[1:]:
            log.append(totals, seal)
        log.file.close()
        written = [(records[0][0], None), *records[1:]]
        again = CommitLog.open(path)
        assert (again.last, again.seal) == written[-1]
        again.file.close()
        raw = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        else:
            raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
        path.write_bytes(raw)
        try:
            harmed = CommitLog.open(path)
        except KnowledgeBaseDamaged:
            return
        assert (harmed.last, harmed.seal) in written[: len(raw) // 64]
        harmed.file.close()


@pytest.mark.parametrize("size_bytes", [0, 1000, 5 << 20])
def test_what_is_put_on_large_pages_stays_what_it_is(size_bytes: int) -> None:
    held = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
    before = held.copy()
    moved = on_large_pages(held.ctypes.data, size_bytes)
    assert moved in ((False,) if size_bytes < PAGE_BYTES else (False, True))  # not every system has them
    assert np.array_equal(held, before)
