"""`DecoderGraph`: the decoder's weights on ONNX Runtime, opened once; `Runner`: runs of it over the caches.

A graph knows the file, its execution provider and how many threads run it. A runner reads a prompt's tokens of one
sequence, or one token of several; it knows tokens, positions and rows, and nothing about who they belong to.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edge_client.decoder.kv import BUCKET, Buffer, Caches
from edge_client.decoder.providers import (
    CONTEXT,
    PARALLEL,
    EngineCache,
    cache_folder,
    graph_path,
    missing,
    named_errors,
    open_session,
    torch_graph,
)
from memory3.cache_layout import TEXT, Row, mask_name, rows_name
from memory3.codec.payload import MemoryFormat
from memory3.config import ModelConfig
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.onnx_runtime import ort

Threads = int | Literal["auto"]
THREADS = "threads.json"
"""In the cache folder: the numbers of threads that were measured."""
GAIN = 0.1
"""More threads must make a step at least this much faster: fewer leave cores for embedding and retrieval."""
STEPS, WARM_UP = 12, 3
MEASURED_ROWS = 256
"""Tokens of the text while threads are measured."""
BINDINGS = 24
"""Shapes of runs that stay bound; a prompt's last piece may have any length."""
BIG_PAGE = 2 << 20
ANONYMOUS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\])?$", re.MULTILINE)

# The flash attention of GroupQueryAttention makes a step on the CPU slower, by 5 to 8 % behind 255 tokens and by 20 %
# behind 1,000, and no prompt faster. The runtime reads this when it makes the node.
os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")

log = logging.getLogger(__name__)


class DecoderGraph:
    """An opened `decoder.onnx`. Thread-safe: any number of decoders may run it at the same time.

    config: the shape in the file's properties. precision: of the weights. fused: whether it is the spelling for the
    CPU provider. provider: what runs it (cpu, cuda, tensorrt); warning: why that is not a better
    one, or "". device: where caches lie, "cpu" or "cuda"; cache_dtype: float32 or float16. threads: of its products.
    """

    def __init__(self, session: ort.InferenceSession, provider: str, warning: str = "", threads: int = 1) -> None:
        properties = session.get_modelmeta().custom_metadata_map
        self.session = session
        try:
            self.config = ModelConfig.from_dict(json.loads(properties["config"]))
            self.precision = properties["precision"]
        except (KeyError, ValueError, InvalidInput) as error:
            raise CorruptFile(f"decoder.onnx is not a decoder of ours, by its properties: {error}") from error
        self.fused = properties.get("operators") == "fused"
        half = properties.get("compute") == "float16"
        self.cache_dtype: type[np.generic] = np.float16 if half else np.float32
        self.provider, self.warning = provider, warning
        self.device = "cpu" if provider == "cpu" else "cuda"
        self.threads = threads

    def __del__(self) -> None:
        # The last model with these weights is gone: the system gets their memory, not the C library.
        self.__dict__.clear()
        return_free_memory()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        threads: Threads = "auto",
        provider: str = "auto",
        context: int = CONTEXT,
        parallel: int = PARALLEL,
        model: Path | None = None,
    ) -> DecoderGraph:
        """Open `decoder.onnx` as `memory_model.export` writes it, or the spelling for the CPU beside it.

        threads: of the matrix products on the CPU; "auto" measures at the first load and keeps the result. provider: a
        name of `edge_client.decoder.providers`. context, parallel: text rows and sequences that TensorRT's engine
        takes. model: the folder whose weights torch takes, None for the packaged one. Raises MissingFile, CorruptFile,
        InvalidInput, ProviderError; with torch ModelMismatch.
        """
        path = Path(path)
        if provider == "torch":
            return torch_graph(path, model, threads)
        if not path.is_file():
            raise MissingFile(f"no decoder at {path}: make it with `memory-model export`")
        folder = cache_folder(path)

        def opened(count: int) -> DecoderGraph:
            with named_errors(str(path)), in_huge_pages():
                engines = None
                if provider in ("auto", "tensorrt") and not missing("tensorrt"):
                    engines = EngineCache.of(path, folder, context, parallel)
                return cls(*open_session(path, session_options(count), provider, engines), count)

        if threads != "auto":
            return opened(threads)
        return _fastest(opened, path, folder / THREADS)

    def reading(self, memory_format: MemoryFormat) -> MemoryFormat:
        """The format with which memories are decompressed for this graph: here as it is, on the CPU, by any thread."""
        return memory_format

    def runner(self, context: int, parallel: int, prefix: Sequence[int] = ()) -> Runner:
        """New caches. prefix: what every sequence begins with, if anything; it is read like any text."""
        return Runner(self, context, parallel)


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
    runner, row, times = graph.runner(MEASURED_ROWS, 1), Row([0], 0, MEASURED_ROWS - 1, False), []
    for _ in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        runner.run(0, [row])
        times.append(time.perf_counter() - begun)
    return 1e3 * sorted(times[WARM_UP:])[STEPS // 2]


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
    chosen, measured = 1, {1: step_ms(graph)}
    for count in sorted({*(2**n for n in range(1, int(math.log2(cores)) + 1)), cores}):
        del graph  # one at a time: a large model does not fit twice
        graph = opened(count)
        measured[count] = step_ms(graph)
        if measured[count] > measured[chosen] * (1 - GAIN):
            break
        chosen = count
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


@dataclass
class _Binding:
    """One shape of run, bound. small: arrays of the host's, by input; kept: what the binding has addresses of."""

    io: ort.IOBinding
    small: dict[str, np.ndarray]
    rows: dict[int, np.ndarray]
    logits: np.ndarray
    kept: list[object]


class Runner:
    """One graph with its caches and rotary tables for `context` tokens of text. One run of a place at a time."""

    def __init__(self, graph: DecoderGraph, context: int, parallel: int) -> None:
        self.graph, self.config = graph, graph.config
        self.caches = Caches(graph.config, context, parallel, graph.cache_dtype, graph.device)
        self._layouts = self.caches.layout.numbers
        self._bindings: dict[tuple[int, int, int, int, int], _Binding] = {}
        positions = max(context + self.config.memory.reference_tokens, *(self.caches.rows(n) for n in self._layouts))
        angles = np.arange(positions)[:, None] * self.config.frequencies
        self._tables = {
            name: ort.OrtValue.ortvalue_from_numpy(turn(angles).astype(np.float32), graph.device, 0)
            for name, turn in (("rotary_cos", np.cos), ("rotary_sin", np.sin))
        }

    def run(self, first: int, rows: Sequence[Row], *, all_logits: bool = False) -> np.ndarray:
        """Read new tokens of the sequences at the places from `first` on, as many of each.

        Returns logits float32 [sequences, vocabulary] after each one's last token; `all_logits`: [tokens, vocabulary]
        after every token. The next such run overwrites the array.
        """
        count, wanted = len(rows[0].tokens), len(rows[0].tokens) if all_logits else 1
        seen = -(-max(row.length + count for row in rows) // BUCKET) * BUCKET if not self.graph.fused else 0
        key = first, len(rows), count, wanted, seen
        binding = self._bindings.get(key) or self._bind(*key)
        small = binding.small
        for number, row in enumerate(rows):
            small["token_ids"][number] = row.tokens
            small["position_ids"][number] = np.arange(row.position, row.position + count) if count > 1 else row.position
            for layout, starts in binding.rows.items():
                starts[number] = self.caches.first_row(layout, row.memory) + row.length
        if self.graph.device != "cpu":  # the runtime copies them when they are bound
            for name, array in small.items():
                binding.io.bind_cpu_input(name, array)
        self.graph.session.run_with_iobinding(binding.io)
        return binding.logits

    def release(self, place: int) -> None:
        """The logits that the runs of this place alone returned are not overwritten any more."""
        bindings = list(self._bindings.items())  # at once: what is read beside may add one
        self._bindings = {key: b for key, b in bindings if key[0] != place or key[1] > 1}

    def _bind(self, first: int, sequences: int, count: int, wanted: int, seen: int) -> _Binding:
        """Allocate and bind everything that a run of this shape reads and writes."""
        each = np.arange(count - wanted, count) + count * np.arange(sequences)[:, None]
        rows = {layout: np.zeros(sequences, np.int64) for layout in self._layouts}
        small: dict[str, np.ndarray] = {
            "token_ids": np.zeros((sequences, count), np.int64),
            "position_ids": np.zeros((sequences, count), np.int64),
            "output_rows": each.reshape(-1).astype(np.int64),
            **{rows_name(layout): starts for layout, starts in rows.items()},
            **{mask_name(n): self.caches.masks[n][first : first + sequences] for n in self._layouts if n != TEXT},
        }
        if not self.graph.fused:
            small |= {"batch_ids": np.arange(sequences), "columns": np.arange(seen)}
        io, kept = self.graph.session.io_binding(), []
        for name, array in small.items():
            kept.append(ort.OrtValue.ortvalue_from_numpy(array))
            io.bind_ortvalue_input(name, kept[-1])
        for name, buffer in self.caches.buffers.items():  # written where it is read
            buffer.part(first, first + sequences).bind(io, read=name, write=f"{name}_out")
        for name, table in self._tables.items():
            io.bind_ortvalue_input(name, table)
        logits = Buffer.zeros((each.size, self.config.vocabulary), np.float32)
        logits.bind(io, write="logits")
        kept.append(logits)
        binding = _Binding(io, small, rows, logits.array, kept)
        if len(self._bindings) >= BINDINGS:
            oldest, *_ = self._bindings
            self._bindings.pop(oldest, None)
        self._bindings[first, sequences, count, wanted, seen] = binding
        return binding


def return_free_memory() -> None:
    """Give the heap's free pages to the system: glibc keeps most of a closed model, 190 of 430 MB. Never raises."""
    if not sys.is_finalizing() and sys.platform.startswith("linux") and hasattr(_libc(), "malloc_trim"):
        _libc().malloc_trim(ctypes.c_size_t(0))


@contextmanager
def in_huge_pages() -> Iterator[None]:
    """Memory that is allocated meanwhile gets pages of 2 MB, where Linux has them. Never raises.

    A step reads all weights, and with pages of 4 KB a fifth of it is page walks. Linux gives big pages to whoever asks
    (`madvise`, the setting of most distributions), and the runtime does not ask.
    """
    before = _big_pages()
    yield
    for page in sorted(_big_pages() - before):
        for advice in (14, 25):  # MADV_HUGEPAGE: from now on; MADV_COLLAPSE: at once, Linux 6.1
            _libc().madvise(ctypes.c_void_p(page), ctypes.c_size_t(BIG_PAGE), advice)


def _big_pages() -> set[int]:
    """Addresses of 2 MB that lie in writable memory of this process which belongs to no file."""
    try:
        found = ANONYMOUS.findall(Path("/proc/self/maps").read_text())
    except OSError:  # no Linux
        return set()
    ranges = ((int(start, 16), int(end, 16)) for start, end in found)
    return {p for start, end in ranges for p in range(-(-start // BIG_PAGE) * BIG_PAGE, end - BIG_PAGE + 1, BIG_PAGE)}


@cache  # every CDLL makes a class of its own, which waits for Python's collector
def _libc() -> Any:
    return ctypes.CDLL(None)
