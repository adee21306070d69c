"""The commands' way to a service."""

import socket
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from memory3.errors import InvalidInput
from memory_service.archive import Archive
from memory_service.cli import app
from memory_service.client.backup import back_up, restore
from memory_service.client.connection import Connection, connected
from memory_service.errors import StoreUnavailable
from memory_service.stores.local.store import LocalStore
from protos.memory.v1 import models_pb2, models_pb2_grpc
from testing.encoders import HashEncoder
from tests.memory_service.running import document, running


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


def test_a_change_whose_answer_was_lost_and_that_is_sent_again_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_next_answer(method: str) -> None:
        change = getattr(LocalStore, method)

        def lost(store: LocalStore, *arguments: object) -> None:
            monkeypatch.setattr(LocalStore, method, change)
            change(store, *arguments)
            raise StoreUnavailable("the answer is lost")

        monkeypatch.setattr(LocalStore, method, lost)

    with running(tmp_path, HashEncoder()) as (client, server):
        address = f"127.0.0.1:{server.port}"

        def command(*words: str) -> tuple[int, str]:
            done = CliRunner().invoke(app, [*words, "--address", address])
            return done.exit_code, "".join(done.stdout.splitlines()[-1:])  # behind what the service logs

        lose_next_answer("create")
        assert command("kb", "create", "kb") == (0, "created kb")
        assert command("kb", "create", "kb")[0] == 1, "it is there already"
        client.ingest("kb", document("a", "Text."), document("b", "Text."))
        back_up(address, "kb", Archive(str(tmp_path / "backups")))
        lose_next_answer("create")
        assert restore(address, "again", Archive(str(tmp_path / "backups"))).documents == 2
        lose_next_answer("delete")
        assert command("documents", "delete", "kb", "a", "b", "--yes") == (0, "deleted 2 documents from kb")
        lose_next_answer("drop")
        assert command("kb", "delete", "kb", "--yes") == (0, "deleted kb")
        assert command("kb", "delete", "kb", "--yes")[0] == 1, "it is gone"
        assert client.names() == ["again", "default"]
