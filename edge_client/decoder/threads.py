"""How many threads run a decoder on the CPU: the cores of this machine, and a measurement whose result is kept."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from memory3.runtime.backend import DecoderBackend, RunInput
from memory3.runtime.onnx_runtime import ort

THREADS = "threads.json"
"""In the cache folder: the numbers of threads that were measured."""
GAIN = 0.1
"""More threads must make a step at least this much faster: fewer leave cores for embedding and retrieval."""
STEPS, WARM_UP = 12, 3
MEASURED_ROWS = 256
"""Tokens of the text while threads are measured."""

OTHERS = 0.1
"""Share of the machine's processors that other programs may take: next to more of them nothing is measured or kept."""
LOOK_S = 0.2
"""How long it is looked what other programs do, before a measurement."""

Backend = TypeVar("Backend", bound=DecoderBackend)

log = logging.getLogger(__name__)
loading = logging.getLogger("edge_client.loading")


def physical_cores() -> int:
    """Cores that this process may run on; two hyperthreads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    usable = os.sched_getaffinity(0)
    siblings = set()
    for number in usable:
        with suppress(OSError):
            file = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
            siblings.add(file.read_text().strip())
    return len(siblings) or len(usable)


def processor_s() -> tuple[float, float]:
    """Seconds since the start of machine and process that all processors worked, and that they did for this process.

    Both are 0 where the system does not say.
    """
    with suppress(OSError, ValueError, IndexError):
        user, nice, system, _, _, irq, softirq, *_ = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        )
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"), time.process_time()
    return 0.0, 0.0


def step_ms(graph: DecoderBackend) -> float:
    """Milliseconds of one decoding step behind some text: the median of some, after some to warm up."""
    runner, step, times = graph.runner(MEASURED_ROWS, 1), RunInput([0], 0, MEASURED_ROWS - 1, False), []
    for _ in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        runner.run(0, [step])
        times.append(time.perf_counter() - begun)
    return 1e3 * sorted(times[WARM_UP:])[STEPS // 2]


def others_since() -> Callable[[], float]:
    """A function that returns the share of the machine's processors that other programs took since this call."""
    begun, worked_before_s, own_before_s = time.perf_counter(), *processor_s()

    def share() -> float:
        worked_s, own_s = processor_s()
        taken_s = (worked_s - worked_before_s) - (own_s - own_before_s)
        return max(0.0, taken_s / ((time.perf_counter() - begun) * (os.cpu_count() or 1)))

    return share


def fastest(opened: Callable[[int], Backend], path: Path, file: Path) -> Backend:
    """A graph with the number of threads that was measured, now or before. path: its file; `file` keeps the results.

    Next to other programs a measurement would say little and open the graph several times, when that takes longest: the
    graph gets the cores that they leave. Nor is a measurement kept next to which others began to work.
    """
    cores = physical_cores()
    stat = path.stat()
    key = f"{platform.node()}/{ort.__version__}/{cores}/{stat.st_size}/{stat.st_mtime_ns}"
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        known = dict(json.loads(file.read_text(encoding="utf-8")))
    count = known.get(key)
    if isinstance(count, int) and 1 <= count <= cores:
        return opened(count)
    if cores == 1:
        return opened(1)
    others = others_since()
    time.sleep(LOOK_S)
    if (taken := others()) > OTHERS:
        left = max(1, cores - round(taken * (os.cpu_count() or 1)))
        log.info(f"threads_not_measured chosen={left} others={taken:.2f}")
        return opened(left)
    loading.info("measuring with how many threads it is fastest")
    others, graph = others_since(), opened(1)
    chosen, measured = 1, {1: step_ms(graph)}
    for count in sorted({*(2**n for n in range(1, int(math.log2(cores)) + 1)), cores}):
        del graph  # one at a time: a large model does not fit twice
        graph = opened(count)
        measured[count] = step_ms(graph)
        if measured[count] > measured[chosen] * (1 - GAIN):
            break
        chosen = count
    taken = others()
    log.info(f"threads_measured chosen={chosen} ms_by_threads={measured} others={taken:.2f}")
    if graph.threads != chosen:
        del graph
        graph = opened(chosen)
    if taken > OTHERS:
        return graph
    with suppress(OSError):  # without room or permission it is measured again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{os.getpid()}")
        partial.write_text(json.dumps({**known, key: chosen}, indent=1), encoding="utf-8")
        partial.replace(file)
    return graph
