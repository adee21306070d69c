import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memory3.errors import InvalidInput, MissingFile
from memory_service.cli import app
from memory_service.client.connection import Connection
from memory_service.settings import CONFIG_VARIABLE, Settings, load_settings
from memory_service.telemetry.metrics import metrics_port


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, "")


def test_the_command_line_wins_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('listen = "file:1"\nstore = "chdb:///file"\nmax_k = 7\n')
    monkeypatch.setenv("MEMORY_SERVICE_STORE", "chdb:///environment")
    monkeypatch.setenv("MEMORY_SERVICE_LISTEN", "environment:1")
    settings = load_settings(file, {"listen": "line:1"})
    assert (settings.listen, settings.store, settings.max_k) == ("line:1", "chdb:///environment", 7)


def test_the_help_of_serve_lists_every_setting() -> None:
    """Whoever gives an unknown one, or writes values of the chart, is sent there."""
    with pytest.raises(InvalidInput, match="`memory-service serve --help` lists them"):
        load_settings(None, {"max_kk": 1})
    text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    lines = [line.strip() for line in text.splitlines()]
    missing = {name for name in Settings.model_fields if not any(line.startswith(f"{name}: ") for line in lines)}
    assert not missing
    assert "max_k: most memories per query (100)" in lines


@pytest.mark.parametrize(
    "text", ["max_k = 0\n", "unknown = 1\n", "not toml", "store_timeout_s = inf\n", 'listen = "nonsense"\n', None]
)
def test_wrong_settings_and_a_missing_file_are_named(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "settings.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises((InvalidInput, MissingFile), match=r"settings\.toml" if text is None else "settings"):
        load_settings(file, {})


def test_a_port_that_no_machine_has_is_refused() -> None:
    loop = asyncio.new_event_loop()
    with pytest.raises(InvalidInput, match="99999"), metrics_port("127.0.0.1:99999", loop):
        pass
    loop.close()


def test_a_wrong_setting_is_named_and_no_secret_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('max_k = 0\nstore_pasword = "s3cret"\nstore_password = ["s3cret"]\n')
    with pytest.raises(InvalidInput, match=r"max_k \(MEMORY_SERVICE_MAX_K\): .* \(got 0\)") as caught:
        load_settings(file, {})
    assert "there is no setting store_pasword" in str(caught.value)
    assert "MEMORY_SERVICE_STORE_PASSWORD" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    monkeypatch.setenv("MEMORY_SERVICE_CLIENT_API_KEY", "m3_x_y\n")  # of a file
    key = Connection().api_key
    assert key is not None
    assert key.get_secret_value() == "m3_x_y"
    monkeypatch.setenv("MEMORY_SERVICE_CLIENT_TLS", "perhaps")
    with pytest.raises(InvalidInput, match=r"MEMORY_SERVICE_CLIENT_TLS\): .* \(got 'perhaps'\)"):
        Connection()
