"""TLS and the check that nobody listens openly by accident: keys, certificates and the address fit together."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_service.access.keys import KeyRing, WatchedFiles
from memory_service.ops.logs import logger
from memory_service.settings import Settings


@dataclass(frozen=True)
class Security:
    """keys: None lets every caller in as the operator. certificates: None is plain text."""

    keys: KeyRing | None
    certificates: Certificates | None

    @staticmethod
    def of(settings: Settings) -> Security:
        """As the settings say; raises InvalidInput, MissingFile, CorruptFile."""
        keys = KeyRing(settings.keys) if settings.keys is not None else None
        certificate, key, client_ca = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
        if (certificate is None) != (key is None):
            raise InvalidInput("TLS needs both tls_certificate and tls_key: set both or neither")
        if certificate is None and client_ca is not None:
            raise InvalidInput("tls_client_ca checks clients within TLS: set tls_certificate and tls_key too")
        if keys is None and settings.tls_client_ca is not None:
            raise InvalidInput(
                "tls_client_ca says who may connect, and no key file says what they may do: set keys, and add each"
                " certificate with `memory-service keys certificate IDENTITY --grant BASE:SCOPE`"
            )
        if keys is None and not settings.insecure and not is_loopback(settings.listen):
            raise InvalidInput(
                f"{settings.listen} lets other machines in without authentication: set keys (`memory-service keys"
                " create`), listen on 127.0.0.1, or pass --insecure on a network that you trust"
            )
        if keys is not None and certificate is None and not is_loopback(settings.listen):
            advice = "set tls_certificate and tls_key, unless a proxy in front of this service has TLS"
            logger().warning("keys_in_plain_text", listen=settings.listen, advice=advice)
        if certificate is None or key is None:
            return Security(keys, None)
        return Security(keys, Certificates(certificate, key, client_ca))

    def add_port(self, server: grpc.aio.Server, listen: str) -> int:
        """Opens the port; raises RuntimeError as grpc does when the address is taken."""
        if self.certificates is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, self.certificates.credentials())


def is_loopback(listen: str) -> bool:
    """Whether only this machine can reach the address."""
    host = listen.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or listen.startswith("unix:")


class Certificates:
    """Gives gRPC the TLS files anew when they change; half a replacement is left until it is whole."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        """PEM files; client_ca: of the authorities whose clients may connect. Raises MissingFile, CorruptFile."""
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._paths = [certificate, key, *([client_ca] if client_ca else [])]
        self._lock = threading.Lock()
        self._watched = WatchedFiles(*self._paths)
        self._first = self._configuration()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        """What gRPC takes; raises also when key and certificate are no pair, which gRPC would not say."""
        for path in self._paths:
            if not os.access(path, os.R_OK):
                raise MissingFile(f"TLS file {path} is not there or cannot be read")
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate, self._key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise CorruptFile(
                f"{self._certificate} and {self._key} are no PEM certificate and its key without a passphrase: {error}"
            ) from error
        ca = None
        if self._client_ca is not None:
            try:
                ssl.create_default_context(cafile=str(self._client_ca))
            except ssl.SSLError as error:
                raise CorruptFile(f"{self._client_ca} holds no PEM certificate of an authority") from error
            ca = self._client_ca.read_bytes()
        pairs = [(self._key.read_bytes(), self._certificate.read_bytes())]
        return grpc.ssl_server_certificate_configuration(pairs, ca)

    def credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`, which calls `changed` at every handshake, on threads of gRPC's own."""
        return grpc.dynamic_ssl_server_credentials(
            self._first, self.changed, require_client_authentication=self._client_ca is not None
        )

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration, None where nothing is new."""
        with self._lock:
            if not self._watched.changed():
                return None
            try:
                configuration = self._configuration()
            except (OSError, MissingFile, CorruptFile) as error:
                logger().error("certificate_not_read_again", problem=str(error))
                return None
            logger().info("certificate_read_again", certificate=str(self._certificate))
            return configuration


def identities(context: grpc.aio.ServicerContext) -> list[str]:
    """Names in the verified client certificate of a call: subject alternative names, then the common name."""
    names = context.auth_context()
    values = (*names.get("x509_subject_alternative_name", ()), *names.get("x509_common_name", ()))
    return [value.decode(errors="replace") for value in values]
