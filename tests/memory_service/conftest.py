"""One server for the tests of a module: the engine allows one folder at a time in a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.memory_service.encoders import HashEncoder
from tests.memory_service.running import Client, running


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """A command run inside a test sets logs up for a stream that ends with the test."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def encoder() -> HashEncoder:
    return HashEncoder()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, encoder: HashEncoder) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("store")
    with running(folder, encoder, document_limit_bytes=1 << 20, default_deadline_s=60) as (client, _):
        yield client
