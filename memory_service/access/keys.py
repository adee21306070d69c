"""API keys: a file of their hashes that commands change and the service reads again without a restart.

A key is `m3_<id>_<secret>`; the secret has 256 random bits and is shown once. The file keeps its SHA-256: no
slow hash is needed for what cannot be guessed, and every call is checked in microseconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_service.access.authorization import Access, Scope
from memory_service.access.quotas import Quota
from memory_service.errors import Unauthenticated
from memory_service.ops.logs import logger

LOOK_AGAIN_S = 0.5
"""A change of the file is seen by calls that come so much later."""
_PREFIX = "m3"
_NOBODYS_SECRET = hashlib.sha256(b"").hexdigest()
_REFUSAL = "the API key is missing, unknown, revoked or has ended: send `authorization: Bearer m3_…`"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
BaseName = Annotated[
    str, Field(pattern=r"^(\*|([A-Za-z0-9][A-Za-z0-9_.-]{0,63}/)?[A-Za-z0-9][A-Za-z0-9_.-]{0,63})$")
]
ScopeName = Literal["read", "write", "admin"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ApiKey(_Record):
    """One key. sha256: of its secret, hexadecimal. tenant: empty for the operator's. Times are UTC."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    name: Annotated[str, Field(max_length=200)]
    tenant: Name | Literal[""] = ""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    grants: dict[BaseName, ScopeName]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def state(self, now: datetime) -> Literal["active", "revoked", "expired"]:
        """Whether it opens anything."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"

    @property
    def access(self) -> Access:
        """What it opens."""
        grants = {name: Scope[scope.upper()] for name, scope in self.grants.items()}
        return Access(self.id, self.tenant, grants)


class KeyFile(_Record):
    """All of the file."""

    format: Literal[1] = 1
    keys: tuple[ApiKey, ...] = ()
    quotas: dict[Name, Quota] = {}

    @staticmethod
    def read(path: Path) -> KeyFile:
        """Raises MissingFile, CorruptFile."""
        try:
            return KeyFile.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise MissingFile(
                f"no key file {path}: make it with `memory-service keys create NAME --grant '*:admin'`"
            ) from error
        except OSError as error:
            raise MissingFile(f"the key file {path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "file"
            raise CorruptFile(f"{path} is no key file ({where}: {first['msg']})") from error

    def write(self, path: Path) -> None:
        """Whole or not at all, durable, readable by its owner only."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self.model_dump_json(indent=1))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def with_new(
        self, name: str, tenant: str, grants: dict[str, str], expires: timedelta | None
    ) -> tuple[KeyFile, ApiKey, str]:
        """The file with one more key, the key, and the secret that nobody can read again; raises InvalidInput."""
        key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        now = datetime.now(timezone.utc)
        values = {
            "id": key_id, "name": name, "tenant": tenant, "sha256": _hash(secret), "grants": grants,
            "created_at": now, "expires_at": now + expires if expires is not None else None,
        }  # fmt: skip
        try:
            key = ApiKey.model_validate(values)
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise InvalidInput(
                f"no key can be made: {where}: {wrong['msg']} (got {wrong['input']!r})"
            ) from error
        return self.model_copy(update={"keys": (*self.keys, key)}), key, f"{_PREFIX}_{key_id}_{secret}"

    def with_revoked(self, key_id: str) -> KeyFile:
        """The file with this key revoked; raises InvalidInput when there is none, nothing when it is already."""
        if not any(key.id == key_id for key in self.keys):
            raise InvalidInput(f"no key has the id {key_id[:40]!r}: see `memory-service keys list`")
        now = datetime.now(timezone.utc)
        keys = [
            key.model_copy(update={"revoked_at": key.revoked_at or now}) if key.id == key_id else key
            for key in self.keys
        ]
        return self.model_copy(update={"keys": tuple(keys)})

    def with_quota(self, tenant: str, references: int, size_bytes: int, requests_per_s: float) -> KeyFile:
        """The file with the tenant's quota; raises InvalidInput for a name that is none."""
        quota = {"references": references, "bytes": size_bytes, "requests_per_s": requests_per_s}
        values = self.model_dump()
        values["quotas"][tenant] = quota
        try:
            return KeyFile.model_validate(values)
        except ValidationError as error:
            raise InvalidInput(f"{tenant[:80]!r} is no name of a tenant") from error


@contextlib.contextmanager
def changing(path: Path) -> Iterator[KeyFile]:
    """The file's content for a change, while no other command changes it; an empty one where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield KeyFile.read(path) if path.exists() else KeyFile()


class KeyRing:
    """The keys as the service checks them; reads the file again when it changed. Lives on the event loop."""

    def __init__(self, path: Path) -> None:
        """Raises MissingFile, CorruptFile: a service that is to check keys does not start without them."""
        self._path = path
        self._state = self._stat()
        self._use(KeyFile.read(path))
        self._look_at = time.monotonic() + LOOK_AGAIN_S

    def access_of(self, authorization: str | None) -> Access:
        """What the header `authorization` opens; raises Unauthenticated, which does not say what was wrong."""
        self._look()
        scheme, _, token = (authorization or "").partition(" ")
        prefix, _, rest = token.strip().partition("_")
        key_id, _, secret = rest.partition("_")
        key = self._keys.get(key_id)
        # The same work for a key that is there and one that is not.
        right = hmac.compare_digest(_hash(secret), key.sha256 if key is not None else _NOBODYS_SECRET)
        well_formed = scheme.lower() == "bearer" and prefix == _PREFIX and bool(secret)
        if key is None or not right or not well_formed:
            raise Unauthenticated(_REFUSAL)
        if key.state(datetime.now(timezone.utc)) != "active":
            raise Unauthenticated(_REFUSAL, key_id=key.id, tenant=key.tenant)
        return key.access

    def check(self, access: Access) -> None:
        """Raises Unauthenticated when what was opened a while ago has been revoked, ended or changed since."""
        self._look()
        key = self._keys.get(access.key_id)
        if key is None or key.state(datetime.now(timezone.utc)) != "active" or key.access != access:
            raise Unauthenticated(_REFUSAL)

    def quota_of(self, tenant: str) -> Quota | None:
        """The tenant's own quota; None where the file has none."""
        return self._quotas.get(tenant)

    def _use(self, file: KeyFile) -> None:
        self._keys = {key.id: key for key in file.keys}
        self._quotas = dict(file.quotas)

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_AGAIN_S
        state = self._stat()
        if state == self._state:
            return
        self._state = state
        try:
            self._use(KeyFile.read(self._path))
        except (MissingFile, CorruptFile) as error:
            # Half a rotation must neither lock everybody out nor let anybody in.
            logger().error("keys_not_read_again", problem=str(error), keys=len(self._keys))
            return
        logger().info("keys_read_again", keys=len(self._keys))

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
