"""TLS and mTLS with both real ends: the device's channel and the service; the certificate replaced while it runs."""

from pathlib import Path

import grpc
import pytest
from pydantic import SecretStr

from memory3.channel import ChannelSettings, open_channel
from memory3.errors import CorruptFile, InvalidInput
from memory_service.access.tls import Security
from memory_service.settings import Settings
from protos.memory.v1 import models_pb2, models_pb2_grpc
from testing.certificates import Authority
from testing.encoders import HashEncoder
from tests.memory_service.keyed import new_key
from tests.memory_service.running import running


def describe(settings: ChannelSettings) -> grpc.StatusCode:
    with open_channel(settings) as channel:
        try:
            models_pb2_grpc.ModelsStub(channel).Describe(
                models_pb2.DescribeRequest(), timeout=20, metadata=settings.metadata
            )
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_a_device_with_certificate_and_key_gets_in_and_nobody_else(tmp_path: Path) -> None:
    first, second, devices = Authority("first"), Authority("second"), Authority("devices")
    for authority, name in ((first, "first"), (second, "second"), (devices, "devices")):
        (tmp_path / f"{name}.ca").write_bytes(authority.certificate)
    certificate, key = first.issue("service", "127.0.0.1").files(tmp_path, "service")
    device = devices.issue("device").files(tmp_path, "device")
    stranger = first.issue("stranger").files(tmp_path, "stranger")
    secret = new_key(tmp_path / "keys.json", {"*": "read"})
    settings = {
        "keys": tmp_path / "keys.json",
        "tls_certificate": certificate,
        "tls_key": key,
        "tls_client_ca": tmp_path / "devices.ca",
    }
    with running(tmp_path / "store", HashEncoder(), **settings) as (_, server):
        address = f"127.0.0.1:{server.port}"

        def channel(ca: str, pair: tuple[Path, Path] | None = device, api_key: str = secret) -> ChannelSettings:
            given = {"certificate": pair[0], "key": pair[1]} if pair else {}
            return ChannelSettings(address, ca=tmp_path / f"{ca}.ca", api_key=SecretStr(api_key), attempts=1, **given)

        assert describe(channel("first")) == grpc.StatusCode.OK
        assert describe(channel("first", api_key="m3_x_y")) == grpc.StatusCode.UNAUTHENTICATED
        assert describe(channel("first", None)) == grpc.StatusCode.UNAVAILABLE
        assert describe(channel("first", stranger)) == grpc.StatusCode.UNAVAILABLE
        assert describe(channel("second")) == grpc.StatusCode.UNAVAILABLE
        assert describe(ChannelSettings(address, attempts=1)) == grpc.StatusCode.UNAVAILABLE

        # Half a replacement changes nothing; the whole one is used by the next handshake.
        new = second.issue("service", "127.0.0.1")
        key.write_bytes(new.key)
        assert describe(channel("first")) == grpc.StatusCode.OK
        certificate.write_bytes(new.certificate)
        assert describe(channel("second")) == grpc.StatusCode.OK
        assert describe(channel("first")) == grpc.StatusCode.UNAVAILABLE


def test_tls_files_that_do_not_fit_together_are_named_before_the_service_listens(tmp_path: Path) -> None:
    authority = Authority("a")
    certificate, key = authority.issue("one", "localhost", days=3).files(tmp_path, "one")
    _, other = authority.issue("two", "localhost").files(tmp_path, "two")
    with pytest.raises(InvalidInput, match="both tls_certificate and tls_key"):
        Security.of(Settings(tls_certificate=certificate))
    with pytest.raises(InvalidInput, match="tls_client_ca"):
        Security.of(Settings(tls_client_ca=certificate))
    pair = {"tls_certificate": certificate, "tls_key": key}
    with pytest.raises(InvalidInput, match="keys certificate"):  # who may connect may not yet do anything
        Security.of(Settings(listen="0.0.0.0:0", insecure=True, tls_client_ca=certificate, **pair))
    with pytest.raises(CorruptFile, match=r"one\.pem"):
        Security.of(Settings(tls_certificate=certificate, tls_key=other))
