"""The recipe of CONTRIBUTING for a provider: one class and one row, and everything that names providers knows it."""

from pathlib import Path

import pytest

from edge_client.cli.doctor import device_checks
from edge_client.cli.verify import compared
from edge_client.decoder.providers import PROVIDERS, open_decoder, provider_names
from edge_client.decoder.providers.cpu import CpuProvider
from edge_client.local.writer import MemoryWriter
from edge_client.settings import EdgeSettings
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle


class ExampleProvider(CpuProvider):
    """The CPU under another name."""

    name = "example"
    tolerance = 0.07


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ExampleProvider:
    row = ExampleProvider()
    with pytest.raises(InvalidInput, match="provider"):
        EdgeSettings(provider=row.name)
    monkeypatch.setitem(PROVIDERS, row.name, row)
    return row


def test_a_row_of_the_table_is_a_setting_and_is_checked_and_verified(example: ExampleProvider, tiny: Bundle) -> None:
    assert EdgeSettings(provider="example").provider == "example"
    assert "example" in provider_names()
    assert open_decoder(tiny.decoder, provider="example", threads=1).provider == "example"
    checks = {check.what: check for check in device_checks("example", 1)}
    assert checks["provider example"].ok is True
    rows = [row for row in compared(tiny, steps=2) if row.provider == "example"]
    assert [(row.memory, row.failed) for row in rows] == [(False, False), (True, False)]
    assert all(row.error is not None and row.error <= example.tolerance for row in rows)


@pytest.mark.usefixtures("example")
def test_writer_and_embedder_run_on_a_provider_of_the_runtime(tiny: Bundle) -> None:
    chain = PROVIDERS["example"].execution_providers()
    embedder = tiny.embedder(execution_providers=chain)
    written = MemoryWriter(tiny, provider="example", embedder=embedder).write(["Oslo is a town."])
    assert len(written.payloads) == len(written.vectors) == 1
    with pytest.raises(InvalidInput, match="torch runs only the decoder"):
        MemoryWriter(tiny, provider="torch")


def test_every_provider_is_a_file_named_like_its_row() -> None:
    folder = Path(__file__).parents[3] / "edge_client" / "decoder" / "providers"
    assert {*PROVIDERS} == {path.stem for path in folder.glob("*.py")} - {"__init__", "provider", "nvidia"}
