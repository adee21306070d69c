"""One server for all tests of the room, over a service that has memories of the tiny bundle."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from memory3.codec.payload import ExplicitMemory
from memory3.files.bundle import Bundle
from testing.processes import AppProcess
from tests.edge_client.conftest import towns
from tests.edge_client.fake_service import FakeService, serving


@pytest.fixture(scope="package")
def memories(tiny: Bundle, written: list[ExplicitMemory]) -> Iterator[FakeService]:
    """The service, the same for all tests of this room."""
    with serving(towns(tiny, written)) as running:
        yield running


@pytest.fixture(scope="package")
def server(tiny: Bundle, memories: FakeService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    settings = {
        "EDGE_CLIENT_MEMORY": "exact",
        "EDGE_CLIENT_DEADLINE_S": "20",
        "EDGE_CLIENT_PARALLEL": "1",
        "EDGE_CLIENT_SERVE_WAITING": "2",
        "EDGE_CLIENT_SERVE_ALLOWED_ORIGINS": '["http://friend.test", "app://obsidian.md"]',
    }
    folder = tmp_path_factory.mktemp("serve")
    with AppProcess.start(folder, tiny.folder, memories.address, environment=settings) as running:
        yield running
    assert "Traceback" not in running.log.read_text()


@pytest.fixture
def client(server: AppProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as opened:
        yield opened
