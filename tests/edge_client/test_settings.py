"""A wrong setting is named with its environment variable, and with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from edge_client import EdgeModel, InvalidInput
from edge_client.serve.access import ServeSettings

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


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(InvalidInput, match=r"EDGE_CLIENT_API_KEY\) must be a valid string$"):
        EdgeModel.open(api_key=["s3cret"])
