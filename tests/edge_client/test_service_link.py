"""A document of the device goes to the service, again where that says it may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edge_client.wire.channel import ChannelSettings
from edge_client.wire.documents import OwnDocument
from edge_client.wire.link import ATTEMPTS, ServiceLink
from memory_service.errors import QuotaExceeded, ServiceError, StoreFull, StoreUnavailable
from memory_service.stores import KnowledgeBase, NewDocument, Written
from memory_service.stores.local.store import LocalStore
from tests.memory_service.encoders import HashEncoder
from tests.memory_service.running import running


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[ServiceError]:
    """Errors of the store's next writes."""
    errors: list[ServiceError] = []
    write = LocalStore.write

    def write_or_fail(
        store: LocalStore, base: KnowledgeBase, documents: Sequence[NewDocument]
    ) -> list[Written]:
        if errors:
            raise errors.pop()
        return write(store, base, documents)

    monkeypatch.setattr(LocalStore, "write", write_or_fail)
    monkeypatch.setattr(StoreUnavailable, "retry_after_s", 0.01)
    return errors


@pytest.fixture
def address(tmp_path: Path, failing: list[ServiceError]) -> Iterator[str]:
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}") as (_, server):
        yield f"127.0.0.1:{server.port}"


def end_of(address: str) -> dict[str, Any]:
    """What became of a document, which is said once."""

    async def ingest() -> list[dict[str, Any]]:
        settings = ChannelSettings(address=address)
        link = ServiceLink(settings, settings)
        try:
            return [step async for step in link.ingest("kb", OwnDocument("k", "T", "Some text."))]
        finally:
            await link.close()

    (end,) = [step for step in asyncio.run(ingest()) if step["state"] != "writing"]
    return end


def test_a_document_is_sent_again_while_the_store_is_briefly_away(
    address: str, failing: list[ServiceError]
) -> None:
    failing += [StoreUnavailable("away")] * (ATTEMPTS - 1)
    assert end_of(address) == {"state": "done", "outcome": "stored", "references": 1}


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (QuotaExceeded("the tenant is full"), ATTEMPTS - 1),
        (StoreFull("the disk is full"), ATTEMPTS - 1),  # after a minute, for which nobody waits
        (StoreUnavailable("away"), 0),
    ],
)
def test_what_stays_refused_is_reported_once(
    address: str, failing: list[ServiceError], error: ServiceError, left: int
) -> None:
    failing += [error] * ATTEMPTS
    assert end_of(address) == {"state": "failed", "reason": error.reason.lower(), "message": str(error)}
    assert len(failing) == left
