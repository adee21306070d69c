"""The decoder on ONNX Runtime: prompt chunks and single steps over caches that are written in place.

Knows tokens, positions and memories; knows nothing about text, chat or retrieval. Everything a step needs
is allocated and bound beforehand: a step writes a token id, a position, a row number and one mask entry.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edge_client.caches import CacheRows
from edge_client.errors import ContextFull, DecoderBroken
from memory_model.cache_layout import TEXT, mask_name, rows_name
from memory_model.config import ModelConfig
from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.memory import ExplicitMemory


@dataclass
class _Binding:
    """One shape of run, bound: arrays and OrtValues live here, because the runtime does not own them."""

    io: ort.IOBinding
    arrays: dict[str, np.ndarray]
    values: list[ort.OrtValue]


class OnnxDecoder:
    """A decoder with its caches: one conversation at a time, one thread at a time.

    path: `decoder.onnx` as `memory_model.export` writes it; its properties hold the model's shape. threads:
    of the matrix kernels. Raises MissingFile, CorruptFile.
    """

    def __init__(self, path: str | Path, *, threads: int = 1) -> None:
        path = Path(path)
        if not path.is_file():
            raise MissingFile(f"no decoder at {path}: make it with `memory-model export`")
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # int8 activations in the int4 and int8 kernels: the fast path.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            properties = self._session.get_modelmeta().custom_metadata_map
            self.config = ModelConfig.from_dict(json.loads(properties["config"]))
            self.precision, capacity = properties["precision"], int(properties["capacity"])
        except Exception as error:  # the runtime has no common class for its errors
            raise CorruptFile(f"{path} is not a decoder of ours: {error}") from error
        self.caches = CacheRows(self.config, capacity)
        self.capacity = capacity
        self.length = 0
        self._layouts = [
            *([TEXT] if self.caches.layout.has_text else []),
            *range(len(self.caches.layout.layouts)),
        ]
        self._bindings: dict[tuple[int, int], _Binding] = {}

    @property
    def provider(self) -> str:
        """The execution provider that runs the graph."""
        return str(self._session.get_providers()[0])

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
        arrays = binding.arrays
        arrays["token_ids"][:] = tokens
        arrays["position_ids"][:] = np.arange(first_position, first_position + count)
        for layout in self._layouts:
            self._fill(arrays[mask_name(layout)], arrays[rows_name(layout)], layout, count)
        self._session.run_with_iobinding(binding.io)
        self.length += count
        logits = arrays["logits"]
        if np.isnan(logits[-1, 0]):
            raise DecoderBroken("the decoder's logits are NaN: the file or the execution provider is damaged")
        return logits

    def inject(self, memories: Sequence[ExplicitMemory]) -> None:
        """Read these memories from the next run on, instead of those read so far; none is a fine number."""
        if self.caches.inject(memories):
            self._bindings.clear()

    def rewind(self, length: int) -> None:
        """Forget the text after the first `length` tokens; what is kept is not computed again."""
        if not 0 <= length <= self.length:
            raise InvalidInput(f"cannot rewind to {length} tokens, {self.length} are cached")
        self.length = length
        if self.caches.fit(length, shrink=True):
            self._bindings.clear()

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

    def _fill(self, mask: np.ndarray, rows: np.ndarray, layout: int, count: int) -> None:
        """Row numbers and the causal mask of the next `count` tokens."""
        first = self.caches.slot_rows(layout)
        start = first + self.length
        rows[:] = np.arange(start, start + count)
        if first:
            mask[:, :, :first] = self.caches.slot_masks[layout][:, None, :]
        mask[:, :, first:start] = 0.0
        mask[:, :, start:] = -np.inf
        for row in range(count):
            mask[:, row, start : start + row + 1] = 0.0

    def _bind(self, count: int, wanted: int) -> _Binding:
        io = self._session.io_binding()
        arrays = {
            "token_ids": np.zeros(count, np.int64),
            "position_ids": np.zeros(count, np.int64),
            "output_rows": np.arange(count - wanted, count, dtype=np.int64),
        }
        for layout in self._layouts:
            lead = 1 if layout == TEXT else len(self.caches.slot_masks[layout])
            arrays[mask_name(layout)] = np.zeros((lead, count, self.caches.rows(layout)), np.float32)
            arrays[rows_name(layout)] = np.zeros(count, np.int64)
        values = []
        for name, array in (*arrays.items(), *((n, self.caches.view(n)) for n in self.caches.names())):
            value = ort.OrtValue.ortvalue_from_numpy(array)
            values.append(value)
            io.bind_ortvalue_input(name, value)
            if name not in arrays:  # a cache: written where it is read
                io.bind_ortvalue_output(f"{name}_out", value)
        arrays["logits"] = np.zeros((wanted, self.config.vocabulary), np.float32)
        values.append(ort.OrtValue.ortvalue_from_numpy(arrays["logits"]))
        io.bind_ortvalue_output("logits", values[-1])
        binding = _Binding(io, arrays, values)
        self._bindings[count, wanted] = binding
        return binding
