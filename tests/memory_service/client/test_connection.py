"""The commands' way to a service."""

import socket
from pathlib import Path

import pytest
from pydantic import SecretStr

from memory3.errors import InvalidInput
from memory_service.client.connection import Connection, connected
from protos.memory.v1 import models_pb2, models_pb2_grpc
from testing.encoders import HashEncoder
from tests.memory_service.running import running


def test_a_proxy_is_not_asked_for_a_service_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s") as (_, server), socket.socket() as unanswered:
        unanswered.bind(("127.0.0.1", 0))
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{unanswered.getsockname()[1]}")
        with connected(f"localhost:{server.port}") as channel:
            models_pb2_grpc.ModelsStub(channel).Describe(models_pb2.DescribeRequest(), timeout=20)


def test_a_key_in_plain_text_is_refused_by_the_commands_own_variables() -> None:
    connection = Connection(api_key=SecretStr("m3_key_secret"))
    with pytest.raises(InvalidInput, match="MEMORY_SERVICE_CLIENT_TLS=1"):
        connection.channel("service.example:7430")
    with pytest.raises(InvalidInput, match="MEMORY_SERVICE_CLIENT_CERTIFICATE"):
        Connection(certificate=Path("client.pem")).channel("service.example:7430")
