"""What one request may hold, as `Models.Describe` tells the clients."""

from __future__ import annotations

from memory_service.read.query import MAX_HELD_IDS
from memory_service.settings import Settings
from memory_service.write.encoder import EncoderDescription
from protos.memory.v1 import models_pb2

PING_INTERVAL_MS = 10_000
"""Devices may keep an idle connection alive through their NATs; more frequent pings end it (too_many_pings)."""


def limits_of(settings: Settings, description: EncoderDescription) -> models_pb2.Limits:
    """The limits of a service with these settings."""
    return models_pb2.Limits(
        request_bytes=settings.message_limit_bytes, payload_bytes=description.payload_bytes, k=settings.max_k,
        queries=settings.max_queries, hits=settings.max_hits, held_ids=MAX_HELD_IDS,
        ping_interval_ms=PING_INTERVAL_MS,
    )  # fmt: skip
