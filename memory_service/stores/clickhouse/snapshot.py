"""A knowledge base of a ClickHouse engine as it was at one moment, read page by page while it is written to.

One statement lists the versions of all documents. The sweep keeps their rows for its age after they are replaced; of a
document that was replaced earlier than that, the newest version is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

import numpy as np

from memory3.errors import shortened
from memory_service.errors import KnowledgeBaseChanged
from memory_service.stores.clickhouse.dialect import quoted
from memory_service.stores.clickhouse.engine import Engine
from memory_service.stores.clickhouse.search import payloads_of
from memory_service.stores.store import (
    SNAPSHOT_PAGE_BYTES,
    KnowledgeBase,
    Revision,
    Snapshot,
    SnapshotPage,
    StoredDocument,
    StoredMemory,
    digest,
)

_MEMORIES_AT_ONCE = 64


class _Version(NamedTuple):
    """A document without its references, and what names these. memory_ids: uint64 [references].

    memory_bytes: of a memory with its text, their mean.
    """

    number: int
    memory_ids: np.ndarray
    document: StoredDocument
    memory_bytes: int


class _Part(NamedTuple):
    """Some memories of a version, those from chunk `first` on."""

    version: _Version
    first: int
    memory_ids: list[int]


def snapshot(engine: Engine, base: KnowledgeBase, first_only: bool) -> Snapshot:
    """See `Store.snapshot`."""
    versions = _versions(engine, base)
    ids = np.concatenate([np.zeros(0, np.uint64), *(one.memory_ids for one in versions)])
    newest = max((one.document.stored_at.timestamp() for one in versions), default=0.0)
    revision = Revision(round(newest * 1e6), len(ids), digest(ids))
    return Snapshot(revision, len(versions), _pages(engine, base, versions, first_only))


def _versions(engine: Engine, base: KnowledgeBase, key: str | None = None) -> list[_Version]:
    """The newest versions of all documents, or of one, by key."""
    rows = engine.rows(
        "SELECT key, title, metadata, content_hash, toUnixTimestamp64Milli(stored_at), written = 1, version,"
        " memory_ids, payload_bytes + text_bytes"
        f" FROM documents FINAL WHERE kb = {base.number} AND deleted = 0"
        f"{'' if key is None else f' AND key = {quoted(key)}'} ORDER BY key"
    )
    versions = []
    for found, title, metadata, content_hash, ms, written, number, ids, size in rows:
        stored_at = datetime.fromtimestamp(ms / 1000, timezone.utc)
        document = StoredDocument(
            found, title, dict(metadata), bytes(content_hash), stored_at, (), len(ids), bool(written)
        )
        versions.append(_Version(int(number), np.array(ids, np.uint64), document, size // max(len(ids), 1)))
    return versions


def _pages(
    engine: Engine, base: KnowledgeBase, versions: Sequence[_Version], first_only: bool
) -> Iterator[SnapshotPage]:
    gone: set[str] = set()
    for parts in _together(versions, first_only):
        memories = _memories(engine, base, parts)
        for part in parts:
            version, key = part.version, part.version.document.key
            named = [(memory_id, version.number) for memory_id in part.memory_ids]
            found = [memories[one] for one in named if one in memories]
            if key not in gone and len(found) == len(part.memory_ids):
                yield SnapshotPage(version.document, found)
            elif part.first:
                if key not in gone:
                    raise KnowledgeBaseChanged(
                        f"document {shortened(key)!r} was replaced and swept while it was read: start anew",
                        knowledge_base=base.name,
                    )
            else:
                gone.add(key)
                yield from _pages(engine, base, _versions(engine, base, key), first_only)


def _together(versions: Sequence[_Version], first_only: bool) -> Iterator[list[_Part]]:
    """Parts of documents, as many as are read at once."""
    parts: list[_Part] = []
    count = size = 0
    for version in versions:
        most = min(max(SNAPSHOT_PAGE_BYTES // max(version.memory_bytes, 1), 1), _MEMORIES_AT_ONCE)
        wanted = version.memory_ids[:1] if first_only else version.memory_ids
        for first in range(0, len(wanted), most):
            ids = wanted[first : first + most].tolist()
            more = len(ids) * version.memory_bytes
            if parts and (count + len(ids) > _MEMORIES_AT_ONCE or size + more > SNAPSHOT_PAGE_BYTES):
                yield parts
                parts, count, size = [], 0, 0
            parts.append(_Part(version, first, ids))
            count, size = count + len(ids), size + more
    if parts:
        yield parts


def _memories(engine: Engine, base: KnowledgeBase, parts: Sequence[_Part]) -> dict[tuple[int, int], StoredMemory]:
    """The memories of these parts that are there, by id and version."""
    ids = {memory_id for part in parts for memory_id in part.memory_ids}
    versions = sorted({part.version.number for part in parts})
    with engine.reader() as client:
        rows = client.query(
            "SELECT id, version, document_key, title, chunk, text, crc32c, CAST(embedding, 'Array(Float32)')"
            f" FROM references_{base.identity.dimension} WHERE kb = {base.number}"
            f" AND id IN ({', '.join(map(str, ids))}) AND version IN ({', '.join(map(str, versions))})"
            " SETTINGS max_threads = 1"
        ).result_rows
        payloads = payloads_of(client, base.number, ids)
    memories = {}
    for row in rows:
        memory_id, version, key, title, chunk, text, crc, vector = row
        if (payload := payloads.get(int(memory_id))) is not None:
            one = int(memory_id), key, title, int(chunk), text, np.asarray(vector, np.float32), payload, int(crc)
            memories[int(memory_id), int(version)] = StoredMemory(*one)
    return memories
