"""What is wrong, or soon will be, with what the settings name: keys, certificates, the audit log, the store's disk."""

from __future__ import annotations

import itertools
import os
import stat
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from memory_model.errors import InvalidInput, Memory3Error
from memory_service.access.keys import KeyFile
from memory_service.access.tls import TlsFiles, is_loopback, tls_files
from memory_service.ops.disk_watermark import free_bytes
from memory_service.ops.doctor import Finding
from memory_service.settings import Settings
from memory_service.stores.address import parse_address

SOON = timedelta(days=30)
"""What ends within this time is said."""
_NEW_KEY = "`memory-service keys create` makes a new one; give it to its users, then revoke the old one"
_NEW_CERTIFICATE = "replace the files in place: the next handshake uses the new ones"


def check_files(settings: Settings) -> list[Finding]:
    """A finding or more for everything that the settings name; nothing for what they do not."""
    now = datetime.now(timezone.utc)
    findings = [*_check_listen(settings)]
    if settings.keys is not None:
        findings += check_keys(settings.keys, now)
    findings += check_tls(settings, now)
    if settings.audit_log is not None:
        findings.append(check_audit_log(settings.audit_log))
    if "store" in settings.model_fields_set and not (address := parse_address(settings.store)).host:
        findings.append(check_disk(address.path, settings.disk_stop_bytes))
    return findings


def _check_listen(settings: Settings) -> Iterator[Finding]:
    if not is_loopback(settings.listen) and settings.keys is None and not settings.insecure:
        remedy = "set keys, listen on 127.0.0.1, or say --insecure on a network that you trust"
        yield Finding(
            False,
            f"listen {settings.listen}",
            "other machines could do everything: it will not start",
            remedy,
        )


def check_keys(path: Path, now: datetime) -> list[Finding]:
    """The file of API keys: readable, its owner's only, at least one key that opens something, none that ends soon."""
    what = f"keys {path}"
    try:
        file = KeyFile.read(path)
    except Memory3Error as error:
        remedy = "restore it, or make it anew with `memory-service keys create`; a running service keeps the old keys"
        return [Finding(False, what, str(error), remedy)]
    states = Counter(key.state(now) for key in file.keys)
    found = ", ".join(f"{states[state]} {state}" for state in ("active", "expired", "revoked"))
    if not states["active"] and not file.certificates:
        return [Finding(False, what, f"{found}: nobody gets in", _NEW_KEY)]
    findings = [_its_owners_only(what, path, f"{found}, as hashes")]
    for key in file.keys:
        if key.expires_at is not None and key.state(now) == "active" and key.expires_at < now + SOON:
            findings.append(
                Finding(True, f"key {key.id} {key.name}", f"ends {key.expires_at:%Y-%m-%d %H:%M}", _NEW_KEY)
            )
    return findings


def check_tls(settings: Settings, now: datetime) -> list[Finding]:
    """Certificate, key and authorities: they fit together, each signed by the next, and none has ended or soon will."""
    try:
        files = tls_files(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        if files is None:
            return []
        files.checked()
    except Memory3Error as error:
        remedy = "name files that fit together" if isinstance(error, InvalidInput) else _NEW_CERTIFICATE
        return [Finding(False, "TLS", str(error), remedy)]
    chain = _certificates(files.certificate)
    findings = [_its_owners_only(f"TLS key {files.key}", files.key, "fits the certificate")]
    findings += [_check_certificate(one, f"certificate {files.certificate}", now) for one in chain]
    findings += _check_chain(chain, files)
    for one in _certificates(files.client_ca) if files.client_ca is not None else ():
        findings.append(_check_certificate(one, f"authority {files.client_ca}", now))
    return findings


def _certificates(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


def _check_certificate(certificate: x509.Certificate, what: str, now: datetime) -> Finding:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    found = f"{certificate.subject.rfc4514_string() or 'without a name'}, until {ends:%Y-%m-%d %H:%M}"
    if now < begins:
        return Finding(False, what, f"{found}, only from {begins:%Y-%m-%d %H:%M} on", "is the clock right?")
    if ends <= now:
        return Finding(False, what, f"{found}: it has ended, nobody connects", _NEW_CERTIFICATE)
    return Finding(True, what, found, _NEW_CERTIFICATE if ends < now + SOON else "")


def _check_chain(chain: list[x509.Certificate], files: TlsFiles) -> Iterator[Finding]:
    what = f"chain of {files.certificate}"
    for signed, signer in itertools.pairwise(chain):
        try:
            signed.verify_directly_issued_by(signer)
        except (ValueError, TypeError, InvalidSignature):
            found = f"{signed.subject.rfc4514_string()} is not signed by the one after it"
            yield Finding(
                False, what, found, "put the certificate first, then each one's signer, in this order"
            )
            return
    yield Finding(True, what, f"{len(chain)} long, devices must trust {chain[-1].issuer.rfc4514_string()}")


def check_audit_log(path: Path) -> Finding:
    """Whether a line could be written: without the log the service does not start."""
    what = f"audit log {path}"
    place = path if path.exists() else path.parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        remedy = f"make {path.parent} and let the service's user write there"
        return Finding(False, what, "cannot be written: the service does not start", remedy)
    return (
        _its_owners_only(what, path, "can be written")
        if path.exists()
        else Finding(True, what, "not begun yet")
    )


def check_disk(folder: Path, stop_bytes: int) -> Finding:
    """Free space against the marks at which writing stops and goes on."""
    place = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    free = free_bytes(place)
    what, found = f"disk of {folder}", f"{free >> 20} MiB free, writing stops below {stop_bytes >> 20} MiB"
    remedy = "free space or move the store to a larger disk; reading and deleting go on"
    if free < stop_bytes:
        return Finding(False, what, found, remedy)
    return Finding(True, what, found, remedy if free < 2 * stop_bytes else "")


def _its_owners_only(what: str, path: Path, found: str) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    others = bool(mode & (stat.S_IRWXG | stat.S_IRWXO))
    return Finding(True, what, f"{found}, mode {mode:04o}", f"chmod 600 {path}" if others else "")
