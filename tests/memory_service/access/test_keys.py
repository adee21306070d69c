"""The key file: what changes it, who may read it, and what the service reads of it meanwhile."""

import errno
import os
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from memory3.errors import CorruptFile, MissingFile
from memory_service.access.authorization import Scope
from memory_service.access.keys import KeyFile, KeyRing, changing
from memory_service.access.quotas import Quota
from memory_service.cli import app
from memory_service.errors import Unauthenticated
from tests.memory_service.keyed import new_key


def test_a_damaged_key_file_changes_nothing_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = new_key(path, {"kb": "read"}, "t")
    ring = KeyRing(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert ring.access_of(f"Bearer {secret}").grants == {"kb": Scope.READ}
    with pytest.raises(CorruptFile, match="is no key file"):
        KeyRing(path)
    path.unlink()
    with pytest.raises(MissingFile, match="keys create"):
        KeyRing(path)


def test_a_key_file_that_cannot_be_read_counts_once_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights and descriptors that are missing for a while change neither the time nor the size of the file."""
    path = tmp_path / "keys.json"
    secret = new_key(path, {"kb": "read"}, "t")
    ring, header, read_bytes = KeyRing(path), f"Bearer {secret}", Path.read_bytes
    with changing(path) as file:
        file.with_revoked(secret.split("_")[1]).write(path)

    def denied(of: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(of))

    monkeypatch.setattr(Path, "read_bytes", denied)
    with structlog.testing.capture_logs() as logs:
        assert [ring.access_of(header).tenant for _ in range(3)] == ["t"] * 3
    assert [log["event"] for log in logs] == ["keys_not_read_again"]
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(Unauthenticated):
        ring.access_of(header)


def test_a_change_keeps_the_owner_and_the_mode_of_the_file(tmp_path: Path) -> None:
    """The service may be another user than the one who revokes a key."""
    path, owner = tmp_path / "keys.json", 65534 if os.geteuid() == 0 else os.geteuid()
    new_key(path, {"*": "read"})
    os.chown(path, owner, -1)
    path.chmod(0o640)
    new_key(path, {"*": "admin"})
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (owner, 0o640)
    assert len(KeyFile.read(path).keys) == 2


def test_a_key_that_is_revoked_by_a_link_to_the_file_opens_nothing_more(tmp_path: Path) -> None:
    path, link = tmp_path / "etc" / "keys.json", tmp_path / "keys.json"
    secret = new_key(path, {"*": "read"})
    link.symlink_to(path)
    ring = KeyRing(path)
    key = ring.access_of(f"Bearer {secret}").key_id
    assert CliRunner().invoke(app, ["keys", "revoke", key, "--keys", str(link)]).exit_code == 0
    assert (link.is_symlink(), [one.name for one in tmp_path.iterdir() if one.is_file()]) == (True, ["keys.json"])
    with pytest.raises(Unauthenticated):
        ring.access_of(f"Bearer {secret}")


def test_a_limit_that_is_not_named_stays_as_it_is(tmp_path: Path) -> None:
    path, default = tmp_path / "keys.json", Quota(references=5, bytes=6, requests_per_s=7.0)
    new_key(path, {"*": "read"})

    def quota(*options: str) -> str:
        return CliRunner().invoke(app, ["keys", "quota", "acme", *options, "--keys", str(path)]).stdout

    assert (
        quota("--bytes", "0") == "acme: references: the service's default, bytes: no limit,"
        " calls per second: the service's default\n"
    )
    quota("--requests-per-s", "2.5")
    assert quota("--references", "2000000") == "acme: references: 2,000,000, bytes: no limit, calls per second: 2.5\n"
    ring = KeyRing(path)
    assert ring.quota_of("acme", default) == Quota(references=2_000_000, bytes=0, requests_per_s=2.5)
    assert ring.quota_of("rival", default) == default


def test_the_commands_change_a_file_that_keeps_no_secret_and_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    def keys(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["keys", *words, "--keys", str(path)], env={"COLUMNS": "200"})
        return done.exit_code, done.stdout

    code, secret = keys("create", "phones", "--grant", "notes:read", "--tenant", "acme", "--expires-days", "1")
    prefix, key_id, hidden = secret.strip().split("_", 2)
    assert (code, prefix, hidden in path.read_text()) == (0, "m3", False)
    assert path.stat().st_mode & 0o077 == 0
    assert KeyRing(path).access_of(f"Bearer {secret}").tenant == "acme"
    assert keys("certificate", "phone.example", "--tenant", "acme", "--grant", "handbook:read")[0] == 0
    assert keys("quota", "acme", "--references", "7")[0] == 0
    assert KeyFile.read(path).quotas["acme"].references == 7
    listed = keys("list")[1]
    assert all(part in listed for part in ("phones", "notes:read", "active", "phone.example", "handbook:read"))
    assert keys("revoke", key_id)[0] == keys("certificate", "phone.example")[0] == 0
    assert "revoked" in keys("list")[1]
    assert KeyFile.read(path).certificates == ()
    for wrong in (
        ("create", "x", "--grant", "notes:owner"),
        ("create", "x", "--grant", "notes"),
        ("revoke", "nope"),
        ("certificate", "phone.example"),
        ("quota", "a/b"),
        ("quota", "acme", "--requests-per-s", "inf"),
    ):
        assert keys(*wrong)[0] == 1, wrong
    assert keys("create", "x", "--grant", "notes:read", "--expires-days", "1000000000")[0] == 2
    assert KeyFile.read(path).quotas["acme"].references == 7
    path = path / "below-a-file"
    refused = CliRunner().invoke(app, ["keys", "revoke", "x", "--keys", str(path)])
    assert (refused.exit_code, f"error: {path.parent}: " in refused.stderr) == (1, True)
