from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import google_crc32c
import grpc
import numpy as np
import pytest

from protos.memory.v1 import knowledge_bases_pb2 as pb
from tests.memory_service.encoders import DIMENSION, HashEncoder, payload_of, vector_of
from tests.memory_service.running import Client, document, refusal

DOCUMENTS = [document(f"k{n}", f"Text number {n}.", f"Title {n}") for n in range(40)]


@pytest.fixture(scope="module")
def kb(client: Client) -> str:
    client.ingest("exported", *DOCUMENTS)
    client.ingest("neighbour", document("other", "Another tenant's text."))
    return "exported"


def export(client: Client, kb: str, **more: Any) -> Iterator[pb.ExportKnowledgeBaseResponse]:
    return client.bases.ExportKnowledgeBase(pb.ExportKnowledgeBaseRequest(name=kb, **more), timeout=120)  # type: ignore[return-value]


def memories_of(responses: Iterator[pb.ExportKnowledgeBaseResponse]) -> list[pb.ExportedMemory]:
    return [memory for response in responses for memory in response.page.memories]


def test_an_export_holds_everything_once_in_the_order_of_ids(client: Client, kb: str) -> None:
    head, *pages = export(client, kb)
    memories = memories_of(iter(pages))
    ids = [memory.memory_id for memory in memories]
    assert head.head.memory_count == len(ids) == len(DOCUMENTS)
    assert ids == sorted(set(ids))
    assert head.head.id_digest == np.bitwise_xor.reduce(np.array(ids, np.uint64))
    assert head.head.payload_bytes == sum(len(memory.payload) for memory in memories)
    assert {memory.document_key for memory in memories} == {d.key for d in DOCUMENTS}
    model_id = HashEncoder().description.identity.model_id
    for memory in memories:
        assert memory.payload == payload_of(memory.text, model_id)
        assert memory.payload_crc32c == google_crc32c.value(memory.payload)
        vector = np.frombuffer(memory.vector, "<f4")
        assert vector.shape == (DIMENSION,)
        assert np.allclose(vector, vector_of(memory.text), atol=4e-3), "stored as bfloat16"
        assert memory.title == f"Title {memory.document_key[1:]}"


def test_an_export_goes_on_after_an_id_and_stops_at_a_limit(client: Client, kb: str) -> None:
    head, *pages = export(client, kb)
    whole = memories_of(iter(pages))
    rest = export(client, kb, after_id=whole[9].memory_id, revision=head.head.revision, limit=7)
    assert next(rest).head == head.head
    assert memories_of(rest) == whole[10:17]


def test_an_export_of_an_older_revision_is_refused(client: Client, kb: str) -> None:
    revision = next(export(client, kb)).head.revision
    client.ingest("exported", document("k0", "Text number 0, anew.", "Title 0"))
    with pytest.raises(grpc.RpcError) as caught:
        list(export(client, kb, revision=revision))
    assert refusal(caught.value).reason == "KNOWLEDGE_BASE_CHANGED"


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("nobody's", {}, "KNOWLEDGE_BASE_NOT_FOUND"),
        ("exported", {"model_id": "00" * 32}, "MODEL_MISMATCH"),
        ("exported", {"embedder_id": "00" * 32}, "EMBEDDER_MISMATCH"),
    ],
)
def test_what_the_client_could_not_read_is_not_exported(
    client: Client, kb: str, name: str, more: dict[str, str], reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(export(client, name, **more))
    assert refusal(caught.value).reason == reason


def test_an_empty_knowledge_base_has_a_head_and_no_page(client: Client) -> None:
    client.bases.CreateKnowledgeBase(pb.CreateKnowledgeBaseRequest(name="empty"), timeout=60)
    (head,) = export(client, "empty")
    assert (head.head.memory_count, head.head.id_digest) == (0, 0)
