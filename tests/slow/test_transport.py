"""A device in a network namespace of its own, two services outside it: one over IPv6, one over IPv4, both with mTLS.

The link to the first service goes down without a word, as where a router dies: packets are lost and nothing is refused.
Where there is nft, one packet of fifty is lost each way all the time; where the kernel has netem, packets are late.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from testing.certificates import Authority
from testing.encoders import HashEncoder
from testing.programs import ROOT
from tests.memory_service.keyed import new_key
from tests.memory_service.running import document, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2"),
]
NETWORK = f"memory3-{os.getpid()}"
LINKS = {"six": ("fd00:78:1::1/64", "fd00:78:1::2/64"), "four": ("10.213.78.1/30", "10.213.78.2/30")}
LOSS = """
table inet loss {
    chain sent { type filter hook output priority 0; numgen random mod 50 < 1 drop; }
    chain received { type filter hook input priority 0; numgen random mod 50 < 1 drop; }
}
"""
LATE = "delay 20ms 5ms"

DEVICE = """
import sys, time
from pathlib import Path
from pydantic import SecretStr
from edge_client.errors import RetrievalError
from edge_client.wire.client import MemoryClient
from memory3.channel import ChannelSettings
from memory3.codec.payload import Identity
from testing.encoders import HashEncoder, vector_of

address, folder, key = sys.argv[1:]
files = {name: Path(folder) / file for name, file in
         {"ca": "ca.pem", "certificate": "device.pem", "key": "device.key"}.items()}
ids = HashEncoder().description.identity
settings = ChannelSettings(address, api_key=SecretStr(key), **files)
client = MemoryClient(settings, "kb", Identity(ids.model_id, ids.codec_id, ids.memory_format_id), ids.embedder_id,
                      deadline_s=3)
while True:
    try:
        (hits,) = client.retrieve(vector_of("Text.")[None], k=1).hits
        print(hits[0].title, flush=True)
    except RetrievalError as error:
        print(error.reason, flush=True)
    time.sleep(0.1)
"""


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


@pytest.fixture
def links() -> Iterator[dict[str, str]]:
    """The name of this machine's end of the link to each service."""
    ends = {name: f"m3{name}{os.getpid()}" for name in LINKS}
    try:
        ip("netns", "add", NETWORK)
        ip("-n", NETWORK, "link", "set", "lo", "up")  # gRPC takes ::1 for the sign that there is IPv6
        for name, (own, other) in LINKS.items():
            ip("link", "add", ends[name], "type", "veth", "peer", "name", name, "netns", NETWORK)
            for inside, device, address in (([], ends[name], own), (["-n", NETWORK], name, other)):
                more = ["nodad"] if ":" in address else []  # else IPv6 waits for a second
                ip(*inside, "address", "add", address, "dev", device, *more)
                ip(*inside, "link", "set", device, "up")
            subprocess.run(["tc", "qdisc", "add", "dev", ends[name], "root", "netem", *LATE.split()], check=False)
        if shutil.which("nft"):
            lossy = ["ip", "netns", "exec", NETWORK, "nft", "-f", "-"]
            subprocess.run(lossy, check=False, input=LOSS.encode())
        yield ends
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode()}")
    finally:
        for end in ends.values():
            ip("link", "del", end, check=False)
        ip("netns", "del", NETWORK, check=False)


def test_a_device_reads_from_the_second_service_while_the_first_link_is_dead(
    links: dict[str, str], tmp_path: Path
) -> None:
    authority = Authority("authority")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    authority.issue("device").files(tmp_path, "device")
    key = new_key(tmp_path / "keys.json", {"*": "admin"})
    with ExitStack() as stack:
        addresses = []
        for name, (own, _) in LINKS.items():
            host = own.partition("/")[0]
            certificate, private = authority.issue(name, host).files(tmp_path, name)
            plain = {"store": f"file://{tmp_path / name}"}
            with running(tmp_path, HashEncoder(), **plain) as (client, _):
                client.ingest("kb", document("d", "Text.", title=name))
            settings = plain | {
                "listen": f"[{host}]:0" if ":" in host else f"{host}:0",
                "keys": tmp_path / "keys.json",
                "tls_certificate": certificate,
                "tls_key": private,
                "tls_client_ca": tmp_path / "ca.pem",
            }
            _, server = stack.enter_context(running(tmp_path, HashEncoder(), **settings))
            addresses.append(settings["listen"].rpartition(":")[0] + f":{server.port}")
        command = [
            "ip",
            "netns",
            "exec",
            NETWORK,
            sys.executable,
            "-c",
            DEVICE,
            ",".join(addresses),
            str(tmp_path),
            key,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        stack.callback(process.wait)
        stack.callback(process.kill)

        def until(wanted: str, within_s: float) -> list[str]:
            """What the device says until it has said this twenty times in a row."""
            said: list[str] = []
            began = time.monotonic()
            while said[-20:] != [wanted] * 20:
                assert time.monotonic() - began < within_s, said
                assert process.stdout is not None
                said.append(process.stdout.readline().strip())
            return said

        until("six", 120)
        ip("link", "set", links["six"], "down")
        said = until("four", 120)
        assert said.count("DEADLINE_EXCEEDED") <= 2, said
        ip("link", "set", links["six"], "up")
        ip("address", "replace", LINKS["six"][0], "dev", links["six"], "nodad")  # the kernel drops it with the link
        assert "UNREACHABLE" not in until("six", 180)
