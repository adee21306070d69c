"""Clients with API keys, and key files for tests."""

from pathlib import Path

import grpc

from memory_service.access.keys import changing
from memory_service.client.connection import KeyInterceptor
from tests.memory_service.running import Client


def new_key(path: Path, grants: dict[str, str], tenant: str = "") -> str:
    """Makes a key as `memory-service keys create` does."""
    with changing(path) as file:
        file, _, secret = file.with_new("test", tenant, grants, None)
        file.write(path)
    return secret


def with_key(channel: grpc.Channel, secret: str) -> Client:
    """Stubs whose every call carries the key."""
    return Client(grpc.intercept_channel(channel, KeyInterceptor((("authorization", f"Bearer {secret}"),))))
