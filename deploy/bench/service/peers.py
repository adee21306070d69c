"""Vector databases that a user would pick instead, embedded: vector, words, text and blob under one id.

Each has the index and the settings that its own documentation proposes for this size, and cosine. Those without a
type for bytes get base64 text. A peer that is not installed is left out by name (extra `bench-peers`).
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.bench.service.data import Collection
from deploy.bench.service.front import Candidate, Searcher
from memory3.text.words import text_words

_BATCH = 256
_TABLE, _PAYLOADS = "memories", "payloads"
_HNSW_M, _HNSW_BUILD, _HNSW_SEARCH = 32, 128, 128


@dataclass(frozen=True)
class Peer:
    """fill: a collection into an empty folder; opened: what searches there. Both are imported by name elsewhere."""

    module: str
    fill: Callable[[Path, Collection, Callable[[int], None]], None]
    opened: Callable[[Path], Searcher]

    @property
    def installed(self) -> bool:
        """Whether it can be measured here."""
        return importlib.util.find_spec(self.module) is not None


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _words(collection: Collection, reference: int) -> bytes:
    """The word hashes of a reference, kept as the service keeps them."""
    return text_words(collection.text(reference)).tobytes()


def _hashes(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint32)


# LanceDB


def fill_lancedb(folder: Path, collection: Collection, progress: Callable[[int], None]) -> None:
    """A table with an HNSW_SQ index of the vectors and one of the ids."""
    import lancedb
    import pyarrow as pa

    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("vector", pa.list_(pa.float32(), collection.dimension)),
            ("words", pa.binary()),
            ("text", pa.string()),
            ("payload", pa.large_binary()),
        ]
    )

    def record_batches() -> Iterator[Any]:
        for first, vectors in collection.batches(_BATCH):
            numbers = range(first, first + len(vectors))
            columns = [
                pa.array([n + 1 for n in numbers], pa.int64()),
                pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), collection.dimension),
                pa.array([_words(collection, n) for n in numbers], pa.binary()),
                pa.array([collection.text(n) for n in numbers], pa.string()),
                pa.array([collection.payload(n) for n in numbers], pa.large_binary()),
            ]
            yield pa.record_batch(columns, schema=schema)
            progress(len(vectors))

    table = lancedb.connect(folder).create_table(_TABLE, data=record_batches(), schema=schema)
    table.create_index("vector", config=lancedb.index.HnswSq(distance_type="cosine"))
    table.create_index("id", config=lancedb.index.BTree())


class LanceDb:
    """Searches with the four-fold refinement that a quantized index wants."""

    def __init__(self, folder: Path) -> None:
        import lancedb

        self._table = lancedb.connect(folder).open_table(_TABLE)

    def search(self, vector: np.ndarray, count: int) -> Sequence[Candidate]:
        query = self._table.search(vector).distance_type("cosine").limit(count).refine_factor(4)
        found = query.select(["id", "words", "_distance"]).to_arrow()
        columns = [found[name].to_pylist() for name in ("id", "_distance", "words")]
        return [(number, 1 - distance, _hashes(words)) for number, distance, words in zip(*columns, strict=True)]

    def read(self, memory_ids: Sequence[int]) -> Mapping[int, tuple[str, bytes]]:
        query = self._table.search().where(f"id IN ({', '.join(map(str, memory_ids))})")
        found = query.select(["id", "text", "payload"]).to_arrow()
        columns = [found[name].to_pylist() for name in ("id", "text", "payload")]
        return {number: (text, payload) for number, text, payload in zip(*columns, strict=True)}


# Chroma


def fill_chroma(folder: Path, collection: Collection, progress: Callable[[int], None]) -> None:
    """A collection that is searched, and one of payloads: a search returns all metadata or none."""
    hnsw = {"space": "cosine", "max_neighbors": _HNSW_M, "ef_construction": _HNSW_BUILD, "ef_search": _HNSW_SEARCH}
    client = _chroma(folder)
    made = client.create_collection(_TABLE, configuration={"hnsw": hnsw})
    payloads = client.create_collection(_PAYLOADS)
    for first, vectors in collection.batches(_BATCH):
        numbers = range(first, first + len(vectors))
        ids = [str(n + 1) for n in numbers]
        made.add(ids=ids, embeddings=vectors, metadatas=[{"words": _text(_words(collection, n))} for n in numbers])
        payloads.add(
            ids=ids,
            embeddings=np.ones((len(ids), 1), np.float32),
            documents=[collection.text(n) for n in numbers],
            metadatas=[{"payload": _text(collection.payload(n))} for n in numbers],
        )
        progress(len(vectors))


def _chroma(folder: Path) -> Any:
    import chromadb

    return chromadb.PersistentClient(str(folder), chromadb.Settings(anonymized_telemetry=False))


class Chroma:
    """Searches a persistent client's collection."""

    def __init__(self, folder: Path) -> None:
        client = _chroma(folder)
        self._collection, self._payloads = client.get_collection(_TABLE), client.get_collection(_PAYLOADS)

    def search(self, vector: np.ndarray, count: int) -> Sequence[Candidate]:
        found = self._collection.query(query_embeddings=vector, n_results=count, include=["metadatas", "distances"])
        rows = zip(found["ids"][0], found["distances"][0], found["metadatas"][0], strict=True)
        return [(int(number), 1 - far, _hashes(base64.b64decode(data["words"]))) for number, far, data in rows]

    def read(self, memory_ids: Sequence[int]) -> Mapping[int, tuple[str, bytes]]:
        found = self._payloads.get(ids=[str(one) for one in memory_ids], include=["metadatas", "documents"])
        rows = zip(found["ids"], found["documents"], found["metadatas"], strict=True)
        return {int(number): (text, base64.b64decode(data["payload"])) for number, text, data in rows}


# Qdrant Edge


def fill_qdrant(folder: Path, collection: Collection, progress: Callable[[int], None]) -> None:
    """A shard with an HNSW index, built at the end."""
    qdrant: Any = importlib.import_module("qdrant_edge")

    hnsw = qdrant.HnswIndexConfig(m=_HNSW_M, ef_construct=_HNSW_BUILD, full_scan_threshold=10_000)
    vectors_config = qdrant.EdgeVectorParams(size=collection.dimension, distance=qdrant.Distance.Cosine)
    config = qdrant.EdgeConfig(vectors=vectors_config, hnsw_config=hnsw)
    shard = qdrant.EdgeShard.create(str(folder), config)
    for first, vectors in collection.batches(_BATCH):
        points = [
            qdrant.Point(
                n + 1,
                vector.tolist(),
                {
                    "words": _text(_words(collection, n)),
                    "text": collection.text(n),
                    "payload": _text(collection.payload(n)),
                },
            )
            for n, vector in enumerate(vectors, first)
        ]
        shard.update(qdrant.UpdateOperation.upsert_points(points))
        progress(len(vectors))
    shard.optimize()
    shard.close()


class QdrantEdge:
    """Searches the shard."""

    def __init__(self, folder: Path) -> None:
        qdrant: Any = importlib.import_module("qdrant_edge")

        self._qdrant = qdrant
        self._shard = qdrant.EdgeShard.load(str(folder))
        self._parameters = self._qdrant.SearchParams(hnsw_ef=_HNSW_SEARCH)

    def search(self, vector: np.ndarray, count: int) -> Sequence[Candidate]:
        query = self._qdrant.Query.Nearest(vector.tolist())
        request = self._qdrant.QueryRequest(limit=count, query=query, with_payload=["words"], params=self._parameters)
        return [
            (point.id, point.score, _hashes(base64.b64decode(point.payload["words"])))
            for point in self._shard.query(request)
        ]

    def read(self, memory_ids: Sequence[int]) -> Mapping[int, tuple[str, bytes]]:
        found = self._shard.retrieve(list(memory_ids), with_payload=["text", "payload"], with_vector=False)
        return {one.id: (one.payload["text"], base64.b64decode(one.payload["payload"])) for one in found}


PEERS = {
    "lancedb": Peer("lancedb", fill_lancedb, LanceDb),
    "chroma": Peer("chromadb", fill_chroma, Chroma),
    "qdrant_edge": Peer("qdrant_edge", fill_qdrant, QdrantEdge),
}
