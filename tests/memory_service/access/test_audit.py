"""The audit log: who was refused what."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from memory_service.access.keys import LOOK_AGAIN_S, changing
from protos.memory.v1 import ingestion_pb2, knowledge_bases_pb2
from tests.memory_service.encoders import HashEncoder, vector_of
from tests.memory_service.keyed import new_key, with_key
from tests.memory_service.running import Client, document, running


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_writes_and_administration_that_are_refused_stand_in_the_audit_log(tmp_path: Path) -> None:
    keys, audit = tmp_path / "keys.json", tmp_path / "audit.log"
    reader, ended = new_key(keys, {"*": "read"}, "acme"), new_key(keys, {"*": "admin"}, "acme")
    owner = new_key(keys, {"*": "admin"}, "acme")
    settings = {"keys": keys, "audit_log": audit}
    drop = knowledge_bases_pb2.DeleteKnowledgeBaseRequest(name="kb")
    with running(tmp_path, HashEncoder(), store=f"file://{tmp_path}/s", **settings) as (nobody, _):

        def refused(client: Client, call: Any) -> None:
            with pytest.raises(grpc.RpcError):
                call(client)

        with_key(nobody.channel, owner).ingest("kb", document("a", "A."))
        refused(nobody, lambda client: client.ingest("kb", document("b", "B.")))
        refused(nobody, lambda client: client.retrieve("kb", vector_of("A.")[None]))  # reading is not audited
        with changing(keys) as file:
            file.with_revoked(ended.split("_")[1]).with_quota("acme", 0, 0, 0.001).write(keys)
        time.sleep(LOOK_AGAIN_S * 1.2)
        refused(
            with_key(nobody.channel, ended), lambda client: client.bases.DeleteKnowledgeBase(drop, timeout=60)
        )
        forged = ended[:-1] + ("a" if ended[-1] != "a" else "b")
        refused(
            with_key(nobody.channel, forged),
            lambda client: client.bases.DeleteKnowledgeBase(drop, timeout=60),
        )
        delete = ingestion_pb2.DeleteRequest(knowledge_base="kb", document_keys=["a"])
        for _ in range(2):
            refused(
                with_key(nobody.channel, reader), lambda client: client.ingestion.Delete(delete, timeout=60)
            )
    first, *lines = lines_of(audit)
    assert (first["event"], first["code"], "reason" in first) == ("Ingest", "OK", False)
    assert [(line["event"], line["key"], line["tenant"], line["reason"]) for line in lines] == [
        ("Ingest", None, None, "UNAUTHENTICATED"),
        ("DeleteKnowledgeBase", ended.split("_")[1], "acme", "UNAUTHENTICATED"),
        ("DeleteKnowledgeBase", None, None, "UNAUTHENTICATED"),
        ("Delete", reader.split("_")[1], "acme", "SCOPE_TOO_SMALL"),
        ("Delete", reader.split("_")[1], "acme", "RATE_EXCEEDED"),
    ]
    assert [line["code"] for line in lines[2:]] == [
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
    ]
    assert all(line["peer"] and line["request_id"] for line in lines)
    assert lines[3]["knowledge_base"] == "kb"
    assert ended.split("_", 2)[2] not in audit.read_text()
