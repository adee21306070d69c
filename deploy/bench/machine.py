"""The machine that a figure belongs to: processor, load, bandwidth, versions, commit; on a Jetson its power mode."""

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

from edge_client.cli.doctor import Board
from testing.programs import ROOT

COPY_BYTES = 128 << 20
COPIES = 7
PACKAGES = ("onnxruntime", "onnxruntime-gpu", "numpy", "grpcio", "faiss-cpu")


def describe(threads: int) -> dict[str, Any]:
    """Everything about the machine as JSON; measures its bandwidth, which takes about a second."""
    found, board = importlib.metadata.packages_distributions().values(), Board.here()
    installed = {name for names in found for name in names}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "copy_gb_per_s": round(copy_gb_per_s(threads), 2),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES if name in installed},
        **({} if board is None else {"board": board.model, "l4t": board.l4t, "power_mode": board.power_mode}),
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
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.machine()


def commit() -> str:
    """The commit of the working tree, with a plus if files differ from it; "unknown" without git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
