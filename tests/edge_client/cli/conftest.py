"""The command as a test runs it, and the options that every question needs."""

import pytest
from typer.testing import CliRunner, Result

from edge_client.cli.main import app
from memory3.files.bundle import Bundle
from testing.processes import PROGRAMS
from tests.edge_client.fake_service import FakeService

PROGRAM = PROGRAMS / "edge-client"


def run(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin, env={"COLUMNS": "120"})


@pytest.fixture
def places(tiny: Bundle, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setenv("EDGE_CLIENT_MEMORY", "exact")  # the answer does not depend on the machine's speed
    monkeypatch.setenv("EDGE_CLIENT_DEADLINE_S", "30")
    return ["--bundle", tiny.folder, "--service", service.address]
