"""The service's TLS: certificate and key from files that may be replaced while it runs, mTLS by authorities."""

from __future__ import annotations

import ssl
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import grpc
from cryptography import x509

from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_service.ops.logs import logger

LOOK_AGAIN_S = 1.0
"""Handshakes that come so much later use a replaced certificate."""


@dataclass(frozen=True)
class TlsFiles:
    """certificate, key: PEM. client_ca: PEM of the authorities whose clients may connect; None: everybody may."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.certificate, self.key, *([self.client_ca] if self.client_ca else []))

    def checked(self) -> None:
        """Raises MissingFile, CorruptFile, also when key and certificate are no pair: gRPC would not say so."""
        for path in self.paths:
            _read(path)
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise CorruptFile(
                f"{self.certificate} and {self.key} are no PEM certificate and its key without a passphrase: {error}"
            ) from error
        if self.client_ca is not None:
            try:
                ssl.create_default_context(cafile=str(self.client_ca))
            except ssl.SSLError as error:
                raise CorruptFile(f"{self.client_ca} holds no PEM certificate of an authority") from error

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """What gRPC takes, read anew."""
        self.checked()
        pair = (_read(self.key), _read(self.certificate))
        return grpc.ssl_server_certificate_configuration(
            [pair], _read(self.client_ca) if self.client_ca is not None else None
        )


def tls_files(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """The files of the settings, or None for a service without TLS; raises InvalidInput for half of them."""
    if certificate is None and key is None:
        if client_ca is not None:
            raise InvalidInput("tls_client_ca checks clients within TLS: set tls_certificate and tls_key too")
        return None
    if certificate is None or key is None:
        raise InvalidInput("TLS needs both tls_certificate and tls_key: set both or neither")
    return TlsFiles(certificate, key, client_ca)


class Certificates:
    """Gives gRPC the files anew when they changed; what is half replaced is left until it fits together."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises MissingFile, CorruptFile."""
        self._files = files
        self._lock = threading.Lock()
        self._state = self._stat()
        self._first = files.configuration()
        self._look_at = time.monotonic() + LOOK_AGAIN_S

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`; asks `changed` at every handshake, on threads of gRPC's own."""
        return grpc.dynamic_ssl_server_credentials(
            self._first, self.changed, require_client_authentication=self._files.client_ca is not None
        )

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration, None where nothing is new."""
        with self._lock:
            now = time.monotonic()
            if now < self._look_at:
                return None
            self._look_at = now + LOOK_AGAIN_S
            state = self._stat()
            if state == self._state:
                return None
            try:
                configuration = self._files.configuration()
            except (MissingFile, CorruptFile) as error:
                logger().error("certificate_not_read_again", problem=str(error))
                return None
            self._state = state
            logger().info("certificate_read_again", ends=expiry(self._files.certificate).isoformat())
            return configuration

    def _stat(self) -> tuple[tuple[int, int, int] | None, ...]:
        found: list[tuple[int, int, int] | None] = []
        for path in self._files.paths:
            try:
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError:
                found.append(None)
        return tuple(found)


def expiry(certificate: Path) -> datetime:
    """When the first certificate of a PEM file ends, UTC; raises MissingFile, CorruptFile."""
    try:
        return x509.load_pem_x509_certificate(_read(certificate)).not_valid_after_utc
    except ValueError as error:
        raise CorruptFile(f"{certificate} holds no PEM certificate: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingFile(f"TLS file {path} cannot be read: {error.strerror}") from error
