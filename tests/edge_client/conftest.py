"""One tiny bundle for all tests of the device, and a service that has memories of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client.model import EdgeModel
from memory3.codec.payload import ExplicitMemory
from memory3.files.bundle import Bundle
from memory_model.nn.writing import MemoryWriter
from protos.memory.v1 import models_pb2
from tests.edge_client.fake_service import FakeService, serving
from tests.edge_client.tiny_bundle import format_of, tiny_bundle, tiny_loaded

TEXTS = [
    f"Fact {n}: the code of {name} is {n * 37}."
    for n, name in enumerate(["Oslo", "Rome", "Lima", "Cairo", "Quito", "Paris", "Delhi"])
]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return tiny_bundle(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def written() -> list[ExplicitMemory]:
    """The memories of TEXTS, written by the torch model whose decoder is in the tiny bundle."""
    loaded = tiny_loaded()
    return MemoryWriter(loaded.model, loaded.tokenizer).write([t[:32] for t in TEXTS])


def towns(tiny: Bundle, written: list[ExplicitMemory]) -> FakeService:
    """A service that has memories of TEXTS."""
    manifest = tiny.manifest
    description = models_pb2.DescribeResponse(
        model_id=manifest.model_id,
        codec_id=manifest.codec_id,
        memory_format_id=manifest.memory_format_id,
        embedder_id=manifest.embedder_id,
        service_version="test",
    )
    return FakeService(tiny.embedder(), TEXTS, format_of(tiny_loaded()).encode(written), description=description)


@pytest.fixture
def service(tiny: Bundle, written: list[ExplicitMemory]) -> Iterator[FakeService]:
    with serving(towns(tiny, written)) as running:
        yield running


@pytest.fixture
def model(tiny: Bundle, service: FakeService) -> Iterator[EdgeModel]:
    with EdgeModel.open(tiny.folder, service.address, memory="exact", deadline_s=20) as opened:
        yield opened


@pytest.fixture
def nobody() -> str:
    """An address where nobody answers."""
    return "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BUNDLE", "SERVICE", "KNOWLEDGE_BASE", "THREADS"):
        monkeypatch.delenv(f"EDGE_CLIENT_{name}", raising=False)
    monkeypatch.setenv("EDGE_CLIENT_LOCAL", str(tmp_path / "local"))
