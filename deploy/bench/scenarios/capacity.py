"""What a knowledge base costs by its size: memory, disk and time of a search, measured up to what fits."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from deploy.bench.intervals import percentile
from deploy.bench.processes import fill_apart
from deploy.bench.scenario import BUILD, Keys, Scenario, Settings, Sheet, figure, round_figure
from deploy.bench.service.data import Collection, K, recall
from deploy.bench.service.stores import fill, url_of
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE
from memory_service.stores import Query, open_store

SMALL_PAYLOAD_BYTES = 64
"""Of the payloads that are stored here: their size is known, so it need not be written a million times."""


class CapacitySettings(Settings):
    """sizes: numbers of references. most: the largest size of an engine that takes long to fill."""

    sizes: tuple[int, ...] = (1000, 10_000, 30_000, 100_000)
    engines: tuple[str, ...] = ("file", "chdb")
    dimension: int = Field(default=1024, ge=8)
    queries: int = Field(default=300, ge=10)
    turns: int = Field(default=4, ge=1)
    most: dict[str, int] = Field(default_factory=dict)


def measure(settings: CapacitySettings) -> Keys:
    """Every engine at every size."""
    rows = []
    for engine in settings.engines:
        for size in settings.sizes:
            if size <= settings.most.get(engine, size):
                collection = Collection(
                    size, settings.dimension, settings.queries, payload_bytes=SMALL_PAYLOAD_BYTES
                )
                rows.append(cost_of(engine, collection, BUILD / "capacity", settings.turns))
    return {"rows": rows, "dim": settings.dimension, "threads": settings.threads}


def cost_of(engine: str, collection: Collection, folder: Path, turns: int) -> Keys:
    """The cost of one store; `folder` is emptied before and removed afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        began = time.perf_counter()
        url, references = url_of(engine, folder), collection.references
        fill_apart(f"{engine}:// with {references:,}", references, fill, url, collection)
        fill_s = time.perf_counter() - began
        disk = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
            searched = apart.submit(_searched, url, collection, turns).result()
        return {
            "engine": engine, "references": references, "dim": collection.dimension, "fill_s": round(fill_s, 1),
            "disk_bytes": disk - references * collection.payload_bytes, **searched,
        }  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _searched(url: str, collection: Collection, turns: int) -> Keys:
    """Memory that opening and searching took, without pages of mapped files, which the system can take back."""
    queries, exact = collection.query_vectors, collection.neighbours
    before = _anonymous_bytes()
    store = open_store(url)
    base = store.knowledge_base(DEFAULT_KNOWLEDGE_BASE)
    times, found = [], np.full(exact.shape, -1, np.int64)
    for turn in range(1 + turns):  # the first one reads the index
        for row, vector in enumerate(queries):
            began = time.perf_counter()
            hits = store.retrieve(base, Query(vector[None], K)).hits[0]
            if turn:
                times.append(1e3 * (time.perf_counter() - began))
            found[row, : len(hits)] = [hit.memory_id - 1 for hit in hits]
    memory_bytes = max(0, _anonymous_bytes() - before)
    store.close()
    p99 = percentile(times, 99)
    return {
        "recall_at_5": round(recall(found, exact), 4), "memory_bytes": memory_bytes,
        "search_p50_ms": round_figure(float(np.median(times))), "search_p99_ms": p99 and round_figure(p99),
    }  # fmt: skip


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status does not state the memory of this process: measure on Linux")


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row a store and size."""
    rows = [
        (
            f"{row['engine']}://", f"{row['references']:,}", f"{row['memory_bytes'] / 1e6:,.0f}",
            f"{row['disk_bytes'] / 1e6:,.0f}", figure(row, "search_p50_ms"), figure(row, "search_p99_ms"),
            f"{row['recall_at_5']:.3f}", f"{row['references'] / row['fill_s']:,.0f}",
        )
        for row in result["rows"]
    ]  # fmt: skip
    note = (
        f"Vectors of {result['dim']} numbers; memory without pages of mapped files; disk without the payloads, which"
        " were small here; time of one retrieval of five in the store, from one caller, everything warm."
    )
    columns = ("store", "references", "memory, MB", "disk, MB", "p50, ms", "p99, ms", "recall@5", "stored/s")
    return [Sheet("measured", columns, rows, note)]


SCENARIO = Scenario(
    name="capacity",
    summary="Memory, disk and search time of a knowledge base by its size.",
    settings=CapacitySettings,
    measure=measure,
    promised=("rows",),
    directions={},
    sheets=sheets,
    quick={"sizes": [1000, 3000], "queries": 50},
)
