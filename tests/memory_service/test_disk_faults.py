"""Errors of the operating system are no damage: a knowledge base is unavailable for so long, and opened by itself."""

import resource
from pathlib import Path

import pytest

from memory_service.api.server import raise_descriptor_limit
from memory_service.stores.local import knowledge_base
from protos.memory.v1 import knowledge_bases_pb2 as pb
from testing.encoders import HashEncoder, payload_of
from tests.disk_faults.programs import require_nothing_breaks
from tests.memory_service.encoders import Earlier, Gated, Later
from tests.memory_service.running import Client, document, eventually, ingest_later, operation, refused, running


@pytest.mark.parametrize("depth", [1, pytest.param(12, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_failed_calls_at_any_file_of_the_local_store_are_no_damage_and_pass(tmp_path: Path, depth: int) -> None:
    require_nothing_breaks("local_store", 2, tmp_path, depth)


def state(client: Client, kb: str) -> str:
    base = client.bases.GetKnowledgeBase(pb.GetKnowledgeBaseRequest(name=kb), timeout=60).knowledge_base
    return pb.KnowledgeBaseState.Name(base.state).removeprefix("KNOWLEDGE_BASE_STATE_")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the disk of `kb` is full."""
    full = [False]
    opened = knowledge_base.Database.__init__

    def failing(database: knowledge_base.Database, path: Path, *more: object) -> None:
        if full[0] and "-kb" in str(path):
            raise OSError(28, "No space left on device")
        opened(database, path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(knowledge_base.Database, "__init__", failing)
    return full


def test_a_knowledge_base_that_cannot_be_opened_is_unavailable_until_it_can(tmp_path: Path, full: list[bool]) -> None:
    with running(tmp_path, HashEncoder()) as (client, _):
        client.ingest("kb", document("a", "Text."))
    full[0] = True
    with running(tmp_path, HashEncoder(), health_interval_s=0.05) as (client, _):
        assert state(client, "kb") == "UNAVAILABLE"
        assert state(client, "default") == "READY"
        refusal = refused(lambda: client.hits("kb", "Text."))
        assert refusal.reason == "STORE_UNAVAILABLE"
        assert "delete" not in refusal.message
        assert refused(lambda: client.statistics("kb")).reason == "STORE_UNAVAILABLE"
        full[0] = False
        eventually(lambda: state(client, "kb") == "READY")
        assert client.keys("kb") == ["a"]
        client.ingest("kb", document("b", "More."))
        assert client.counts("kb") == (2, 2)


@pytest.mark.parametrize("left_by", ["a cold start", "an earlier model"])
def test_what_is_left_to_write_is_written_once_the_knowledge_base_can_be_opened(
    tmp_path: Path, full: list[bool], left_by: str
) -> None:
    first, second = (Gated(), Gated()) if left_by == "a cold start" else (Earlier(), Later())
    with running(tmp_path, first, warm_up=False) as (client, server):
        if isinstance(first, Gated):
            first.stopping = server._draining.is_set
            ingest_later(client, "kb", *(document(f"d{n}", f"Text {n}.") for n in range(40)))
        else:
            client.ingest("kb", document("a", "Text."))
    full[0] = True
    second.let_go.set()
    what = "write-memories" if isinstance(first, Gated) else "rewrite-memories"
    with running(tmp_path, second, warm_up=False, health_interval_s=0.05) as (client, server):
        assert state(client, "kb") == "UNAVAILABLE"
        looked = operation(client, what=what)
        assert not looked.done
        assert looked.problem
        full[0] = False
        eventually(lambda: state(client, "kb") == "READY" and operation(client, what=what).done)
        (hit,) = client.hits("kb", "Text.", 1, return_text=True)
        assert hit.payload == payload_of(hit.text, second.description.identity.model_id)


def test_the_soft_limit_of_descriptors_is_raised_at_start() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        assert raise_descriptor_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
