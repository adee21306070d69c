"""The decoder on ONNX Runtime: prompt chunks and single steps over caches that are written in place.

Knows tokens, positions and memories; knows nothing about text, chat or retrieval. Everything a step needs
is allocated and bound beforehand: a step writes a token id, a position, a row number and one mask entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edge_client.decoder.graph import DecoderGraph
from edge_client.decoder.kv import CacheRows
from edge_client.errors import ContextFull, DecoderBroken
from memory_model.cache_layout import TEXT, mask_name, rows_name
from memory_model.codec.payload import ExplicitMemory
from memory_model.errors import InvalidInput

BINDINGS = 8
"""Shapes of runs that stay bound; a prompt's last chunk may have any length."""


@dataclass
class _Binding:
    """One shape of run, bound: arrays and OrtValues live here, because the runtime does not own them.

    opened: the text length for which the masks let a single token see all text and all memories; -1 where
    they must be filled anew.
    """

    io: ort.IOBinding
    tokens: np.ndarray
    positions: np.ndarray
    logits: np.ndarray
    layouts: list[tuple[int, np.ndarray | None, np.ndarray]]  # (layout, mask [1 or h, 1, S, R], rows [S])
    values: list[ort.OrtValue]
    opened: int = -1


class OnnxDecoder:
    """One conversation: its caches and what is bound to the graph. One thread at a time.

    graph: an opened graph, which many decoders may share, or the path of a `decoder.onnx`. threads: of the
    matrix kernels, where a path is given. Raises MissingFile, CorruptFile.
    """

    def __init__(self, graph: DecoderGraph | str | Path, *, threads: int = 1) -> None:
        self.graph = graph if isinstance(graph, DecoderGraph) else DecoderGraph.open(graph, threads=threads)
        self.config = self.graph.config
        self.precision, self.capacity = self.graph.precision, self.graph.capacity
        self.caches = CacheRows(self.config, self.capacity)
        self.length = 0
        self._layouts = self.caches.layout.numbers
        self._bindings: dict[tuple[int, int], _Binding] = {}
        self._count = np.arange(self.capacity)

    @property
    def provider(self) -> str:
        """The execution provider that runs the graph."""
        return self.graph.provider

    def run(self, tokens: Sequence[int], first_position: int, *, all_logits: bool = False) -> np.ndarray:
        """Read `tokens` after what is cached and return logits, float32 [1, vocabulary].

        first_position: rotary position of the first token; the others follow it. all_logits: one row for
        every token instead of the last one. The array is overwritten by the next run of the same shape.
        Raises InvalidInput, ContextFull (and then nothing changed), DecoderBroken.
        """
        count = len(tokens)
        self._check(tokens, first_position)
        if self.caches.fit(self.length + count):
            self._bindings.clear()
        wanted = count if all_logits else 1
        binding = self._bindings.get((count, wanted)) or self._bind(count, wanted)
        binding.tokens[:] = tokens
        if count == 1 and binding.opened == self.length:
            self._open_next(binding, first_position)
        else:
            np.add(self._count[:count], first_position, out=binding.positions)
            for layout, mask, rows in binding.layouts:
                self._fill(mask, rows, layout, count)
        binding.opened = -1  # until the run succeeded
        self.graph.session.run_with_iobinding(binding.io)
        self.length += count
        binding.opened = self.length if count == 1 else -1
        logits = binding.logits
        if np.isnan(logits[-1, 0]):
            raise DecoderBroken("the decoder's logits are NaN: the file or the execution provider is damaged")
        return logits

    def inject(self, memories: Sequence[ExplicitMemory]) -> None:
        """Read these memories from the next run on, instead of those read so far; none is a fine number."""
        if self.caches.inject(memories):
            self._bindings.clear()
        for binding in self._bindings.values():
            binding.opened = -1

    def rewind(self, length: int) -> None:
        """Forget the text after the first `length` tokens; what is kept is not computed again."""
        if not 0 <= length <= self.length:
            raise InvalidInput(f"cannot rewind to {length} tokens, {self.length} are cached")
        self.length = length
        if self.caches.fit(length, shrink=True):
            self._bindings.clear()

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of the key-values of the text, one array [heads, length, head_dim] for each cache tensor.

        The memories in the slots are not part of it: whoever restores injects them again.
        """
        return {name: self.caches.text(name)[:, : self.length].copy() for name in self.caches.names()}

    def restore(self, arrays: Mapping[str, np.ndarray], length: int) -> None:
        """Go on from a snapshot of `length` tokens; the memories in the slots stay as they are.

        Raises CorruptFile for arrays that are no snapshot of a decoder of this shape and ContextFull for
        more tokens than fit; then nothing changed.
        """
        if length > self.capacity:
            raise ContextFull(f"the saved conversation has {length} tokens, {self.capacity} fit here")
        self.caches.check_text(arrays, length)
        self.length = length
        if self.caches.fit(length, shrink=True):
            self._bindings.clear()
        for name, array in arrays.items():
            self.caches.text(name)[:, :length] = array

    def _check(self, tokens: Sequence[int], first_position: int) -> None:
        if not tokens:
            raise InvalidInput("the decoder needs at least one token")
        if min(tokens) < 0 or max(tokens) >= self.config.vocabulary:
            raise InvalidInput(f"token ids must be 0 to {self.config.vocabulary - 1}")
        limit = self.capacity + self.config.memory.reference_tokens
        if first_position < 0 or first_position + len(tokens) > limit:
            raise InvalidInput(
                f"positions must be 0 to {limit - 1}, not {first_position} + {len(tokens)} tokens"
            )
        if self.length + len(tokens) > self.capacity:
            raise ContextFull(
                f"{self.length} tokens are cached and {len(tokens)} more do not fit into {self.capacity}: "
                "start a new conversation or export a bundle with a larger --capacity"
            )

    def _open_next(self, binding: _Binding, position: int) -> None:
        """One more token like the last: its position, its row, and that it sees its own row."""
        binding.positions[0] = position
        for layout, mask, rows in binding.layouts:
            row = self.caches.slot_rows(layout) + self.length
            rows[0] = row
            if mask is not None:
                mask[..., row] = 0.0

    def _fill(self, mask: np.ndarray | None, rows: np.ndarray, layout: int, count: int) -> None:
        """Row numbers and the causal mask of the next `count` tokens."""
        first = self.caches.slot_rows(layout)
        start = first + self.length
        np.add(self._count[:count], start, out=rows)
        if mask is None:
            return
        if first:
            mask[..., :first] = self.caches.slot_masks[layout][:, None, None, :]
        mask[..., first:start] = 0.0
        mask[..., start:] = -np.inf
        for token in range(count):
            mask[..., token, start : start + token + 1] = 0.0

    def _bind(self, count: int, wanted: int) -> _Binding:
        """Allocate and bind everything that a run of this shape reads and writes."""
        inputs: dict[str, np.ndarray] = {
            "token_ids": np.zeros(count, np.int64),
            "position_ids": np.zeros(count, np.int64),
            "output_rows": np.arange(count - wanted, count, dtype=np.int64),
        }
        layouts: list[tuple[int, np.ndarray | None, np.ndarray]] = []
        for layout in self._layouts:
            lead = 1 if layout == TEXT else len(self.caches.slot_masks[layout])
            mask = np.zeros((lead, 1, count, self.caches.rows(layout)), np.float32)
            rows = np.zeros(count, np.int64)
            inputs |= {mask_name(layout): mask, rows_name(layout): rows}
            layouts.append((layout, mask if mask_name(layout) in self.graph.inputs else None, rows))
        io, values = self.graph.session.io_binding(), []
        for name, array in inputs.items():
            if name in self.graph.inputs:  # heads without slots need no mask in the fused spelling
                values.append(ort.OrtValue.ortvalue_from_numpy(array))
                io.bind_ortvalue_input(name, values[-1])
        for name in self.caches.names():  # written where it is read
            view = self.caches.view(name)
            values.append(ort.OrtValue.ortvalue_from_numpy(view[None] if self.graph.fused else view[:, None]))
            io.bind_ortvalue_input(name, values[-1])
            io.bind_ortvalue_output(f"{name}_out", values[-1])
        logits = np.zeros((wanted, self.config.vocabulary), np.float32)
        values.append(ort.OrtValue.ortvalue_from_numpy(logits))
        io.bind_ortvalue_output("logits", values[-1])
        binding = _Binding(io, inputs["token_ids"], inputs["position_ids"], logits, layouts, values)
        if len(self._bindings) >= BINDINGS:
            del self._bindings[next(iter(self._bindings))]
        self._bindings[count, wanted] = binding
        return binding
