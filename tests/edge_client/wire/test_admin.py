"""A document of the device goes to the service, again where that permits it; what is no document is refused before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edge_client.errors import RetrievalError
from edge_client.wire.admin import ATTEMPTS, LARGEST_BYTES, OwnDocument, ServiceLink, document_of, text_of
from edge_client.wire.channel import ChannelSettings
from memory_model.errors import InvalidInput, MissingFile
from memory_service.errors import QuotaExceeded, ServiceError, StoreFull, StoreUnavailable
from memory_service.stores import KnowledgeBase, NewDocument, Written
from memory_service.stores.local.store import LocalStore
from protos.memory.v1 import ingestion_pb2
from tests.memory_service.encoders import HashEncoder
from tests.memory_service.running import running

PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>endobj
4 0 obj<</Length 40>>stream
BT /F 9 Tf (Paid leave: 31 days) Tj ET
endstream endobj
5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj
trailer<</Root 1 0 R/Size 6>>
startxref
0
%%EOF
"""


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
    with pytest.raises(RetrievalError, match=str(error)) as caught:
        end_of(address)
    assert caught.value.reason == error.reason
    assert len(failing) == left


def test_a_file_whose_name_is_no_utf_8_gets_a_key_that_can_be_sent(tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"))
    file.write_text("Open from eight.")
    document = document_of(file)
    assert (document.key, document.title) == ("caf\ufffd.txt", "caf\ufffd")
    assert ingestion_pb2.Document(key=document.key, title=document.title).ByteSize() > 0


def test_what_is_no_document_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="cannot be read"):
        document_of(tmp_path / "none.txt")
    with pytest.raises(MissingFile, match="cannot be read"):
        document_of(tmp_path)
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    with pytest.raises(InvalidInput, match="larger than 4 MB"):
        document_of(tmp_path / "large.txt")
    for content in (b"\xff\xfe", b"a\0b", b"PK\x03\x04"):
        with pytest.raises(InvalidInput):
            text_of(content)
    assert text_of(b"\xef\xbb\xbfmarked") == "marked"


def test_documents_are_listed_by_pages_and_deleted(address: str) -> None:
    async def used() -> list[dict[str, Any]]:
        settings = ChannelSettings(address=address)
        link = ServiceLink(settings, settings)
        try:
            for key in ("a", "b", "c"):
                _ = [step async for step in link.ingest("kb", OwnDocument(key, f"Title {key}", "Some text."))]
            first = await link.documents("kb", count=2)
            second = await link.documents("kb", first["next"], count=2)
            assert second["next"] == ""
            assert await link.delete_document("kb", "b") == 1
            assert [d["key"] for d in (await link.documents("kb"))["data"]] == ["a", "c"]
            return [*first["data"], *second["data"]]
        finally:
            await link.close()

    found = asyncio.run(used())
    assert found == [{"key": key, "title": f"Title {key}", "references": 1} for key in ("a", "b", "c")]


def test_a_pdf_is_read_and_one_without_text_is_refused() -> None:
    assert text_of(PDF).strip() == "Paid leave: 31 days"
    with pytest.raises(InvalidInput, match="no text"):
        text_of(PDF.replace(b"Tj", b"  "))
    with pytest.raises(InvalidInput, match="cannot be read"):
        text_of(b"%PDF-1.7 ...")
