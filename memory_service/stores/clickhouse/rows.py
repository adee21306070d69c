"""Documents as columns of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from memory_service.stores import NewDocument, NewReference

Columns = Mapping[str, Sequence[Any]]

# References inserted at once: some 20 MB of payloads of the paper's size.
_ROWS = 512


def reference_columns(kb: int, documents: Sequence[NewDocument]) -> Iterator[tuple[Columns, Columns]]:
    """Pairs of columns, of table `payloads` and of table `references_…`, some hundred rows each."""
    rows: list[tuple[NewDocument, int, NewReference]] = [
        (document, chunk, reference)
        for document in documents
        for chunk, reference in enumerate(document.references)
    ]
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        shared: dict[str, Sequence[Any]] = {
            "kb": [kb] * len(part),
            "id": [reference.memory_id for _, _, reference in part],
        }
        payloads = {**shared, "payload": [reference.payload for _, _, reference in part]}
        references = {
            **shared,
            "document_key": [document.key for document, _, _ in part],
            "title": [document.title for document, _, _ in part],
            "chunk": [chunk for _, chunk, _ in part],
            "text": [reference.text for _, _, reference in part],
            "metadata": [dict(document.metadata) for document, _, _ in part],
            "crc32c": [reference.crc32c for _, _, reference in part],
            "embedding": [reference.vector.tolist() for _, _, reference in part],
        }
        yield payloads, references


def document_columns(kb: int, documents: Sequence[NewDocument], batch: int) -> Columns:
    """Columns of table `documents` for documents that are stored."""
    return {
        **_heads(kb, [document.key for document in documents], batch, deleted=0),
        "content_hash": [document.content_hash for document in documents],
        "title": [document.title for document in documents],
        "metadata": [dict(document.metadata) for document in documents],
        "memory_ids": [[reference.memory_id for reference in document.references] for document in documents],
        "text_bytes": [sum(len(r.text.encode()) for r in document.references) for document in documents],
        "payload_bytes": [sum(len(r.payload) for r in document.references) for document in documents],
    }


def deleted_columns(kb: int, keys: Sequence[str], batch: int) -> Columns:
    """Columns of table `documents` for documents that are removed."""
    return {**_heads(kb, keys, batch, deleted=1), "content_hash": [bytes(32)] * len(keys)}


def _heads(kb: int, keys: Sequence[str], batch: int, deleted: int) -> dict[str, Sequence[Any]]:
    n, now = len(keys), datetime.now(timezone.utc)
    return {
        "kb": [kb] * n,
        "key": list(keys),
        "batch": [batch] * n,
        "deleted": [deleted] * n,
        "stored_at": [now] * n,
    }
