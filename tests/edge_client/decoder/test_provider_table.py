"""The recipe of CONTRIBUTING for a provider: one class and one row, and everything that names providers knows it."""

import pytest

from edge_client import EdgeModel
from edge_client.cli.doctor import device_checks
from edge_client.cli.verify import compared
from edge_client.decoder.providers import PROVIDERS, execution_providers, open_decoder, provider_names
from edge_client.decoder.providers.cpu import CpuProvider
from edge_client.errors import ProviderError
from edge_client.settings import EdgeSettings
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory3.runtime.embedder import CPU_ALONE
from testing.programs import ROOT


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


def test_embedder_and_writer_run_where_the_decoder_does(
    example: ExampleProvider, tiny: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beside the CPU, the runtime's wheels have one of remote models, which takes no operator of theirs.
    monkeypatch.setattr(example, "execution_providers", lambda: [("AzureExecutionProvider", {}), *CPU_ALONE])
    with EdgeModel.open(tiny.folder, provider="example", threads=1, offline=True) as model:
        engine = model.engine
        assert len(engine.writer.write(["Oslo is a town."]).payloads) == 1
        for session in (engine.recaller.embedder._session, engine.writer._session):
            assert session.get_providers()[0] == "AzureExecutionProvider"


def test_what_is_missing_for_a_named_provider_is_said_and_auto_passes_it_over(
    example: ExampleProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "missing", lambda: "no such device")
    with pytest.raises(ProviderError, match="provider example: no such device"):
        execution_providers("example")
    assert execution_providers("auto")[-1] == CPU_ALONE[-1]


def test_every_provider_is_a_file_named_like_its_row() -> None:
    folder = ROOT / "edge_client" / "decoder" / "providers"
    assert {*PROVIDERS} == {path.stem for path in folder.glob("*.py")} - {"__init__", "provider", "nvidia"}
