"""How clients reach this server: settings, API key, certificate and address. Generated ones are kept on the device."""

from __future__ import annotations

import datetime
import hashlib
import io
import ipaddress
import os
import secrets
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from edge_client.settings import CheckedSettings
from memory3.channel import is_loopback
from memory3.errors import InvalidInput
from memory3.home import users_folder

CERTIFICATE_DAYS = 800
"""Apple's browsers refuse certificates that are valid for more than 825."""
FROM_MACHINE = "8.8.8.8"
"""Any address beyond this machine: the route to it names the interface; nothing is sent."""


class ServeSettings(CheckedSettings):
    """Where to listen and what to permit: EDGE_CLIENT_SERVE_*, or options. How memories are recalled: EdgeSettings.

    host, port: port 0 takes a free one. api_key: required by every call under /v1; without one see `access_key`.
    tls: with a certificate that the server makes. allowed_hosts: further names, besides this machine's own names and
    addresses, under which the server may be reached. allowed_origins: other sites, and programs made of pages, that
    may call it, e.g. http://127.0.0.1:5173 or app://obsidian.md; none by default. waiting: answers that may wait while
    EdgeSettings' `parallel` are computed; one more is refused.
    """

    wanted: ClassVar[dict[str, str]] = {"allowed_origins": "origins, such as http://127.0.0.1:5173"}
    model_config = SettingsConfigDict(env_prefix="EDGE_CLIENT_SERVE_", extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    api_key: SecretStr | None = Field(default=None, min_length=1)
    tls: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9+.-]*://[^/*]+$")], ...] = ()
    waiting: int = Field(default=16, ge=0, le=4096)


def access_key(settings: ServeSettings) -> tuple[str | None, bool]:
    """The API key, or None if authentication is disabled, and whether this server generated it.

    Without a key in the settings, one is generated if other machines can reach the server; else none is required.
    """
    if settings.api_key is not None:
        return settings.api_key.get_secret_value(), False
    return (None, False) if is_own(settings.host) else (_kept("serve-key", secrets.token_urlsafe(18)), True)


def is_own(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return is_loopback(f"{host}:0")


def own_names() -> tuple[str, str]:
    """This machine's host name and its mDNS name."""
    name = socket.gethostname().lower().removesuffix(".local")
    return name, f"{name}.local"


def network_address() -> str:
    """This machine's network address; its mDNS name if it has no route."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((FROM_MACHINE, 9))
        return str(probe.getsockname()[0])
    return own_names()[1]


def qr_code(url: str) -> str:
    """The URL as a QR code of block characters."""
    import segno

    drawn = io.StringIO()
    segno.make(url, error="l", micro=False).terminal(drawn, compact=True)
    return drawn.getvalue()


def own_certificate() -> tuple[Path, Path]:
    """Files of a self-signed certificate for this machine's names and address, and of its key; raises InvalidInput."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    names = [x509.DNSName(name) for name in ("localhost", *own_names())]
    address = network_address()
    addresses = {a for a in ("127.0.0.1", address) if a[0].isdigit()}
    wanted = {*names, *(x509.IPAddress(ipaddress.ip_address(a)) for a in addresses)}
    certificate, key = state_folder() / "serve.crt", state_folder() / "serve.key"
    now = datetime.datetime.now(datetime.timezone.utc)
    with suppress(OSError, ValueError, x509.ExtensionNotFound):
        kept = x509.load_pem_x509_certificate(certificate.read_bytes())
        named = kept.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if key.is_file() and kept.not_valid_after_utc > now and wanted <= {*named}:
            return certificate, key
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, own_names()[0][:64])])
    made = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.SubjectAlternativeName(sorted(wanted, key=str)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    try:
        certificate.unlink(missing_ok=True)
        key.unlink(missing_ok=True)
        form, without = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        _write_private(key, private.private_bytes(pem, form, without))
        _write_private(certificate, made.public_bytes(pem))
    except OSError as error:
        raise InvalidInput(f"--tls keeps its certificate in {state_folder()}: {error.strerror}") from error
    return certificate, key


def fingerprint(certificate: Path) -> str:
    """SHA-256 of a certificate, as browsers show it."""
    der = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    return hashlib.sha256(der).digest().hex(":").upper()


def state_folder() -> Path:
    """`memory3-edge` in the user's state folder: ~/.local/state, or as the system has it."""
    return users_folder("state", "memory3-edge")


def _kept(name: str, new: str) -> str:
    """Content of a file in the state folder; if it does not exist, `new`, which is stored if the folder is writable."""
    file = state_folder() / name
    with suppress(OSError):
        return file.read_text().strip() or new
    with suppress(OSError):
        _write_private(file, new.encode())
    return new


def _write_private(file: Path, content: bytes) -> None:
    """Write a new file that only its owner can read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(content)
