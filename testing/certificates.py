"""Certificates made for one test: an authority, and what it signs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pem:
    """A certificate and its key as PEM."""

    certificate: bytes
    key: bytes

    def files(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Both as files."""
        paths = folder / f"{name}.pem", folder / f"{name}.key"
        paths[0].write_bytes(self.certificate)
        paths[1].write_bytes(self.key)
        return paths


class Authority:
    """Signs certificates that are valid from yesterday on."""

    def __init__(self, name: str) -> None:
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(self._name, self._key, days=30, names=(), authority=True).certificate

    def issue(self, name: str, *names: str, days: int = 30, begins: int = -9) -> Pem:
        """A certificate for the host names and addresses, which ends in so many days (negative: it has ended).

        begins: in so many days.
        """
        return self._sign(_named(name), ec.generate_private_key(ec.SECP256R1()), days, names, begins=begins)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        days: int,
        names: tuple[str, ...],
        authority: bool = False,
        begins: int = -9,
    ) -> Pem:
        now = datetime.now(timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=begins))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(n) for n in names]), False)
        encoding, no_passphrase = serialization.Encoding.PEM, serialization.NoEncryption()
        return Pem(
            builder.sign(self._key, hashes.SHA256()).public_bytes(encoding),
            key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no_passphrase),
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
