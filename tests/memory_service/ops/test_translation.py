"""A knowledge base of an earlier model: read through a translation, written again in the background, then ours."""

from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import pytest

from memory_service.encoder import EncodedReferences
from memory_service.ops import rewriting
from protos.memory.v1 import knowledge_bases_pb2 as pb
from protos.memory.v1 import operations_pb2
from testing.encoders import HashEncoder, payload_of
from tests.memory_service.encoders import NEW, OLD, Earlier, Later
from tests.memory_service.running import Client, document, eventually, reason_of, refused, running


def model_of(client: Client) -> str:
    return client.bases.GetKnowledgeBase(pb.GetKnowledgeBaseRequest(name="kb"), timeout=60).knowledge_base.model_id


def operation(client: Client) -> operations_pb2.Operation:
    request = operations_pb2.GetOperationRequest(name="rewrite-memories/kb")
    return client.operations.GetOperation(request, timeout=60).operation


def counts(client: Client) -> tuple[int, int, int]:
    found = operation(client).progress
    return found.documents_done, found.documents_left, found.documents_failed


@pytest.mark.parametrize("engine", ["file", "chdb"])
def test_memories_are_translated_when_read_and_rewritten_the_most_read_first(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "_SHUFFLED_KEYS", 4)
    settings = {"store": f"{engine}://{tmp_path}/store", "warm_up": False}
    with running(tmp_path, Earlier(), **settings) as (client, _):
        client.ingest("kb", *(document(f"d{n:03}", f"Text {n}.") for n in range(20)))
        assert operation(client).done
        for _ in range(3):
            client.hits("kb", "Text 7.", 1)
    later = Later()
    with running(tmp_path, later, **settings) as (client, _):
        hit = client.hits("kb", "Text 7.", 1)[0]
        old = payload_of("Text 7.", OLD)
        assert hit.payload == later.own(old)
        assert hit.payload_crc32c == google_crc32c.value(hit.payload)
        held = client.hits("kb", "Text 7.", 1, held_ids=[hit.memory_id])[0]
        assert (held.held, held.payload) == (True, b"")
        assert held.payload_crc32c == hit.payload_crc32c, "of what the device holds"
        pages = [one.page for one in client.export("kb") if one.HasField("page")]
        exported = {one.text: one for page in pages for one in page.memories}
        assert exported["Text 7."].payload == hit.payload
        assert exported["Text 7."].payload_crc32c == hit.payload_crc32c
        assert model_of(client) == NEW
        assert not operation(client).done
        later.let_go.set()
        eventually(lambda: operation(client).done)
        assert "Text 7." in later.wrote[:4], "read most, and only a few are shuffled"
        assert sorted(later.wrote) == sorted(f"Text {n}." for n in range(20)), "each once"
        assert client.hits("kb", "Text 7.", 1)[0].payload == payload_of("Text 7.", NEW)
        assert operation(client).progress.documents_done == 20
    after = HashEncoder("new")
    with running(tmp_path, after, **settings) as (client, _):  # without the translation
        assert client.hits("kb", "Text 3.", 1)[0].payload == payload_of("Text 3.", NEW)


def test_rewriting_goes_on_after_a_restart_and_takes_what_was_written_meanwhile(tmp_path: Path) -> None:
    with running(tmp_path, Earlier(), warm_up=False) as (client, _):
        client.ingest("kb", *(document(f"d{n}", f"Text {n}.") for n in range(40)))
    stopped = Later()
    with running(tmp_path, stopped, warm_up=False) as (client, server):
        stopped.stopping = server._draining.is_set
        assert stopped.asked.wait(60)
        assert operation(client).progress.documents_left == 40
    assert 0 < len(stopped.wrote) < 40, "the documents at hand"
    second = Later()
    second.let_go.set()
    with running(tmp_path, second, warm_up=False) as (client, _):
        client.ingest("kb", document("d1", "Another text."))
        eventually(lambda: operation(client).done)
        found = {hit.document_key: hit.payload for hit in client.hits("kb", "x", k=100)}
        texts = {f"d{n}": f"Text {n}." for n in range(40)} | {"d1": "Another text."}
        assert found == {key: payload_of(text, NEW) for key, text in texts.items()}


def test_a_document_that_the_model_fails_on_stays_translated_and_is_named(tmp_path: Path) -> None:
    with running(tmp_path, Earlier(), warm_up=False) as (client, _):
        client.ingest("kb", document("a", "First."), document("b", "It is broken."), document("c", "Third."))
    later = Later()
    later.let_go.set()
    with running(tmp_path, later, warm_up=False) as (client, _):
        eventually(lambda: counts(client) == (2, 1, 1))
        assert not operation(client).done
        assert "'b'" in operation(client).problem
        assert client.hits("kb", "It is broken.", 1)[0].payload == later.own(payload_of("It is broken.", OLD))
        assert client.hits("kb", "Third.", 1)[0].payload == payload_of("Third.", NEW)


class Smaller(Earlier):
    """Payloads of 100 bytes."""

    def encode(self, references: Sequence[str]) -> EncodedReferences:
        made = super().encode(references)
        return EncodedReferences(made.vectors, [payload[:100] for payload in made.payloads])


def test_larger_memories_of_a_tenant_at_its_quota_are_rewritten_all_the_same(tmp_path: Path) -> None:
    with running(tmp_path, Smaller(), warm_up=False) as (client, _):
        client.ingest("acme/kb", *(document(f"d{n}", f"Text {n}.") for n in range(4)))
    later = Later()
    later.let_go.set()
    with running(tmp_path, later, warm_up=False, quota_bytes=1000) as (client, _):
        request = operations_pb2.GetOperationRequest(name="rewrite-memories/acme/kb")
        eventually(lambda: client.operations.GetOperation(request, timeout=60).operation.done)
        assert sorted(later.wrote) == [f"Text {n}." for n in range(4)], "each once"
        full = client.ingest("acme/kb", document("more", "Text."))[-1].failed
        assert reason_of(full) == "QUOTA_EXCEEDED"


def test_without_a_translation_an_earlier_or_later_model_is_refused_by_name(tmp_path: Path) -> None:
    with running(tmp_path, Earlier(), warm_up=False) as (client, _):
        client.ingest("kb", document("a", "First."), document("b", "Second."))
    with running(tmp_path, HashEncoder("new"), warm_up=False) as (client, _):
        assert refused(lambda: client.hits("kb", "First.", 1)).reason == "MODEL_MISMATCH"
    later = Later()
    with running(tmp_path, later, warm_up=False) as (client, _):
        later.let_go.set()
        client.ingest("kb", document("c", "Third."))
        eventually(lambda: operation(client).done)
    with running(tmp_path, Earlier(), warm_up=False) as (client, _):
        assert refused(lambda: client.hits("kb", "Third.", 1)).reason == "MODEL_MISMATCH"
