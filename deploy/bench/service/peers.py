"""Vector databases that a user would pick instead, embedded: vector and blob under one id, as each of them takes it.

Each has the index and the settings that its own documentation proposes for this size, and cosine. Those without a
type for bytes get base64 text. A peer that is not installed is left out by name (extra `bench-peers`).
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.bench.service.data import Collection
from deploy.bench.service.front import Neighbour, Searcher

_BATCH = 256
_TABLE = "memories"
_HNSW_M, _HNSW_BUILD, _HNSW_SEARCH = 32, 128, 128


@dataclass(frozen=True)
class Peer:
    """fill: a collection into an empty folder; opened: what searches there. Both are imported by name elsewhere."""

    name: str
    module: str
    fill: Callable[[Path, Collection, Callable[[int], None]], None]
    opened: Callable[[Path, Collection], Searcher]

    @property
    def installed(self) -> bool:
        """Whether it can be measured here."""
        return importlib.util.find_spec(self.module) is not None


def _batches(collection: Collection, size: int = _BATCH) -> Iterator[tuple[int, np.ndarray]]:
    for first, vectors in collection.vector_blocks():
        for start in range(0, len(vectors), size):
            yield first + start, vectors[start : start + size]


def _text(payload: bytes) -> str:
    return base64.b64encode(payload).decode("ascii")


# LanceDB


def fill_lancedb(folder: Path, collection: Collection, progress: Callable[[int], None]) -> None:
    """A table with an IVF_HNSW_SQ index."""
    import lancedb
    import pyarrow as pa

    schema = pa.schema([
        ("id", pa.int64()), ("vector", pa.list_(pa.float32(), collection.dimension)), ("payload", pa.large_binary()),
    ])  # fmt: skip

    def record_batches() -> Iterator[Any]:
        for first, vectors in _batches(collection):
            numbers = range(first, first + len(vectors))
            columns = [
                pa.array([n + 1 for n in numbers], pa.int64()),
                pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), collection.dimension),
                pa.array([collection.payload(n) for n in numbers], pa.large_binary()),
            ]
            yield pa.record_batch(columns, schema=schema)
            progress(len(vectors))

    table = lancedb.connect(folder).create_table(_TABLE, data=record_batches(), schema=schema)
    table.create_index("vector", config=lancedb.index.HnswSq(distance_type="cosine"))


class LanceDb:
    """Searches with the four-fold refinement that a quantized index wants."""

    def __init__(self, folder: Path, collection: Collection) -> None:
        import lancedb

        self._table = lancedb.connect(folder).open_table(_TABLE)

    def search(self, vector: np.ndarray, k: int) -> Sequence[Neighbour]:
        """See Searcher."""
        query = self._table.search(vector).distance_type("cosine").limit(k).refine_factor(4)
        found = query.select(["id", "payload", "_distance"]).to_arrow()
        columns = [found[name].to_pylist() for name in ("id", "_distance", "payload")]
        return [(number, 1 - distance, payload) for number, distance, payload in zip(*columns, strict=True)]


# Chroma


def fill_chroma(folder: Path, collection: Collection, progress: Callable[[int], None]) -> None:
    """A collection of metadata, which is where Chroma keeps what is not searched."""
    made = _chroma(folder).create_collection(
        _TABLE,
        configuration={
            "hnsw": {
                "space": "cosine", "max_neighbors": _HNSW_M, "ef_construction": _HNSW_BUILD, "ef_search": _HNSW_SEARCH
            }
        },
    )  # fmt: skip
    for first, vectors in _batches(collection):
        numbers = range(first, first + len(vectors))
        made.add(
            ids=[str(n + 1) for n in numbers],
            embeddings=vectors,
            metadatas=[{"payload": _text(collection.payload(n))} for n in numbers],
        )
        progress(len(vectors))


def _chroma(folder: Path) -> Any:
    import chromadb

    return chromadb.PersistentClient(str(folder), chromadb.Settings(anonymized_telemetry=False))


class Chroma:
    """Searches a persistent client's collection."""

    def __init__(self, folder: Path, collection: Collection) -> None:
        self._collection = _chroma(folder).get_collection(_TABLE)

    def search(self, vector: np.ndarray, k: int) -> Sequence[Neighbour]:
        """See Searcher."""
        found = self._collection.query(
            query_embeddings=vector, n_results=k, include=["metadatas", "distances"]
        )
        rows = zip(found["ids"][0], found["distances"][0], found["metadatas"][0], strict=True)
        return [(int(number), 1 - far, base64.b64decode(data["payload"])) for number, far, data in rows]


# Milvus Lite


def fill_milvus(folder: Path, collection: Collection, progress: Callable[[int], None]) -> None:
    """A collection with an HNSW index; VARCHAR takes the text of 39,424 bytes."""
    from pymilvus import DataType

    client = _milvus(folder)
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=collection.dimension)
    schema.add_field("payload", DataType.VARCHAR, max_length=65_535)
    index = client.prepare_index_params()
    index.add_index(
        "vector",
        index_type="HNSW",
        metric_type="COSINE",
        params={"M": _HNSW_M, "efConstruction": _HNSW_BUILD},
    )
    client.create_collection(_TABLE, schema=schema, index_params=index)
    for first, vectors in _batches(collection):
        numbers = range(first, first + len(vectors))
        rows = [
            {"id": n + 1, "vector": vector, "payload": _text(collection.payload(n))}
            for n, vector in zip(numbers, vectors, strict=True)
        ]
        client.insert(_TABLE, rows)
        progress(len(vectors))
    client.flush(_TABLE)
    client.close()


def _milvus(folder: Path) -> Any:
    from pymilvus import MilvusClient

    return MilvusClient(str(folder / "milvus.db"))


class MilvusLite:
    """Searches through the client's own local server."""

    def __init__(self, folder: Path, collection: Collection) -> None:
        self._client = _milvus(folder)
        self._client.load_collection(_TABLE)

    def search(self, vector: np.ndarray, k: int) -> Sequence[Neighbour]:
        """See Searcher."""
        found = self._client.search(
            _TABLE,
            [vector],
            limit=k,
            output_fields=["payload"],
            search_params={"params": {"ef": _HNSW_SEARCH}},
        )
        return [(hit["id"], hit["distance"], base64.b64decode(hit["entity"]["payload"])) for hit in found[0]]


# Qdrant Edge


def fill_qdrant(folder: Path, collection: Collection, progress: Callable[[int], None]) -> None:
    """A shard with an HNSW index, built at the end."""
    qdrant: Any = importlib.import_module("qdrant_edge")

    hnsw = qdrant.HnswIndexConfig(m=_HNSW_M, ef_construct=_HNSW_BUILD, full_scan_threshold=10_000)
    vectors_config = qdrant.EdgeVectorParams(size=collection.dimension, distance=qdrant.Distance.Cosine)
    config = qdrant.EdgeConfig(vectors=vectors_config, hnsw_config=hnsw)
    shard = qdrant.EdgeShard.create(str(folder), config)
    for first, vectors in _batches(collection):
        points = [
            qdrant.Point(n + 1, vector.tolist(), {"payload": _text(collection.payload(n))})
            for n, vector in enumerate(vectors, first)
        ]
        shard.update(qdrant.UpdateOperation.upsert_points(points))
        progress(len(vectors))
    shard.optimize()
    shard.close()


class QdrantEdge:
    """Searches the shard."""

    def __init__(self, folder: Path, collection: Collection) -> None:
        qdrant: Any = importlib.import_module("qdrant_edge")

        self._qdrant = qdrant
        self._shard = qdrant.EdgeShard.load(str(folder))
        self._parameters = self._qdrant.SearchParams(hnsw_ef=_HNSW_SEARCH)

    def search(self, vector: np.ndarray, k: int) -> Sequence[Neighbour]:
        """See Searcher."""
        query = self._qdrant.Query.Nearest(vector.tolist())
        request = self._qdrant.QueryRequest(limit=k, query=query, with_payload=True, params=self._parameters)
        return [
            (point.id, point.score, base64.b64decode(point.payload["payload"]))
            for point in self._shard.query(request)
        ]


# The last one holds its payloads in memory several times over.
PEERS = (
    Peer("lancedb", "lancedb", fill_lancedb, LanceDb),
    Peer("chroma", "chromadb", fill_chroma, Chroma),
    Peer("qdrant_edge", "qdrant_edge", fill_qdrant, QdrantEdge),
    Peer("milvus_lite", "milvus_lite", fill_milvus, MilvusLite),
)
