"""`Runner`: runs of the decoder's graph over the caches. A prompt's tokens of one sequence, or one token of several.

Knows tokens, positions and rows; knows nothing about who they belong to. What a run of some shape reads and writes is
allocated and bound once: a step writes a token id, a position and row numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from edge_client.decoder.graph import DecoderGraph
from edge_client.decoder.kv import BUCKET, Caches
from edge_client.decoder.tensors import Buffer
from memory_model.cache_layout import TEXT, mask_name, rows_name

BINDINGS = 24
"""Shapes of runs that stay bound; a prompt's last piece may have any length."""


@dataclass(frozen=True)
class Row:
    """One sequence of a run: its new tokens, the position of the first, the text before them, whether it has memory."""

    tokens: Sequence[int]
    position: int
    length: int
    memory: bool


@dataclass
class _Binding:
    """One shape of run, bound. small: arrays of the host's, by input; kept: what the binding has addresses of."""

    io: ort.IOBinding
    small: dict[str, np.ndarray]
    rows: dict[int, np.ndarray]
    logits: np.ndarray
    kept: list[object]


class Runner:
    """One graph with its caches. One run at a time.

    context: tokens of text, which the rotary tables cover.
    """

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
        self._bindings = {key: b for key, b in self._bindings.items() if key[0] != place or key[1] > 1}

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
            del self._bindings[next(iter(self._bindings))]
        self._bindings[first, sequences, count, wanted, seen] = binding
        return binding
