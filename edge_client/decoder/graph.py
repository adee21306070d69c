"""`DecoderGraph`: the decoder's weights on ONNX Runtime, opened once; `Runner`: runs of it over the caches.

A graph knows the file, its execution provider and how many threads run it. A runner reads a prompt's tokens of one
sequence, or one token of several; it knows tokens, positions and rows, and nothing about who they belong to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.decoder.kv import BUCKET, CPU, Buffer, Caches, Device
from memory3.codec.payload import ExplicitMemory
from memory3.config import ModelConfig
from memory3.errors import CorruptFile, InvalidInput
from memory3.process_memory import return_free_memory
from memory3.runtime.attention import memory_tensors
from memory3.runtime.backend import DecoderBackend, DecoderRunner, RunInput, TextRows
from memory3.runtime.cache_layout import TEXT, mask_name, rows_name
from memory3.runtime.onnx_runtime import ort

BINDINGS = 24
"""Shapes of runs that stay bound; a prompt's last piece may have any length."""

# The flash attention of GroupQueryAttention makes a step on the CPU slower, by 5 to 8 % behind 255 tokens and by 20 %
# behind 1,000, and no prompt faster. The runtime reads this when it makes the node.
os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")


class DecoderGraph(DecoderBackend):
    """An opened `decoder.onnx`. Thread-safe: any number of decoders may run it at the same time.

    fused: whether it is the variant for the CPU provider. cache_dtype: float32 or float16.
    """

    def __init__(
        self, session: ort.InferenceSession, provider: str = "cpu", device: Device = CPU, threads: int = 1
    ) -> None:
        """See `edge_client.decoder.providers.open_decoder`. Raises CorruptFile for a graph of something else."""
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
        self.query_outputs = self._query_outputs()
        self.records_queries = bool(self.query_outputs)
        self.provider, self.caches_on, self.device = provider, device, device.name
        self.threads, self.warning = threads, ""

    def __del__(self) -> None:
        # The last model with these weights is gone: the system gets their memory, not the C library.
        self.__dict__.clear()
        return_free_memory()

    def _query_outputs(self) -> dict[str, tuple[list[str | int], int]]:
        """By name the shape of every output with queries, and how many of a token's numbers are queries."""
        declared = {output.name: output.shape for output in self.session.get_outputs()}
        tensors, width = memory_tensors(self.config), self.config.group * self.config.head_dim
        if any(tensor.queries not in declared for tensor in tensors):
            return {}  # exported before there were any
        return {t.queries: (declared[t.queries], len(t.heads) * width) for t in tensors}

    def runner(self, context: int, parallel: int, prefix: Sequence[int] = ()) -> Runner:
        """New caches. prefix: what every sequence begins with, if anything; it is read like any text."""
        return Runner(self, context, parallel)


@dataclass
class _Binding:
    """One shape of run, bound. small: arrays of the host's, by input; kept: what the binding has addresses of.

    queries: of every layer with memory heads [sequences, tokens with logits, width], where they are recorded.
    """

    io: ort.IOBinding
    small: dict[str, np.ndarray]
    rows: dict[int, np.ndarray]
    logits: np.ndarray
    queries: list[np.ndarray]
    kept: list[object]


class Runner(DecoderRunner):
    """One graph with its caches and rotary tables for `context` tokens of text. One run of a slot at a time."""

    def __init__(self, graph: DecoderGraph, context: int, parallel: int) -> None:
        self.graph, self.config = graph, graph.config
        self.caches = Caches(graph.config, context, parallel, graph.cache_dtype, graph.caches_on)
        self._layouts = self.caches.layout.numbers
        self._bindings: dict[tuple[int, int, int, int, int, bool], _Binding] = {}
        positions = max(context + self.config.memory.reference_tokens, *(self.caches.rows(n) for n in self._layouts))
        angles = np.arange(positions)[:, None] * self.config.frequencies
        self._tables = {
            name: ort.OrtValue.ortvalue_from_numpy(turn(angles).astype(np.float32), graph.device, 0)
            for name, turn in (("rotary_cos", np.cos), ("rotary_sin", np.sin))
        }

    def run(self, first: int, inputs: Sequence[RunInput], *, all_logits: bool = False) -> np.ndarray:
        """See `DecoderRunner.run`."""
        count = len(inputs[0].tokens)
        logit_rows = count if all_logits else 1
        seen = -(-max(row.length + count for row in inputs) // BUCKET) * BUCKET if not self.graph.fused else 0
        records = any(row.record is not None for row in inputs)
        key = first, len(inputs), count, logit_rows, seen, records
        binding = self._bindings.get(key) or self._bind(*key)
        small = binding.small
        for number, row in enumerate(inputs):
            small["token_ids"][number] = row.tokens
            small["position_ids"][number] = np.arange(row.position, row.position + count) if count > 1 else row.position
            for layout, starts in binding.rows.items():
                starts[number] = self.caches.first_row(layout, row.memory) + row.length
        if self.graph.device != "cpu":  # the runtime copies them when they are bound
            for name, array in small.items():
                binding.io.bind_cpu_input(name, array)
        self.graph.session.run_with_iobinding(binding.io)
        for number, row in enumerate(inputs if records else ()):
            if row.record is not None:
                queries = np.concatenate([layer[number] for layer in binding.queries], axis=1)
                row.record.add(row.length + count - logit_rows, queries)
        return binding.logits

    def release(self, slot: int) -> None:
        """See `DecoderRunner.release`."""
        bindings = list(self._bindings.items())  # at once: a background run may add one
        self._bindings = {key: b for key, b in bindings if key[0] != slot or key[1] > 1}

    def clear(self, slot: int, memory: bool) -> None:
        """See `DecoderRunner.clear`."""
        self.caches.clear(slot, memory)

    def inject(self, slot: int, memories: Sequence[ExplicitMemory]) -> None:
        """See `DecoderRunner.inject`."""
        self.caches.inject(slot, memories)

    def read_text(self, slot: int, memory: bool, tokens: int, names: Collection[str] = ()) -> TextRows:
        """See `DecoderRunner.read_text`."""
        return self.caches.read(slot, memory, tokens, names)

    def write_text(self, slot: int, memory: bool, rows: TextRows) -> None:
        """See `DecoderRunner.write_text`."""
        self.caches.write(slot, memory, {name: np.asarray(array) for name, array in rows.items()})

    def _bind(self, first: int, sequences: int, count: int, logit_rows: int, seen: int, records: bool) -> _Binding:
        """Allocate and bind everything that a run of this shape reads and writes."""
        each = np.arange(count - logit_rows, count) + count * np.arange(sequences)[:, None]
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
        queries = []
        sizes = {"B": sequences, "S": count, "BS": sequences * count}
        for name, (shape, width) in self.graph.query_outputs.items() if records else ():
            made = Buffer.zeros([n if isinstance(n, int) else sizes[n] for n in shape], self.graph.cache_dtype)
            made.bind(io, write=name)
            kept.append(made)
            queries.append(made.array.reshape(sequences, count, -1)[:, count - logit_rows :, :width])
        binding = _Binding(io, small, rows, logits.array, queries, kept)
        if len(self._bindings) >= BINDINGS:
            oldest, *_ = self._bindings
            self._bindings.pop(oldest, None)
        self._bindings[first, sequences, count, logit_rows, seen, records] = binding
        return binding
