"""TLS and the check that nobody listens openly by accident: keys, certificates and the address fit together."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from memory3.channel import is_loopback
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory_service.access.keys import KeyRing
from memory_service.settings import Settings
from memory_service.telemetry.logs import logger


@dataclass(frozen=True)
class Security:
    """keys: None lets every caller in as the operator. credentials: None is plain text."""

    keys: KeyRing | None
    credentials: grpc.ServerCredentials | None

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
        return Security(keys, _credentials(certificate, key, client_ca))


def _credentials(certificate: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """Of PEM files, which gRPC gets anew at the handshake after a change; half a replacement is left until it is whole.

    Raises MissingFile, CorruptFile, also when key and certificate are no pair, which gRPC would not say.
    """
    used: list[bytes] = []

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        try:
            found = [path.read_bytes() for path in (key, certificate, client_ca) if path]
            if found == used:
                return None
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key, password="")
            if client_ca is not None:
                context.load_verify_locations(client_ca)
        except (ssl.SSLError, ValueError) as error:
            raise CorruptFile(
                f"{certificate}, {key} and {client_ca or 'no authority'} are no PEM certificate, its key without a"
                f" passphrase, and an authority's certificate: {error}"
            ) from error
        except OSError as error:
            raise MissingFile(f"TLS file {error.filename} cannot be read: {error.strerror}") from error
        used = found
        ca = found[2] if client_ca is not None else None
        return grpc.ssl_server_certificate_configuration([(found[0], found[1])], ca)

    def changed_or_same() -> grpc.ServerCertificateConfiguration | None:
        """On threads of gRPC's own."""
        try:
            return changed()
        except (MissingFile, CorruptFile) as error:
            logger().error("certificate_not_read_again", problem=str(error))
            return None

    return grpc.dynamic_ssl_server_credentials(
        changed(), changed_or_same, require_client_authentication=client_ca is not None
    )


def identities(context: grpc.aio.ServicerContext) -> list[str]:
    """Names in the verified client certificate of a call: subject alternative names, then the common name."""
    names = context.auth_context()
    values = (*names.get("x509_subject_alternative_name", ()), *names.get("x509_common_name", ()))
    return [value.decode(errors="replace") for value in values]
