"""Where a service may listen, with which keys and certificates."""

from pathlib import Path

import pytest

from memory3.errors import InvalidInput
from memory_service.access.tls import Security
from memory_service.settings import Settings
from tests.memory_service.keyed import new_key


@pytest.mark.parametrize("listen", ["0.0.0.0:7430", "[::]:7430", "service.example:7430", "10.1.2.3:0"])
def test_nobody_listens_beyond_the_machine_without_authentication(listen: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--insecure"):
        Security.of(Settings(listen=listen))
    Security.of(Settings(listen=listen, insecure=True))
    new_key(tmp_path / "keys.json", {"*": "read"})
    Security.of(Settings(listen=listen, keys=tmp_path / "keys.json"))


def test_an_authority_of_clients_without_keys_is_refused() -> None:
    """Or every certificate that it signed would be the operator's."""
    files = dict.fromkeys(("tls_certificate", "tls_key", "tls_client_ca"), Path("x.pem"))
    with pytest.raises(InvalidInput, match="what they may do"):
        Security.of(Settings(listen="127.0.0.1:0", **files))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:7430", "localhost:7430", "unix:/tmp/s"])
def test_loopback_needs_no_keys(listen: str) -> None:
    Security.of(Settings(listen=listen))
