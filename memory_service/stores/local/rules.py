"""When a local store does what by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from memory_service.stores.local.vector_index import IndexRule


@dataclass(frozen=True)
class LocalRules:
    """Sizes and shares that start its work in the background.

    compact_dead_rows, compact_dead_share: so many dead rows, and such a share of all rows, start a compaction.
    start_check_bytes: up to this size every checksum is compared before a knowledge base is served, above it
    afterwards in the background (each payload is compared when it is read anyway).
    save_growth: an index is saved when it covers this share of rows more than its file; save_growth_idle: the same
    when nothing is being written.
    """

    index: IndexRule = field(default_factory=IndexRule)
    compact_dead_rows: int = 1024
    compact_dead_share: float = 0.3
    start_check_bytes: int = 8 << 30
    save_growth: float = 0.1
    save_growth_idle: float = 0.01
