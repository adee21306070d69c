"""The kernel's own network emulation, `tc netem`, on the loopback of a network namespace that is ours alone.

Needs root, iproute2 and a kernel with sch_netem; `why_not` says which is missing. Not run by the authors: the kernel
at hand has no netem. `deploy.bench.shaper` works anywhere.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from deploy.bench.scenario import ScenarioFailed
from deploy.bench.shaper import Link

CLONE_NEWNET = 0x40000000
QUEUE_PACKETS = 10_000
"""netem drops what exceeds its queue, which its default of 1,000 packets is too short for at 200 ms."""


def netem_command(link: Link) -> list[str]:
    """`tc` that makes loopback as the link: each direction passes it once, so each gets half of the round trip."""
    words = ["tc", "qdisc", "replace", "dev", "lo", "root", "netem", "limit", str(QUEUE_PACKETS)]
    words += ["delay", f"{link.rtt_ms / 2:g}ms"]
    if link.jitter_ms:
        words.append(f"{link.jitter_ms:g}ms")
    if link.loss:
        words += ["loss", f"{100 * link.loss:g}%"]
    if link.bandwidth_mbit is not None:
        words += ["rate", f"{link.bandwidth_mbit:g}mbit"]
    return words


def why_not() -> str:
    """Why netem cannot be used here; empty if it can."""
    if missing := [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]:
        return f"{', '.join(missing)} not found: install iproute2 and util-linux"
    trial = "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"
    done = subprocess.run(["unshare", "-n", "sh", "-c", trial], capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip() or "refused")


@contextmanager
def own_loopback() -> Iterator[None]:
    """This thread, and all threads and processes that it starts meanwhile, in a network namespace of their own.

    Raises ScenarioFailed where that, or netem, is not permitted.
    """
    if reason := why_not():
        raise ScenarioFailed(f"tc netem cannot be used here ({reason}): set emulator=proxy")
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET):
            raise ScenarioFailed(f"no network namespace: {os.strerror(ctypes.get_errno())}")
        try:
            _run(["ip", "link", "set", "lo", "up"])
            yield
        finally:
            libc.setns(before, CLONE_NEWNET)
    finally:
        os.close(before)


@contextmanager
def netem(link: Link) -> Iterator[None]:
    """Loopback as the link until the block ends; inside `own_loopback` only."""
    _run(netem_command(link))
    try:
        yield
    finally:
        _run(["tc", "qdisc", "del", "dev", "lo", "root"])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ScenarioFailed(f"{' '.join(command)}: {done.stderr.strip()}")
