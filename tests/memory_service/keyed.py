"""Clients with API keys, and key files for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from memory_service.keys import changing
from tests.memory_service.running import Client


def new_key(path: Path, grants: dict[str, str], tenant: str = "") -> str:
    """Makes a key as `memory-service keys create` does."""
    with changing(path) as file:
        file, _, secret = file.with_new("test", tenant, grants, None)
        file.write(path)
    return secret


class _Key(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    def __init__(self, secret: str) -> None:
        self._header = ("authorization", f"Bearer {secret}")

    def _add(self, proceed: Callable[..., Any], details: Any, request: Any) -> Any:
        return proceed(details._replace(metadata=(*(details.metadata or ()), self._header)), request)

    intercept_unary_unary = _add
    intercept_unary_stream = _add
    intercept_stream_unary = _add
    intercept_stream_stream = _add


def with_key(channel: grpc.Channel, secret: str) -> Client:
    """Stubs whose every call carries the key."""
    return Client(grpc.intercept_channel(channel, _Key(secret)))
