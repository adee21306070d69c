"""Power mode, clocks and temperatures of the device: on a Jetson from nvpmodel, jetson_clocks and tegrastats.

Elsewhere nothing is recorded but the processor's own frequency governor. The Jetson part was written by NVIDIA's
documentation of the three programs and was not run by the authors: no board was at hand.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import fmean
from tempfile import TemporaryFile
from typing import Any

from edge_client.cli.device import Reader, device_facts

INTERVAL_MS = 500
GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


def described(reader: Reader | None = None) -> dict[str, Any]:
    """What the device says of its speed before anything is measured; empty where it says nothing."""
    reader = reader or Reader()
    found: dict[str, Any] = {}
    if governor := reader.file(GOVERNOR):
        found["governor"] = governor
    facts = device_facts(reader)
    if facts.jetson:
        found |= {
            "board": facts.model, "l4t": facts.l4t, "jetpack": facts.jetpack.version if facts.jetpack else "",
            "power_mode": facts.power_mode, "clocks": [asdict(c) for c in facts.clocks],
            "clocks_locked": all(c.locked for c in facts.clocks) if facts.clocks else None,
        }  # fmt: skip
    return found


@contextmanager
def recording() -> Iterator[dict[str, Any]]:
    """Runs tegrastats meanwhile, if there is one; what it said stands under `tegrastats` when the block has ended."""
    recorded: dict[str, Any] = {}
    program = shutil.which("tegrastats")
    if program is None:
        yield recorded
        return
    with TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen([program, "--interval", str(INTERVAL_MS)], stdout=output)
        try:
            yield recorded
        finally:
            process.terminate()
            process.wait()
            output.seek(0)
            recorded["tegrastats"] = summary(output.read().splitlines())


def summary(lines: Sequence[str]) -> dict[str, Any]:
    """Mean and largest of every temperature (°C) and power rail (mW) of tegrastats' lines.

    A line: `… CPU@48.2C GPU@45C … VDD_GPU_SOC 2400mW/2400mW VDD_CPU_CV 800mW/800mW …` (now/average).
    """
    degrees: dict[str, list[float]] = {}
    milliwatts: dict[str, list[float]] = {}
    for line in lines:
        for name, value in re.findall(r"(\w+)@(-?[\d.]+)C\b", line):
            degrees.setdefault(name, []).append(float(value))
        for name, value in re.findall(r"(\w+) (\d+)(?:mW)?/\d+(?:mW)?(?= |$)", line):
            if name != "RAM" and "SWAP" not in name:
                milliwatts.setdefault(name, []).append(float(value))
    return {
        "samples": len(lines),
        "temperature_c": {n: _mean_and_largest(v) for n, v in sorted(degrees.items())},
        "power_mw": {n: _mean_and_largest(v) for n, v in sorted(milliwatts.items())},
    }


def _mean_and_largest(values: Sequence[float]) -> dict[str, float]:
    return {"mean": round(fmean(values), 1), "largest": max(values)}
