"""Callers: a file of API keys' hashes and client certificates' identities that the service reads again as it changes.

A key is `m3_<id>_<secret>`; the secret has 256 random bits and is shown once. The file keeps its SHA-256: what cannot
be guessed needs no slow hash.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memory3.errors import CorruptFile, InvalidInput, MissingFile, shortened
from memory_service.access.authorization import NAME, OPERATORS_NAME, Access, Scope
from memory_service.access.quotas import Quota
from memory_service.errors import CertificateUnknown, Unauthenticated
from memory_service.telemetry.logs import logger

_PREFIX = "m3"
_NOBODYS_SECRET = hashlib.sha256(b"").hexdigest()
_REFUSAL = "the API key is missing, unknown, revoked or has ended: send `authorization: Bearer m3_…`"

Name = Annotated[str, Field(pattern=f"^{NAME}$")]
BaseName = Annotated[str, Field(pattern=rf"^(\*|{OPERATORS_NAME})$")]
ScopeName = Literal["read", "write", "admin"]
Record = TypeVar("Record", bound=BaseModel)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Grant(_Record):
    """What a caller may do; tenant: empty for the operator's."""

    tenant: Name | Literal[""] = ""
    grants: dict[BaseName, ScopeName]

    def access_as(self, key_id: str) -> Access:
        """The same as the service uses it."""
        return Access(key_id, self.tenant, {name: Scope[scope.upper()] for name, scope in self.grants.items()})


class ApiKey(_Grant):
    """One key. sha256: of its secret, hexadecimal. Times are UTC."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    name: Annotated[str, Field(max_length=200)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def state(self) -> Literal["active", "revoked", "expired"]:
        """Whether it opens anything now."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= _now() else "active"


class CertificateGrant(_Grant):
    """identity: a subject alternative name of the certificate (DNS name, URI, address), or its common name."""

    identity: Annotated[str, Field(min_length=1, max_length=255)]


class TenantQuota(_Record):
    """A tenant's own limits: 0 is no limit, None the service's default. bytes: as of Quota."""

    references: Annotated[int | None, Field(ge=0)] = None
    bytes: Annotated[int | None, Field(ge=0)] = None
    requests_per_s: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None

    def over(self, default: Quota) -> Quota:
        """The limits that hold for the tenant."""
        return default.model_copy(update=self.model_dump(exclude_none=True))


class KeyFile(_Record):
    """All of the file."""

    format: Literal[1] = 1
    keys: tuple[ApiKey, ...] = ()
    certificates: tuple[CertificateGrant, ...] = ()
    quotas: dict[Name, TenantQuota] = {}

    @staticmethod
    def read(path: Path) -> KeyFile:
        """Raises MissingFile, CorruptFile."""
        try:
            return KeyFile.model_validate_json(path.read_bytes())
        except OSError as error:
            advice = "make it with `memory-service keys create NAME --grant '*:admin'`"
            raise MissingFile(f"no key file {path} ({error.strerror}): {advice}") from error
        except ValidationError as error:
            raise CorruptFile(f"{path} is no key file ({_first_of(error)})") from error

    def write(self, path: Path) -> None:
        """Whole or not at all, durable; owner and mode stay as they are, a new file is readable by its owner only.

        Of a symbolic link the file that it names is written, which a service may read by its own path. Raises
        PermissionError where this user cannot give the file to its owner.
        """
        path = path.resolve()
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self.model_dump_json(indent=1, exclude_none=True))
                with contextlib.suppress(FileNotFoundError):  # a service of another user has to read it again
                    there = path.stat()
                    os.fchown(descriptor, there.st_uid, there.st_gid)
                    os.fchmod(descriptor, stat.S_IMODE(there.st_mode))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def with_new(
        self, name: str, tenant: str, grants: dict[str, str], expires: timedelta | None
    ) -> tuple[KeyFile, ApiKey, str]:
        """The file with one more key, the key, and the secret that nobody can read again; raises InvalidInput."""
        key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        key = _made(
            ApiKey,
            id=key_id,
            name=name,
            tenant=tenant,
            sha256=_hash(secret),
            grants=grants,
            created_at=_now(),
            expires_at=_now() + expires if expires is not None else None,
        )
        return self.model_copy(update={"keys": (*self.keys, key)}), key, f"{_PREFIX}_{key_id}_{secret}"

    def with_revoked(self, key_id: str) -> KeyFile:
        """The file with this key revoked; raises InvalidInput when there is none, nothing when it is already."""
        keys = {key.id: key for key in self.keys}
        if key_id not in keys:
            raise InvalidInput(f"no key has the id {key_id[:40]!r}: see `memory-service keys list`")
        revoked_at = keys[key_id].revoked_at or _now()
        keys[key_id] = keys[key_id].model_copy(update={"revoked_at": revoked_at})
        return self.model_copy(update={"keys": tuple(keys.values())})

    def with_certificate(self, identity: str, tenant: str, grants: dict[str, str]) -> KeyFile:
        """The file with what this identity may do; no grants remove it. Raises InvalidInput."""
        others = tuple(one for one in self.certificates if one.identity != identity)
        if not grants and others == self.certificates:
            raise InvalidInput(f"no certificate is called {shortened(identity, 80)!r}: see `memory-service keys list`")
        new = (_made(CertificateGrant, identity=identity, tenant=tenant, grants=grants),) if grants else ()
        return self.model_copy(update={"certificates": (*others, *new)})

    def with_quota(
        self,
        tenant: str,
        references: int | None = None,
        size_bytes: int | None = None,
        requests_per_s: float | None = None,
    ) -> KeyFile:
        """The file with these limits of a tenant; 0 is no limit, None keeps what there is. Raises InvalidInput."""
        named = {"references": references, "bytes": size_bytes, "requests_per_s": requests_per_s}
        quota = self.quotas.get(tenant, TenantQuota()).model_dump()
        quota |= {name: limit for name, limit in named.items() if limit is not None}
        return _made(KeyFile, **{**self.model_dump(), "quotas": {**self.quotas, tenant: quota}})


def _first_of(error: ValidationError) -> str:
    first = error.errors(include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}"


def _made(kind: type[Record], **values: Any) -> Record:
    """The record; raises InvalidInput."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise InvalidInput(_first_of(error)) from error


@contextlib.contextmanager
def changing(path: Path) -> Iterator[KeyFile]:
    """The file's content for a change, while no other command changes it; an empty one where there is none.

    Raises InvalidInput on a file system without locks.
    """
    path = path.resolve()  # one lock for all links to the file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            advice = "keep it on a file system that has locks"
            raise InvalidInput(f"{path} cannot be locked ({error.strerror}): {advice}") from error
        yield KeyFile.read(path) if path.exists() else KeyFile()


class KeyRing:
    """The keys and certificates as the service checks them; a change of the file counts from the next call on."""

    def __init__(self, path: Path) -> None:
        """Raises MissingFile, CorruptFile: a service that is to check keys does not start without them."""
        self._path = path
        self._state = self._stat()  # of the file as it was read
        self._unread: object = None  # what was logged of a file that cannot be read
        self._use(KeyFile.read(path))

    def access_of(self, authorization: str | None) -> Access:
        """What the header `authorization` opens; raises Unauthenticated, which does not say what was wrong."""
        self._read_again()
        scheme, _, token = (authorization or "").partition(" ")
        prefix, _, rest = token.strip().partition("_")
        key_id, _, secret = rest.partition("_")
        key = self._keys.get(key_id)
        # The same work for a key that is there and one that is not.
        right = hmac.compare_digest(_hash(secret), key.sha256 if key is not None else _NOBODYS_SECRET)
        well_formed = scheme.lower() == "bearer" and prefix == _PREFIX and bool(secret)
        if key is None or not right or not well_formed or key.state() != "active":
            raise Unauthenticated(_REFUSAL)
        return key.access_as(key.id)

    def access_of_certificate(self, identities: Sequence[str]) -> Access:
        """What the first known identity of a verified certificate opens; raises CertificateUnknown."""
        self._read_again()
        known = next((one for one in identities if one in self._certificates), None)
        if known is not None:
            return self._certificates[known]
        shown = shortened(", ".join(identities)) or "without a name"
        raise CertificateUnknown(
            f"the client certificate ({shown}) is valid and has no grant: send an API key, or add it with"
            " `memory-service keys certificate IDENTITY --grant BASE:SCOPE`"
        )

    def check(self, access: Access) -> None:
        """Raises Unauthenticated when what was opened a while ago has been revoked, ended or changed since."""
        self._read_again()
        key, known = self._keys.get(access.key_id), [self._certificates.get(access.key_id)]
        if key is not None and key.state() == "active":
            known.append(key.access_as(key.id))
        if access not in known:
            raise Unauthenticated(_REFUSAL)

    def quota_of(self, tenant: str, default: Quota) -> Quota:
        """The tenant's quota: the default where the file has no limit of its own."""
        return self._quotas[tenant].over(default) if tenant in self._quotas else default

    def _use(self, file: KeyFile) -> None:
        self._keys = {key.id: key for key in file.keys}
        self._certificates = {one.identity: one.access_as(one.identity) for one in file.certificates}
        self._quotas = dict(file.quotas)

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read_again(self) -> None:
        """Reads a file that changed; one that cannot be read, at every call until it can."""
        state = self._stat()  # a few microseconds
        if state == self._state:
            return
        try:
            self._use(KeyFile.read(self._path))
        except (MissingFile, CorruptFile) as error:
            # Half a rotation must neither lock everybody out nor let anybody in.
            if self._unread != (state, str(error)):
                self._unread = state, str(error)
                logger().error("keys_not_read_again", problem=str(error), keys=len(self._keys))
            return
        self._state = state
        logger().info("keys_read_again", keys=len(self._keys), certificates=len(self._certificates))


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
