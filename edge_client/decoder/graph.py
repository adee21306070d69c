"""`DecoderGraph`: the decoder's weights on ONNX Runtime, opened once and shared by every conversation.

Knows the file, its execution provider and how many threads run it; the key-values of a conversation are
`edge_client.decoder.runner`'s.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort

from edge_client.decoder.huge_pages import in_huge_pages
from edge_client.decoder.providers import (
    CONTEXT,
    PARALLEL,
    EngineCache,
    OpenedSession,
    cache_folder,
    check_name,
    graph_path,
    missing,
    named_errors,
    open_session,
)
from memory_model.config import ModelConfig
from memory_model.errors import CorruptFile, InvalidInput, MissingFile

Threads = int | Literal["auto"]
THREADS = "threads.json"
"""In the cache folder: the numbers of threads that were measured."""
GAIN = 0.1
"""More threads must make a step at least this much faster: fewer leave cores for embedding and retrieval."""
STEPS, WARM_UP = 12, 3
MEASURED_ROWS = 256
"""Tokens of the text while threads are measured."""

log = logging.getLogger(__name__)


class DecoderGraph:
    """An opened `decoder.onnx`. Thread-safe: any number of decoders may run it at the same time.

    config: the shape in the file's properties. precision: of the weights. fused: whether it is the spelling for the
    CPU provider. inputs: their names. provider: what runs it (cpu, cuda, tensorrt); warning: why that is not a better
    one, or "". device: where caches lie, "cpu" or "cuda"; cache_dtype: float32 or float16. threads: of its products.
    """

    def __init__(self, opened: OpenedSession, threads: int = 1) -> None:
        properties = opened.session.get_modelmeta().custom_metadata_map
        self.session = opened.session
        try:
            self.config = ModelConfig.from_dict(json.loads(properties["config"]))
            self.precision = properties["precision"]
        except (KeyError, ValueError, InvalidInput) as error:
            raise CorruptFile(f"decoder.onnx is not a decoder of ours, by its properties: {error}") from error
        self.fused = properties.get("operators") == "fused"
        self.inputs = frozenset(given.name for given in self.session.get_inputs())
        half = properties.get("compute") == "float16"
        self.cache_dtype: type[np.generic] = np.float16 if half else np.float32
        self.provider, self.warning, self.device = opened.provider, opened.warning, opened.device
        self.threads = threads

    def __del__(self) -> None:
        # The last model with these weights is gone: the system gets their memory, not the C library.
        self.__dict__.clear()
        return_free_memory()

    @classmethod
    def open(
        cls, path: str | Path, *, threads: Threads = "auto", provider: str = "auto",
        context: int = CONTEXT, parallel: int = PARALLEL,
    ) -> DecoderGraph:  # fmt: skip
        """Open `decoder.onnx` as `memory_model.export` writes it, or the spelling for the CPU beside it.

        threads: of the matrix products on the CPU; "auto" measures at the first load and keeps the result. provider: a
        name of `edge_client.decoder.providers`. context, parallel: text rows and sequences that TensorRT's engine
        takes. Raises MissingFile, CorruptFile, InvalidInput, ProviderError.
        """
        path = Path(path)
        if not path.is_file():
            raise MissingFile(f"no decoder at {path}: make it with `memory-model export`")
        check_name(provider)
        folder = cache_folder(path)

        def opened(count: int) -> DecoderGraph:
            with named_errors(str(path)), in_huge_pages():
                engines = None
                if provider in ("auto", "tensorrt") and not missing("tensorrt"):
                    engines = EngineCache.of(path, folder, context, parallel)
                return cls(open_session(path, session_options(count), provider, engines), count)

        if threads != "auto":
            return opened(threads)
        return _fastest(opened, path, folder / THREADS)


def session_options(threads: int, *, rounded: bool = True) -> ort.SessionOptions:
    """Options that the decoder's speed rests on, whatever the provider. rounded: int8 activations on the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # int8 activations in the int4 and int8 kernels: the fast path.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4" if rounded else "0")
    # Threads sleep while nothing is to be done, so that a retrieval beside them gets its core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def physical_cores() -> int:
    """Cores that this process may run on; two hyperthreads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    usable = os.sched_getaffinity(0)
    siblings = set()
    for number in usable:
        with suppress(OSError):
            place = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
            siblings.add(place.read_text().strip())
    return len(siblings) or len(usable)


def step_ms(graph: DecoderGraph) -> float:
    """Milliseconds of one decoding step behind some text: the median of some, after some to warm up."""
    from edge_client.decoder.runner import Row, Runner  # which runs what is opened here

    runner, row, times = Runner(graph, MEASURED_ROWS, 1), Row([0], 0, MEASURED_ROWS - 1, False), []
    for _ in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        runner.run(0, [row])
        times.append(time.perf_counter() - begun)
    return 1e3 * sorted(times[WARM_UP:])[STEPS // 2]


def fastest(counts: Sequence[int], measure: Callable[[int], float]) -> int:
    """The count after which more threads gain less than a tenth. measure: milliseconds of a step with so many."""
    chosen, best = counts[0], measure(counts[0])
    for count in counts[1:]:
        found = measure(count)
        if found > best * (1 - GAIN):
            break
        chosen, best = count, found
    return chosen


def _fastest(opened: Callable[[int], DecoderGraph], path: Path, file: Path) -> DecoderGraph:
    """A graph with as many threads as was measured now or before; `file` keeps the results."""
    cores = physical_cores()
    stat = graph_path(path, "cpu").stat()
    key = f"{platform.node()}/{ort.__version__}/{cores}/{stat.st_size}/{stat.st_mtime_ns}"
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        known = dict(json.loads(file.read_text(encoding="utf-8")))
    count = known.get(key)
    if isinstance(count, int) and 1 <= count <= cores:
        return opened(count)
    graph = opened(1)
    if graph.provider != "cpu" or cores == 1:
        return graph  # an accelerator leaves the CPU nothing to divide
    counts = sorted({*(2**n for n in range(int(math.log2(cores)) + 1)), cores})
    measured: dict[int, float] = {}

    def measure(threads: int) -> float:
        nonlocal graph
        if graph.threads != threads:
            del graph  # one at a time: a large model does not fit twice
            graph = opened(threads)
        measured[threads] = step_ms(graph)
        return measured[threads]

    chosen = fastest(counts, measure)
    log.info(f"threads_measured chosen={chosen} ms_by_threads={measured}")
    if graph.threads != chosen:
        del graph
        graph = opened(chosen)
    with suppress(OSError):  # without room or permission it is measured again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{os.getpid()}")
        partial.write_text(json.dumps({**known, key: chosen}, indent=1), encoding="utf-8")
        partial.replace(file)
    return graph


def return_free_memory() -> None:
    """Give the heap's free pages back to the system, where the C library is glibc (decision 0029). Never raises.

    glibc keeps what is freed for allocations to come: of a model that was closed, most of its weights.
    """
    if not sys.is_finalizing() and (trim := _malloc_trim()) is not None:
        trim(0)


@cache  # every CDLL makes a class of its own, which waits for Python's collector
def _malloc_trim() -> Any:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim.argtypes = (ctypes.c_size_t,)
    return trim
