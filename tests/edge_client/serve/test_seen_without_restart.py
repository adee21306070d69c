"""What another process remembers or pulls is read by a server and a chat that run already."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from memory3.files.bundle import Bundle
from testing.processes import AppProcess
from tests.edge_client.http_calls import call, post
from tests.memory_service.running import eventually

PACK = """
import dataclasses, sys
from pathlib import Path
from edge_client.local.folder import install
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.writer import MemoryWriter
from google_crc32c import value
from memory3.files.bundle import Bundle
from memory3.files.knowledge_file import Head, Reference

folder, text = Path(sys.argv[2]), sys.argv[3]
bundle = Bundle.open(sys.argv[1])
writer = MemoryWriter(bundle)
written = writer.write([text])
head = Head.of("default", bundle.identity, bundle.manifest.embedder_id, writer.embedder.dim)
base = LocalKnowledgeBase.create(folder / "collected", dataclasses.replace(head, memories=1))
payload = written.payloads[0]
base.append([Reference(int(sys.argv[4]), "town", "", 0, text, written.vectors[0], payload, value(payload))])
base.merge_journal()
base.close()
install(folder / "collected", folder / "default.memories")
"""
"""Installs a pack of one memory as `edge-client pull --kb default` does."""


def program(*arguments: object) -> None:
    subprocess.run([sys.executable, *map(str, arguments)], check=True, capture_output=True, timeout=300)


def remember(bundle: Bundle, file: Path, local: Path, *options: str) -> None:
    command = ["-m", "edge_client.cli.main", "remember", file, "--bundle", bundle.folder, "--local", local]
    program(*command, *options)


def read(server: AppProcess) -> dict[str, str]:
    """What a question reads, by knowledge base."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Which town?"}], "max_tokens": 1}
    chunks = post(server, {**body, "memory": {"texts": True}}).json()["memory"]["chunks"]
    return {hit["knowledge_base"]: hit["text"] for chunk in chunks for hit in chunk["read"]}


def test_a_server_sees_folders_and_packs_that_come_and_change_while_it_runs(tiny: Bundle, tmp_path: Path) -> None:
    local, note = tmp_path / "local", tmp_path / "n.txt"  # there is no such folder yet
    note.write_text("Lima is a town.")
    settings = {"EDGE_CLIENT_MEMORY": "exact", "EDGE_CLIENT_DEADLINE_S": "20"}
    with AppProcess.start(tmp_path, tiny.folder, "127.0.0.1:1", environment=settings) as server:
        assert (read(server), call(server.port, "GET", "/v1/local").json()["data"]) == ({}, [])
        remember(tiny, note, local, "--kb", "towns")
        assert read(server) == {"towns": "n\nLima is a town."}
        assert [one["knowledge_base"] for one in call(server.port, "GET", "/v1/local").json()["data"]] == ["towns"]
        for number, text in enumerate(("Oslo is a town.", "Rome is a town."), 1):  # the second replaces the first
            program("-c", PACK, tiny.folder, local, text, number)
            assert read(server) == {"towns": "n\nLima is a town.", "default": text}
        (local / "towns.memories").unlink()
        assert read(server) == {"default": "Rome is a town."}


def test_a_chat_sees_what_is_remembered_while_it_runs(tiny: Bundle, tmp_path: Path) -> None:
    local, note, shown = tmp_path / "local", tmp_path / "n.txt", tmp_path / "shown"
    note.write_text("Lima is a town.")
    command = [sys.executable, "-m", "edge_client.cli.main", "chat", "--offline", "--memory", "exact"]
    options = ["--bundle", str(tiny.folder), "--local", str(local), "--max-tokens", "1"]
    with (
        shown.open("w") as log,
        subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True) as chat,
    ):
        assert chat.stdin is not None

        def typed(*lines: str) -> None:
            assert chat.stdin is not None
            chat.stdin.write("".join(f"{line}\n" for line in lines))
            chat.stdin.flush()

        typed("/documents", "/system First")
        eventually(lambda: "a new conversation" in shown.read_text())
        assert "n.txt" not in shown.read_text()
        remember(tiny, note, local)
        typed("/documents", "Which town?", "/memories", "/quit")
        assert chat.wait(120) == 0
    assert f"mine: {note.resolve()}, 1 memory" in shown.read_text()
    assert "mine: n #0" in shown.read_text()
