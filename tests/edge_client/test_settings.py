"""Settings and errors: named, listed and exported once, with what to write instead."""

import os
import re
import subprocess
import sys
from typing import Any, get_type_hints

import pytest

import edge_client
from edge_client import EdgeModel, InvalidInput, errors
from edge_client.serve.access import ServeSettings
from edge_client.settings import EdgeOptions, EdgeSettings
from memory3.errors import Memory3Error

SERVICE = r"setting service \(EDGE_CLIENT_SERVICE\) must be host:port, such as 127.0.0.1:7430 .*, not '{}'"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"service": "nonsense"}, SERVICE.format("nonsense")),
        ({"service": "foo:bar"}, SERVICE.format("foo:bar")),
        ({"servce": "127.0.0.1:1"}, "there is no setting servce; there are: bundle, service, "),
        (
            {"threads": 0},
            r"setting threads \(EDGE_CLIENT_THREADS\) must be a whole number from 1 to 256, or auto, not 0",
        ),
        (
            {"provider": "opengl"},
            r"setting provider \(EDGE_CLIENT_PROVIDER\) must be one of auto, cpu, cuda, tensorrt, torch, not 'opengl'",
        ),
        ({"memory": "maybe"}, "must be 'overlap', 'exact' or 'off', not 'maybe'"),
        ({"deadline_s": -1, "offline": "perhaps"}, "must be greater than 0, not -1; .* must be a valid boolean"),
    ],
)
def test_a_wrong_setting_of_the_sdk_says_what_to_write(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        EdgeModel.open(**given)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_CLIENT_THREADS", "many")
    with pytest.raises(
        InvalidInput, match=r"EDGE_CLIENT_THREADS\) must be a whole number from 1 to 256, or auto, not 'many'"
    ):
        EdgeModel.open()
    monkeypatch.setenv("EDGE_CLIENT_SERVE_ALLOWED_ORIGINS", "http://friend.test")
    with pytest.raises(InvalidInput, match="EDGE_CLIENT_SERVE_ALLOWED_ORIGINS must be a JSON list"):
        ServeSettings()
    monkeypatch.setenv("EDGE_CLIENT_SERVE_ALLOWED_ORIGINS", '["*"]')
    with pytest.raises(InvalidInput, match=r"ALLOWED_ORIGINS\) must be origins, such as \S+, not '\*'"):
        ServeSettings()


def test_the_line_end_of_a_file_with_a_key_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `kubectl create secret --from-file` keeps it."""
    monkeypatch.setenv("EDGE_CLIENT_API_KEY", "m3_x_y\n")
    assert EdgeSettings().channel.metadata == (("authorization", "Bearer m3_x_y"),)


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(InvalidInput, match=r"EDGE_CLIENT_API_KEY\) must be a valid string$"):
        EdgeModel.open(api_key=["s3cret"])


DRAWN = re.findall(r"^      ([A-Z]\w+)  ", errors.__doc__ or "", re.M)


def test_the_public_errors_are_those_that_are_drawn() -> None:
    public = {
        name
        for name in edge_client.__all__
        if isinstance(kind := getattr(edge_client, name), type) and issubclass(kind, Exception)
    }
    assert public == {*DRAWN, "Memory3Error"}


def test_every_error_has_a_reason_that_its_line_names() -> None:
    for name in DRAWN:
        kind = getattr(edge_client, name)
        assert issubclass(kind, Memory3Error)
        if name != "IdentityMismatch":  # its leaves have one each
            assert kind.reason in (errors.__doc__ or ""), name


def test_the_public_names_are_exactly_the_exported_ones() -> None:
    assert edge_client.__all__ == sorted(edge_client._MODULE_OF)
    assert all(getattr(edge_client, name) is not None for name in edge_client.__all__)
    assert {*edge_client.__all__} <= {*dir(edge_client)}
    with pytest.raises(AttributeError, match="Nothing"):
        _ = edge_client.Nothing


@pytest.mark.parametrize(("module", "level"), [("edge_client.model", "None"), ("edge_client.cli.main", "NONE")])
def test_the_command_alone_silences_grpc(module: str, level: str) -> None:
    code = f"import os, {module}; print(os.environ.get('GRPC_VERBOSITY'))"
    without = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    done = subprocess.run([sys.executable, "-c", code], env=without, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [level]


def test_what_an_editor_completes_are_the_settings() -> None:
    assert {*get_type_hints(EdgeOptions), "bundle", "service"} == set(EdgeSettings.model_fields)
