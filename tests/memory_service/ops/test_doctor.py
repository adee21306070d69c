"""`memory-service doctor`: every harm is found, named, and comes with what to do; nothing is changed by looking."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from memory_service.access.keys import changing
from memory_service.ops.doctor import Finding, check_files, check_service, check_store
from memory_service.settings import Settings
from memory_service.stores import open_store
from tests.edge_client.certificates import Authority
from tests.memory_service.encoders import HashEncoder
from tests.memory_service.keyed import new_key
from tests.memory_service.running import document as sent
from tests.memory_service.running import running
from tests.memory_service.stored import IDENTITY, document


def files(folder: Path) -> dict[str, Any]:
    """Settings whose files are as they should be."""
    authority = Authority("authority")
    (folder / "ca.pem").write_bytes(authority.certificate)
    certificate, key = authority.issue("service", "127.0.0.1", days=300).files(folder, "service")
    key.chmod(0o600)
    new_key(folder / "keys.json", {"*": "admin"})
    audit = folder / "audit.log"
    audit.touch(0o600)
    return {
        "keys": folder / "keys.json", "tls_certificate": certificate, "tls_key": key, "audit_log": audit,
        "store": f"file://{folder}/store", "listen": "0.0.0.0:1",
    }  # fmt: skip


def states(settings: dict[str, Any]) -> dict[str, list[Finding]]:
    """Findings by state; whatever is not well must say what to do."""
    found: dict[str, list[Finding]] = {"ok": [], "look": [], "bad": []}
    for finding in check_files(Settings(**settings)):
        found[finding.state].append(finding)
        assert (finding.state == "ok") == (finding.remedy == "")
    return found


def test_files_as_they_should_be_are_well(tmp_path: Path) -> None:
    found = states(files(tmp_path))
    assert not found["bad"] + found["look"], found
    assert [finding.what.split()[0] for finding in found["ok"]] == [
        "keys",
        f"{tmp_path}/service.pem:",
    ]
    assert check_files(Settings()) == []


def no_keys(folder: Path, settings: dict[str, Any]) -> None:
    settings["keys"].unlink()


def half_a_key_file(folder: Path, settings: dict[str, Any]) -> None:
    settings["keys"].write_bytes(settings["keys"].read_bytes()[:-20])


def only_expired_keys(folder: Path, settings: dict[str, Any]) -> None:
    settings["keys"].unlink()
    with changing(settings["keys"]) as file:
        file.with_new("old", "", {"*": "read"}, timedelta(days=-1))[0].write(settings["keys"])


def an_ended_certificate(folder: Path, settings: dict[str, Any]) -> None:
    Authority("authority").issue("service", days=-1).files(folder, "service")


def an_ended_authority(folder: Path, settings: dict[str, Any]) -> None:
    (folder / "clients.pem").write_bytes(Authority("a").issue("clients", days=-1).certificate)
    settings["tls_client_ca"] = folder / "clients.pem"


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (no_keys, "no key file"), (half_a_key_file, "is no key file"), (only_expired_keys, "0 of 1 keys active"),
        (an_ended_certificate, "good from"), (an_ended_authority, "good from"),
    ],
)  # fmt: skip
def test_each_harm_is_found_and_named(
    tmp_path: Path, harm: Callable[[Path, dict[str, Any]], None], says: str
) -> None:
    settings = files(tmp_path)
    harm(tmp_path, settings)
    (bad,) = states(settings)["bad"]
    assert says in bad.found


def test_what_will_be_wrong_soon_is_said(tmp_path: Path) -> None:
    settings = files(tmp_path)
    Authority("authority").issue("service", days=3).files(tmp_path, "service")
    with changing(settings["keys"]) as file:
        file.with_new("phones", "", {"*": "read"}, timedelta(days=2))[0].write(settings["keys"])
    found = states(settings)
    assert not found["bad"]
    assert [finding.what.split()[0] for finding in found["look"]] == [
        "key",
        f"{tmp_path}/service.pem:",
    ]


def test_a_server_that_is_not_there_is_not_said_to_be_open_elsewhere() -> None:
    (finding,) = check_store("clickhouse://127.0.0.1:1/none")
    assert finding.state == "bad"
    assert "are server, address and password" in finding.remedy


@pytest.mark.parametrize("engine", ["file", pytest.param("chdb", marks=pytest.mark.slow)])
def test_a_store_is_looked_at_base_by_base(tmp_path: Path, engine: str) -> None:
    url = f"{engine}://{tmp_path}/store"
    (missing,) = check_store(url)
    assert (missing.state, missing.found) == ("bad", "there is none")
    assert not (tmp_path / "store").exists()
    store = open_store(url)
    store.write(store.create("kb", "", IDENTITY), [document("a", "one", "two")])
    store.close()
    opened, base = check_store(url, deep=True)
    assert (opened.state, base.state) == ("ok", "ok")
    assert "1 documents, 2 memories: every checksum compared" in base.found


def test_a_service_is_asked_for_its_health_its_model_and_its_damage(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    with running(tmp_path, HashEncoder(), store=store) as (client, _):
        client.ingest("harmed", sent("a", "A."))
        client.ingest("sound", sent("b", "B."))
    (data,) = [path for path in tmp_path.rglob("documents.sqlite3") if "kb-000002" in path.parts]
    data.write_bytes(data.read_bytes()[:-20_000])
    with running(tmp_path, HashEncoder(), store=store, health_interval_s=0.1) as (_, server):
        address = f"127.0.0.1:{server.port}"
        (bad,) = [finding for finding in check_service(address) if finding.state == "bad"]
        assert bad.what == "knowledge base harmed"
        assert "restore it from a backup" in bad.remedy
