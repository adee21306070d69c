from __future__ import annotations

from collections.abc import Iterable

import google_crc32c
import numpy as np
import pytest

from protos.memory.v1 import knowledge_bases_pb2 as pb
from tests.memory_service.encoders import DIMENSION, HashEncoder, payload_of, vector_of
from tests.memory_service.running import Client, document, refused

DOCUMENTS = [document(f"k{n}", f"Text number {n}.", f"Title {n}") for n in range(40)]


@pytest.fixture(scope="module", autouse=True)
def _documents(client: Client) -> None:
    client.ingest("exported", *DOCUMENTS)
    client.ingest("neighbour", document("other", "Another tenant's text."))


def memories_of(responses: Iterable[pb.ExportKnowledgeBaseResponse]) -> list[pb.ExportedMemory]:
    return [memory for response in responses for memory in response.page.memories]


def test_an_export_holds_everything_once_in_the_order_of_ids_and_goes_on_after_one(client: Client) -> None:
    head, *pages = client.export("exported")
    memories = memories_of(pages)
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
    rest = client.export("exported", after_id=ids[9], revision=head.head.revision, limit=7)
    assert next(rest).head == head.head
    assert memories_of(rest) == memories[10:17]


def test_an_export_of_an_older_revision_is_refused(client: Client) -> None:
    revision = next(client.export("exported")).head.revision
    client.ingest("exported", document("k0", "Text number 0, anew.", "Title 0"))
    assert refused(lambda: list(client.export("exported", revision=revision))).reason == "KNOWLEDGE_BASE_CHANGED"


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("nobody's", {}, "KNOWLEDGE_BASE_NOT_FOUND"),
        ("exported", {"model_id": "00" * 32}, "MODEL_MISMATCH"),
        ("exported", {"embedder_id": "00" * 32}, "EMBEDDER_MISMATCH"),
    ],
)
def test_what_the_client_could_not_read_is_not_exported(
    client: Client, name: str, more: dict[str, str], reason: str
) -> None:
    assert refused(lambda: list(client.export(name, **more))).reason == reason


def test_an_empty_knowledge_base_has_a_head_and_no_page(client: Client) -> None:
    client.create("empty")
    (head,) = client.export("empty")
    assert (head.head.memory_count, head.head.id_digest) == (0, 0)
