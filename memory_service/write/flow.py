"""Both directions of the service, one line a stage. Everything else here is how these lines meet the wire and the disk.

WRITE   text -> references -> vectors and memories -> payloads -> stored
READ    query vectors -> nearest references -> payloads
"""

from __future__ import annotations

from collections.abc import Mapping

from memory_service.stores import KnowledgeBase, Query, Retrieved, Store, Written
from memory_service.write.document import StreamOptions, read_item
from memory_service.write.encoder import Encoder
from memory_service.write.vectors import read_vectors
from protos.memory.v1 import ingestion_pb2


def write_document(
    store: Store,
    base: KnowledgeBase,
    encoder: Encoder,
    key: str,
    title: str,
    text: str,
    metadata: Mapping[str, str],
) -> Written:
    """One document into a knowledge base; Ingestion does the same for streams, in batches that overlap."""
    item = ingestion_pb2.IngestItem(
        document={"key": key, "title": title, "text": text, "metadata": dict(metadata)}
    )
    document = read_item(item, encoder, StreamOptions())  # checked, split into references, hashed
    if document.error is not None:
        raise document.error
    encoded = encoder.encode(document.texts)  # embedded, written, compressed
    for place, (vector, payload) in enumerate(zip(encoded.vectors, encoded.payloads, strict=True)):
        document.fill(place, vector, payload)
    return store.write(base, [document.finished()])[0]  # payloads, references, then the document: durable


def read_memories(store: Store, base: KnowledgeBase, query_vectors: bytes, k: int) -> Retrieved:
    """The k nearest memories of every query vector; Retrieval does the same off the event loop."""
    vectors = read_vectors(
        query_vectors, base.identity.dimension
    )  # float32 [queries, dimension], of unit length
    return store.retrieve(base, Query(vectors, k))  # searched by the index, payloads fetched by id
