"""What a store of so many references costs: memory, disk, time of a search. Measured in processes of their own."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from deploy.bench.service.data import Collection, K, recall
from deploy.bench.service.filling import fill_apart
from deploy.bench.service.stores import fill, url_of
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE
from memory_service.stores import Query, open_store

SMALL_PAYLOAD_BYTES = 64
"""Of the payloads that are stored here: their size is known, so it need not be written a million times."""


def cost_of(engine: str, collection: Collection, folder: Path) -> dict[str, Any]:
    """The cost of one store, as JSON; `folder` is emptied before and removed afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        began = time.perf_counter()
        url = url_of(engine, folder)
        fill_apart(
            f"{engine}:// with {collection.references:,}", collection.references, fill, url, collection
        )
        built_s = time.perf_counter() - began
        disk = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
            searched = apart.submit(_searched, url, collection).result()
        return {
            "engine": engine, "references": collection.references, "dim": collection.dimension,
            "fill_s": round(built_s, 1),
            "disk_bytes": disk - collection.references * collection.payload_bytes, **searched,
        }  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _searched(url: str, collection: Collection) -> dict[str, Any]:
    """Memory that opening and searching took, without pages of mapped files, which the system can take back."""
    queries, exact = collection.query_vectors, collection.neighbours
    before = _anonymous_bytes()
    store = open_store(url)
    base = store.knowledge_base(DEFAULT_KNOWLEDGE_BASE)
    times, found = [], np.full(exact.shape, -1, np.int64)
    for turn in range(2):  # the first one reads the index
        for row, vector in enumerate(queries):
            began = time.perf_counter()
            hits = store.retrieve(base, Query(vector[None], K)).hits[0]
            if turn:
                times.append(1e3 * (time.perf_counter() - began))
            found[row, : len(hits)] = [hit.memory_id - 1 for hit in hits]
    resident = _anonymous_bytes() - before
    store.close()
    return {
        "recall_at_5": round(recall(found, exact), 4), "memory_bytes": max(0, resident),
        "search_p50_ms": round(float(np.quantile(times, 0.5)), 4),
        "search_p99_ms": round(float(np.quantile(times, 0.99)), 4),
    }  # fmt: skip


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status does not tell the memory of this process: measure on Linux")
