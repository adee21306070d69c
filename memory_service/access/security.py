"""Whether a service may listen where it is told to: keys, TLS and the address together, checked before it starts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import grpc

from memory_model.errors import InvalidInput
from memory_service.access.keys import KeyRing
from memory_service.access.tls import Certificates, tls_files
from memory_service.ops.logs import logger
from memory_service.settings import Settings


@dataclass(frozen=True)
class Security:
    """keys: None asks nobody who he is. certificates: None is plain text."""

    keys: KeyRing | None
    certificates: Certificates | None

    @staticmethod
    def of(settings: Settings) -> Security:
        """As the settings say; raises InvalidInput, MissingFile, CorruptFile."""
        keys = KeyRing(settings.keys) if settings.keys is not None else None
        files = tls_files(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        authenticated = keys is not None or settings.tls_client_ca is not None
        if not is_loopback(settings.listen):
            if not authenticated and not settings.insecure:
                raise InvalidInput(
                    f"{settings.listen} lets other machines in and nobody would be asked who he is: set keys"
                    " (`memory-service keys create`) or tls_client_ca, listen on 127.0.0.1, or say --insecure on a"
                    " network that you trust"
                )
            if files is None and keys is not None:
                logger().warning(
                    "keys_in_plain_text", listen=settings.listen,
                    advice="set tls_certificate and tls_key, unless a proxy in front of this service has TLS",
                )  # fmt: skip
        return Security(keys, Certificates(files) if files is not None else None)

    def add_port(self, server: grpc.aio.Server, listen: str) -> int:
        """Opens the port; raises RuntimeError as grpc does when the address is taken."""
        if self.certificates is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, self.certificates.credentials())


def is_loopback(listen: str) -> bool:
    """Whether only this machine can reach the address."""
    if listen.startswith("unix:"):
        return True
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
