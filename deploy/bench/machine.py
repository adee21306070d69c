"""The machine that a figure belongs to: processor, load, bandwidth, versions, commit; on a Jetson its power mode.

The Jetson part was not run: no board was at hand.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from edge_client.cli.doctor import Board

ROOT = Path(__file__).resolve().parents[2]
COPY_BYTES = 128 << 20
COPIES = 7
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
PACKAGES = ("onnxruntime", "onnxruntime-gpu", "numpy", "grpcio", "faiss-cpu")


def describe(threads: int) -> dict[str, Any]:
    """Everything about the machine as JSON; measures its bandwidth, which takes about a second."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "copy_gb_per_s": round(copy_gb_per_s(threads), 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := installed(name))},
        **power_mode(),
    }


def copy_gb_per_s(threads: int = 1) -> float:
    """Memory bandwidth in GB/s: bytes read plus bytes written by the best of some copies (as STREAM counts).

    threads: that copy at the same time, each a part. The arrays are larger than any last-level cache here.
    """
    source = np.ones(COPY_BYTES // 8)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    best = np.inf
    with ThreadPoolExecutor(threads) as pool:  # numpy copies without the interpreter's lock
        for _ in range(COPIES):
            began = time.perf_counter()
            list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))
            best = min(best, time.perf_counter() - began)
    return 2 * source.nbytes / best / 1e9


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    """The commit of the working tree, with a plus if files differ from it; empty without git."""
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        return name + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def commits_since(name: str) -> int | None:
    """How many commits this one is after another; None if that is not in its history."""
    try:
        _git("merge-base", "--is-ancestor", name, "HEAD")
        return int(_git("rev-list", "--count", f"{name}..HEAD"))
    except (OSError, subprocess.CalledProcessError):
        return None


def installed(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def power_mode() -> dict[str, Any]:
    """The frequency governor; on a Jetson, which board it is and its power mode."""
    found: dict[str, Any] = {"governor": GOVERNOR.read_text().strip()} if GOVERNOR.is_file() else {}
    if (board := Board.here()) is not None:
        found |= {"board": board.model, "l4t": board.l4t, "power_mode": board.power_mode}
    return found
