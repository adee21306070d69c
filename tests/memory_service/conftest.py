"""One server for the tests of a module."""

from collections.abc import Iterator

import pytest
import structlog

from memory_service.client import ingest
from memory_service.write import cold_start
from testing.encoders import HashEncoder
from tests.memory_service.running import Client, running

# Pauses that production makes in seconds; tests that wait for them import the first one from here on.
cold_start._FIRST_PAUSE_S = 0.05
ingest._FIRST_PAUSE_S = 0.02


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
