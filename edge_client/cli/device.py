"""What this device is and what runs on it: `edge-client doctor`'s checks of board, clocks, providers and threads.

Everything is read through a `Reader`, so that tests feed recorded outputs of boards that are not at hand.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edge_client.decoder.graph import Threads, physical_cores
from edge_client.decoder.providers import INSTALL, ORDER, check_name, missing, tensorrt_version
from memory_model.codec.native.library import installed, why_missing

COMMAND_TIMEOUT_S = 5.0
TEGRA_RELEASE = "/etc/nv_tegra_release"
DEVICE_MODEL = "/proc/device-tree/model"
CUDA_VERSION = "/usr/local/cuda/version.json"
DRIVER_VERSION = "/proc/driver/nvidia/version"
NVPMODEL = ("nvpmodel", "-q")
JETSON_CLOCKS = ("jetson_clocks", "--show")
FULL_POWER = "MAXN"
"""Both MAXN and MAXN_SUPER: no limit. Other modes halve clocks and with them tokens a second."""


class Reader:
    """Reads this machine. A file or command that is not there, refused or too slow gives None."""

    def file(self, path: str) -> str | None:
        """The text of a file."""
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace").rstrip("\0\n")
        except OSError:
            return None

    def command(self, words: Sequence[str]) -> str | None:
        """Standard output of a program that ended with 0."""
        program = shutil.which(words[0])
        if program is None:
            return None
        try:
            done = subprocess.run(
                [program, *words[1:]], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    def machine(self) -> str:
        """The processor's architecture, such as x86_64 or aarch64."""
        return platform.machine()


@dataclass(frozen=True)
class Check:
    """One line of `edge-client doctor`: what was looked at and what came out.

    ok: False where something does not work. fact: it only states what is there, and is never wrong. advice: what to
    install or do, exactly; also where things work but could be faster.
    """

    what: str
    ok: bool
    detail: str
    fact: bool = False
    advice: str = ""


@dataclass(frozen=True)
class JetPack:
    """A JetPack release: the L4T it is built on and what it ships; `wheels` names where GPU wheels are."""

    version: str
    l4t: str
    tensorrt: str
    cuda: str
    wheels: str


_INDEX = "https://pypi.jetson-ai-lab.io"
# L4T release and revision -> what it ships, by NVIDIA's release notes. The index of wheels is its keepers'
# (dusty-nv/jetson-containers issue 1283); the one for JetPack 7 is made for server boards.
JETPACKS = (
    JetPack("5.1", "35", "8.5", "11.4", ""),
    JetPack("6.0", "36.3", "8.6", "12.2", ""),
    JetPack("6.1", "36.4.0", "10.3", "12.6", f"{_INDEX}/jp6/cu126"),
    JetPack("6.2", "36.4", "10.3", "12.6", f"{_INDEX}/jp6/cu126"),
    JetPack("6.2", "36.5", "10.3", "12.6", f"{_INDEX}/jp6/cu126"),
    JetPack("7.0", "38", "10.13", "13.0", f"{_INDEX}/sbsa/cu130"),
    JetPack("7.2", "39", "10.16", "13.2", f"{_INDEX}/sbsa/cu130"),
)


@dataclass(frozen=True)
class Clock:
    """One line of `jetson_clocks --show`: frequencies in Hz (CPUs: kHz), as that program prints them."""

    name: str
    minimum: int
    maximum: int
    current: int

    @property
    def locked(self) -> bool:
        """Whether it cannot fall below its maximum."""
        return self.minimum == self.maximum or self.current == self.maximum


@dataclass(frozen=True)
class DeviceFacts:
    """What was found; an empty string or tuple where nothing was.

    model: the board's own name. l4t: "36.4.3", of a Jetson. jetpack: the release that ships it. power_mode: as nvpmodel
    names it. cuda: the installed toolkit. gpu: whether there is an NVIDIA GPU of any kind.
    """

    machine: str
    model: str = ""
    l4t: str = ""
    jetpack: JetPack | None = None
    power_mode: str = ""
    clocks: tuple[Clock, ...] = ()
    cuda: str = ""
    gpu: bool = False


def device_facts(reader: Reader | None = None) -> DeviceFacts:
    """Read this device; never raises for what is missing."""
    reader = reader or Reader()
    cuda = _found(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([\d.]+)"', reader.file(CUDA_VERSION))
    l4t = _found(r"R(\d+) \(release\), REVISION: ([\d.]+)", reader.file(TEGRA_RELEASE))
    if not l4t:
        return DeviceFacts(reader.machine(), cuda=cuda, gpu=reader.file(DRIVER_VERSION) is not None)
    # The JetPack of the longest listed beginning of the release's number.
    shipped = [j for j in JETPACKS if f"{l4t}.".startswith(f"{j.l4t}.")]
    clocks = r"^(\S+?):? .*?MinFreq=(\d+) MaxFreq=(\d+) CurrentFreq=(\d+)"
    lines = re.finditer(clocks, reader.command(JETSON_CLOCKS) or "", re.MULTILINE)
    return DeviceFacts(
        reader.machine(), reader.file(DEVICE_MODEL) or "Jetson", l4t,
        max(shipped, key=lambda j: len(j.l4t), default=None),
        _found(r"NV Power Mode: *(\S.*)", reader.command(NVPMODEL)).strip(),
        tuple(Clock(f[1], int(f[2]), int(f[3]), int(f[4])) for f in lines), cuda, gpu=True,
    )  # fmt: skip


def _found(pattern: str, text: str | None) -> str:
    """The groups of the first match, with dots between; "" without one."""
    match = re.search(pattern, text or "")
    return ".".join(match.groups()) if match else ""


def gpu_wheel(facts: DeviceFacts) -> str:
    """What to install so that ONNX Runtime gets its CUDA and TensorRT providers here."""
    if facts.l4t:
        if facts.jetpack is None:
            return f"L4T {facts.l4t} is of no JetPack that is known here: build onnxruntime-gpu from source"
        if not facts.jetpack.wheels:
            return (
                f"no index is known to have onnxruntime-gpu for JetPack {facts.jetpack.version} "
                f"(CUDA {facts.jetpack.cuda}): update to JetPack 6.2, or build it from source"
            )
        server = "sbsa" in facts.jetpack.wheels
        doubt = "; if it has no kernels for this GPU, build it from source" if server else ""
        command = f"pip uninstall onnxruntime && pip install onnxruntime-gpu -i {facts.jetpack.wheels}"
        return f"{command} (JetPack {facts.jetpack.version}{doubt})"
    if facts.machine == "x86_64":
        return INSTALL.format(extra="gpu")
    return (
        f"no wheel of onnxruntime-gpu is published for {facts.machine}: build it from source with --use_cuda"
    )


def copy_bandwidth_gb_s(megabytes: int = 64, rounds: int = 5) -> float:
    """Bytes read plus bytes written in a second, in GB, by the best of some copies on one core."""
    source = np.ones(megabytes << 17, np.float64)
    target = np.empty_like(source)
    best = 1e9
    for _ in range(rounds):
        begun = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begun)
    return 2 * source.nbytes / best / 1e9


def device_checks(wanted: str, threads: Threads, facts: DeviceFacts | None = None) -> Iterator[Check]:
    """What this device is and has. wanted: the provider in the settings; threads: of the decoder."""
    check_name(wanted)
    facts = facts or device_facts()
    if facts.l4t:
        yield from _jetson(facts)
    else:
        yield _fact("device", f"{facts.machine}, not a Jetson, {'with an' if facts.gpu else 'no'} NVIDIA GPU")
    if facts.gpu:
        yield _fact("CUDA", facts.cuda or "no toolkit found in /usr/local/cuda")
        yield _fact("TensorRT", tensorrt_version() or "libnvinfer.so.10 does not load")
    for name in ORDER:
        reason = missing(name)
        needed = name == wanted or (wanted == "auto" and name == "cuda" and facts.gpu)
        advice = gpu_wheel(facts) if reason and needed and facts.gpu else ""
        detail = reason or f"onnxruntime {ort.__version__} can run it"
        yield Check(f"provider {name}", not (reason and name == wanted), detail, name != wanted, advice)
    library = installed()
    advice = "" if library else f"faster when compiled ({why_missing()})"
    yield _fact("decompression", f"compiled, {library.name} instructions" if library else "in numpy", advice)
    cores = physical_cores()
    advice = ""
    if threads != "auto" and threads > cores:
        advice = f"set EDGE_CLIENT_THREADS to {cores} or less: more threads than cores slow each other down"
    chosen = "as many as are fastest" if threads == "auto" else threads
    yield Check("threads", not advice, f"{chosen} of {cores} core(s)", fact=not advice, advice=advice)
    copied = f"{copy_bandwidth_gb_s():.1f} GB/s read and written by one core's copy"
    yield _fact("memory bandwidth", f"{copied} (a token reads every weight once)")


def _fact(what: str, detail: str, advice: str = "") -> Check:
    return Check(what, True, detail, fact=True, advice=advice)


def _jetson(facts: DeviceFacts) -> Iterator[Check]:
    pack = facts.jetpack
    ships = (
        f"JetPack {pack.version} (TensorRT {pack.tensorrt}, CUDA {pack.cuda})" if pack else "unknown JetPack"
    )
    yield _fact("device", f"{facts.model}, L4T {facts.l4t}, {ships}")
    advice = "" if facts.power_mode else "run `sudo nvpmodel -q`"
    if facts.power_mode and not facts.power_mode.startswith(FULL_POWER):
        advice = "sudo nvpmodel -m 0 (all cores and clocks; may reboot), then sudo jetson_clocks"
    yield _fact("power mode", facts.power_mode or "nvpmodel did not answer", advice)
    if not facts.clocks:
        yield _fact("clocks", "unknown", "sudo jetson_clocks --show (needs root to read)")
        return
    shown = [c for c in facts.clocks if not c.name.startswith("cpu")]
    detail = ", ".join(f"{c.name} {c.current / 1e6:.0f} of {c.maximum / 1e6:.0f} MHz" for c in shown)
    low = ", ".join(c.name for c in facts.clocks if not c.locked)
    advice = f"sudo jetson_clocks: {low} may fall below their maximum" if low else ""
    yield _fact("clocks", detail or "no GPU or memory clock shown", advice)
