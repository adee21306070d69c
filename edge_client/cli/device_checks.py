"""The doctor's part about the device itself: board, JetPack, TensorRT, power, clocks, providers, memory."""

from __future__ import annotations

from collections.abc import Iterator

import onnxruntime as ort

from edge_client.cli.check import Check
from edge_client.cli.device_facts import (
    DeviceFacts,
    copy_bandwidth_gb_s,
    device_facts,
    gpu_wheel,
    usable_cores,
)
from edge_client.decoder.providers import ORDER, RUNTIME_NAMES, check_name, tensorrt_version
from memory_model.codec.native.library import installed, why_missing

FULL_POWER = "MAXN"
"""Both MAXN and MAXN_SUPER: no limit. Other modes halve clocks and with them tokens a second."""


def device_checks(wanted: str, threads: int, facts: DeviceFacts | None = None) -> Iterator[Check]:
    """What this device is and has. wanted: the provider in the settings; threads: of the decoder."""
    check_name(wanted)
    facts = facts or device_facts()
    yield _board(facts)
    if facts.jetson:
        yield _power(facts)
        yield _clocks(facts)
    if facts.gpu:
        yield _tensorrt(facts)
        yield Check("CUDA", True, facts.cuda or "no toolkit found in /usr/local/cuda", fact=True)
    yield _providers(wanted, facts)
    yield _decompression()
    cores = usable_cores()
    advice = ""
    if threads > cores:
        advice = f"set EDGE_CLIENT_THREADS to {cores} or less: more threads than cores slow each other down"
    yield Check("threads", not advice, f"{threads} of {cores} usable core(s)", fact=not advice, advice=advice)
    yield Check(
        "memory bandwidth",
        True,
        f"{copy_bandwidth_gb_s():.1f} GB/s read and written by one core's copy (a token reads every weight once)",
        fact=True,
    )


def _decompression() -> Check:
    library = installed()
    if library is None:
        return Check(
            "decompression", True, "in numpy", fact=True, advice=f"faster when compiled ({why_missing()})"
        )
    return Check("decompression", True, f"compiled, {library.name} instructions", fact=True)


def _board(facts: DeviceFacts) -> Check:
    if not facts.jetson:
        gpu = ", with an NVIDIA GPU" if facts.gpu else ", no NVIDIA GPU"
        return Check("device", True, f"{facts.machine}, not a Jetson{gpu}", fact=True)
    pack = facts.jetpack
    ships = (
        f"JetPack {pack.version} (TensorRT {pack.tensorrt}, CUDA {pack.cuda})" if pack else "unknown JetPack"
    )
    return Check("device", True, f"{facts.model or 'Jetson'}, L4T {facts.l4t}, {ships}", fact=True)


def _power(facts: DeviceFacts) -> Check:
    if not facts.power_mode:
        return Check(
            "power mode", True, "nvpmodel did not answer", fact=True, advice="run `sudo nvpmodel -q`"
        )
    full = facts.power_mode.startswith(FULL_POWER)
    advice = "" if full else "sudo nvpmodel -m 0 (all cores and clocks; may reboot), then sudo jetson_clocks"
    return Check("power mode", True, facts.power_mode, fact=True, advice=advice)


def _clocks(facts: DeviceFacts) -> Check:
    if not facts.clocks:
        return Check(
            "clocks", True, "unknown", fact=True, advice="sudo jetson_clocks --show (needs root to read)"
        )
    shown = [c for c in facts.clocks if not c.name.startswith("cpu")]
    detail = ", ".join(f"{c.name} {c.current / 1e6:.0f} of {c.maximum / 1e6:.0f} MHz" for c in shown)
    low = [c.name for c in facts.clocks if not c.locked]
    advice = f"sudo jetson_clocks: {', '.join(low)} may fall below their maximum" if low else ""
    return Check("clocks", True, detail or "no GPU or memory clock shown", fact=True, advice=advice)


def _tensorrt(facts: DeviceFacts) -> Check:
    return Check("TensorRT", True, tensorrt_version() or "does not load", fact=True)


def _providers(wanted: str, facts: DeviceFacts) -> Check:
    available = ort.get_available_providers()
    have = [name for name in ORDER if RUNTIME_NAMES[name] in available]
    detail = f"onnxruntime {ort.__version__} has {', '.join(have)}; wanted: {wanted}"
    missing = wanted not in ("auto", *have) or (wanted == "auto" and facts.gpu and "cuda" not in have)
    return Check(
        "providers", wanted in ("auto", *have), detail, fact=True, advice=gpu_wheel(facts) if missing else ""
    )
