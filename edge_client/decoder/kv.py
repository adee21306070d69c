"""`Caches`: the key-values of several sequences, in static buffers that the decoder reads and writes in place.

Every `CacheTensor` has two buffers [sequences, heads, rows, d], as long as the context. A sequence has one place of
the outermost axis, so what it owns is contiguous. Its text begins behind the memory slots, or, in a sequence without
memory, at row 0; nothing ever moves. On the CPU, memory that no row was written to is never taken.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import DTypeLike

from edge_client.decoder.tensors import Buffer, RowCopies
from edge_client.errors import ProviderError
from memory_model.cache_layout import TEXT, CacheTensor, cache_layout
from memory_model.codec.payload import ExplicitMemory
from memory_model.config import ModelConfig
from memory_model.errors import InvalidInput

BUCKET = 64
"""Rows are a multiple of it."""

Rows = dict[str, np.ndarray]
"""By cache tensor, [heads, n, d]: key-values of some text."""


class Caches:
    """Not thread-safe: nothing may touch a place while the decoder runs it.

    context: tokens of text, prefix included. parallel: places. dtype, device: float32 or float16 on "cpu" or "cuda".
    Raises ProviderError (OUT_OF_MEMORY) where one sequence's key-values do not fit in memory.
    """

    def __init__(
        self, config: ModelConfig, context: int, parallel: int = 1, dtype: DTypeLike = np.float32,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        self.config, self.parallel, self.dtype = config, parallel, np.dtype(dtype)
        self.layout = cache_layout(config)
        # One row more than the text: a place that a run only passes over is written to behind its text.
        self.text_rows = -(-(context + 1) // BUCKET) * BUCKET
        shapes = {t: (parallel, len(t.heads), self.rows(t.layout), config.head_dim) for t in self.layout.tensors}
        self.sequence_bytes = sum(2 * int(np.prod(s[1:])) * self.dtype.itemsize for s in shapes.values())
        if device == "cpu" and self.sequence_bytes > (available := _available_bytes()):
            raise ProviderError(
                f"the key-values of {context} tokens need {self.sequence_bytes / 1e6:,.0f} MB, "
                f"{available / 1e6:,.0f} MB are available",
                reason="OUT_OF_MEMORY", help="open the model with a shorter context",
            )  # fmt: skip
        self.tensors: dict[str, CacheTensor] = {n: t for t in self.layout.tensors for n in (t.keys, t.values)}
        self.buffers = {n: Buffer.zeros(shapes[t], self.dtype, device) for n, t in self.tensors.items()}
        # 0 where a slot row is seen, -inf elsewhere; [places, lead, slots].
        self.masks = {
            n: np.zeros((parallel, self.layout.lead(n), self.layout.slots(n)), np.float32)
            for n in range(len(self.layout.layouts))
        }
        self._copies = RowCopies(device)
        self._slot_rows = {t: self._rows_of_memory(t) for t in self.layout.tensors if t.layout != TEXT}

    def rows(self, layout: int) -> int:
        """Rows of a layout's buffers."""
        return self.layout.slots(layout) + self.text_rows

    def first_row(self, layout: int, memory: bool) -> int:
        """Where the text of a sequence begins."""
        return self.layout.slots(layout) if memory else 0

    def begin(self, place: int, memory: bool) -> None:
        """A sequence with or without memory takes this place; its slots hold no memories yet."""
        for mask in self.masks.values():
            mask[place] = -np.inf if memory else 0.0

    def inject(self, place: int, memories: Sequence[ExplicitMemory]) -> None:
        """Replace the memories in the slots of a sequence with memory by these; see `check_memories`.

        Slot rows that are not filled keep what they hold, which is finite, and are masked.
        """
        for number, tokens in enumerate(self.layout.layouts):
            mask = self.masks[number][place]
            mask.fill(-np.inf)
            for slot, m in enumerate(memories):
                start = slot * max(tokens)
                for row, kept in enumerate(tokens[: len(mask)]):
                    mask[row, start : start + min(kept, m.tokens)] = 0.0
        if not memories:
            return
        slots = np.arange(len(memories))[:, None]
        for tensor, (targets, sources) in self._slot_rows.items():
            rows = (targets + slots * max(tensor.tokens)).reshape(-1) + self._first(tensor, place)
            keys = np.concatenate([m.keys[sources] for m in memories])
            self._copies.write(self.buffers[tensor.keys], rows, keys)
            values = np.concatenate([m.values[sources] for m in memories])
            self._copies.write(self.buffers[tensor.values], rows, values)

    def read(self, place: int, memory: bool, stop: int) -> Rows:
        """Copies of the first `stop` text rows of every cache tensor."""
        found: Rows = {}
        for name, tensor in self.tensors.items():
            rows = self._text_rows(tensor, place, memory, stop)
            shape = (len(tensor.heads), stop, self.config.head_dim)
            found[name] = self._copies.read(self.buffers[name], rows).reshape(shape)
        return found

    def write(self, place: int, memory: bool, rows: Mapping[str, np.ndarray]) -> None:
        """Inverse of `read`, at this or another place, in a sequence with or without memory."""
        for name, tensor in self.tensors.items():
            targets = self._text_rows(tensor, place, memory, rows[name].shape[1])
            self._copies.write(self.buffers[name], targets, rows[name].reshape(-1, self.config.head_dim))

    def _first(self, tensor: CacheTensor, place: int) -> int:
        """The first row of a place, counted over a whole buffer."""
        return place * len(tensor.heads) * self.rows(tensor.layout)

    def _text_rows(self, tensor: CacheTensor, place: int, memory: bool, stop: int) -> np.ndarray:
        """The first text rows of every head, counted over a whole buffer."""
        first = self._first(tensor, place) + self.first_row(tensor.layout, memory)
        heads = np.arange(len(tensor.heads))[:, None] * self.rows(tensor.layout)
        return (first + heads + np.arange(stop)).reshape(-1)

    def _rows_of_memory(self, tensor: CacheTensor) -> tuple[np.ndarray, np.ndarray]:
        """Where the rows of the first memory go, counted from a place's first row, and where they lie in it."""
        heads = list(zip(tensor.tokens, tensor.first_rows, strict=True))
        rows = self.rows(tensor.layout)
        targets = np.concatenate([h * rows + np.arange(kept) for h, (kept, _) in enumerate(heads)])
        return targets, np.concatenate([np.arange(first, first + kept) for kept, first in heads])


def check_memories(memories: Sequence[ExplicitMemory], config: ModelConfig) -> None:
    """Raise InvalidInput for too many memories, a wrong shape or numbers that are not finite.

    Read-only arrays are taken to be finite: whoever shares a memory has made it read-only and looked at its numbers.
    """
    memory = config.memory
    shape = (memory.budget, config.head_dim)
    if len(memories) > memory.memories_per_chunk:
        raise InvalidInput(f"{len(memories)} memories, the slots hold {memory.memories_per_chunk}")
    for m in memories:
        if m.keys.shape != shape or m.values.shape != shape:
            raise InvalidInput(f"a memory has keys {m.keys.shape}, values {m.values.shape}; expected {shape}")
        if not 1 <= m.tokens <= memory.reference_tokens:
            raise InvalidInput(f"a memory of {m.tokens} tokens, expected 1 to {memory.reference_tokens}")
        if m.keys.flags.writeable and not is_finite(m):
            raise InvalidInput("a memory holds NaN or infinity")


def is_finite(memory: ExplicitMemory) -> bool:
    """Whether all numbers are finite: their sum is, which is quicker to know."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(memory.keys.sum() + memory.values.sum()))


def _available_bytes() -> float:
    """Memory that the system can still give, or infinity where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            kilobytes = dict(line.split(":") for line in file)["MemAvailable"].split()[0]
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else np.inf
    return 1024 * int(kilobytes)
