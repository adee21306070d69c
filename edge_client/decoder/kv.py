"""The decoder's key-value rows in memory: text rows that grow, memory slots that are overwritten.

Knows nothing about ONNX Runtime. Each `CacheTensor` owns two flat float32 buffers of full capacity; what
the decoder sees is a view [heads, slot rows + text rows, d] on their beginning, just as long as needed, so
attention never pays for unused capacity and no step copies a cache. Changing the geometry moves rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from memory_model.cache_layout import TEXT, CacheTensor, cache_layout
from memory_model.codec.payload import ExplicitMemory
from memory_model.config import ModelConfig
from memory_model.errors import CorruptFile, InvalidInput

BUCKET = 64
"""Text rows grow by this many at a time."""


class CacheRows:
    """All caches of one session. Not thread-safe: nothing may touch it while the decoder runs."""

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        self.config = config
        self.layout = cache_layout(config)
        self.capacity = -(-capacity // BUCKET) * BUCKET
        self.text_rows = BUCKET
        self.slots_in_use = False
        d, per_chunk = config.head_dim, config.memory.memories_per_chunk
        self._slots = {n: per_chunk * max(tokens) for n, tokens in enumerate(self.layout.layouts)} | {TEXT: 0}
        # np.zeros takes no physical memory until a row is written.
        self._buffers: dict[str, np.ndarray] = {}
        self._of: dict[str, CacheTensor] = {}
        for tensor in self.layout.tensors:
            size = len(tensor.heads) * (self._slots[tensor.layout] + self.capacity) * d
            for name in (tensor.keys, tensor.values):
                self._buffers[name] = np.zeros(size, np.float32)
                self._of[name] = tensor
        # 0 where a slot row holds a memory's row, -inf elsewhere; [1 or heads, slots] as in the masks.
        self.slot_masks = {
            n: np.full((1 if len(set(t)) == 1 else len(t), self._slots[n]), -np.inf, np.float32)
            for n, t in enumerate(self.layout.layouts)
        }

    def slot_rows(self, layout: int) -> int:
        """Rows before the first text row that are now part of this layout's views."""
        return self._slots[layout] if self.slots_in_use else 0

    def rows(self, layout: int) -> int:
        """Rows of this layout's views."""
        return self.slot_rows(layout) + self.text_rows

    def names(self) -> list[str]:
        """Names of all cache tensors, as in the graph."""
        return list(self._buffers)

    def view(self, name: str) -> np.ndarray:
        """The rows that the decoder sees: [heads, rows, d], no copy."""
        return self._view(name, self.rows(self._of[name].layout))

    def text(self, name: str) -> np.ndarray:
        """The text rows of a view: [heads, text rows, d], no copy."""
        return self.view(name)[:, self.slot_rows(self._of[name].layout) :]

    def check_text(self, arrays: Mapping[str, np.ndarray], length: int) -> None:
        """Raise CorruptFile unless `arrays` hold `length` finite text rows of every cache tensor."""
        if length < 0 or set(arrays) != set(self._buffers):
            raise CorruptFile("the saved key-values are not of a decoder of this shape")
        for name, array in arrays.items():
            shape = (len(self._of[name].heads), length, self.config.head_dim)
            if array.shape != shape or array.dtype != self._buffers[name].dtype:
                raise CorruptFile(
                    f"saved {name} are {array.dtype} {array.shape}, expected {self._buffers[name].dtype} {shape}"
                )
            if not np.isfinite(array).all():
                raise CorruptFile(f"saved {name} hold NaN or infinity")

    def _view(self, name: str, rows: int) -> np.ndarray:
        heads, d = len(self._of[name].heads), self.config.head_dim
        return self._buffers[name][: heads * rows * d].reshape(heads, rows, d)

    def fit(self, text_rows: int, *, shrink: bool = False) -> bool:
        """Make room for `text_rows` rows of text (`shrink`: and for no more); True if views changed."""
        needed = max(-(-text_rows // BUCKET) * BUCKET, BUCKET)
        if needed == self.text_rows or (needed < self.text_rows and not shrink):
            return False
        self._reshape(needed, self.slots_in_use)
        return True

    def inject(self, memories: Sequence[ExplicitMemory]) -> bool:
        """Replace the memories in the slots by these, at most `memories_per_chunk`; True if views changed.

        Read-only arrays are taken to be finite. Every slot row not filled is zeroed and masked. Raises
        InvalidInput for too many memories, a wrong shape or numbers that are not finite, and then changes nothing.
        """
        memory = self.config.memory
        shape = (memory.budget, self.config.head_dim)
        if len(memories) > memory.memories_per_chunk:
            raise InvalidInput(f"{len(memories)} memories, the slots hold {memory.memories_per_chunk}")
        for m in memories:
            if m.keys.shape != shape or m.values.shape != shape:
                raise InvalidInput(
                    f"a memory has keys {m.keys.shape}, values {m.values.shape}; expected {shape}"
                )
            if not 1 <= m.tokens <= memory.reference_tokens:
                raise InvalidInput(f"a memory of {m.tokens} tokens, expected 1 to {memory.reference_tokens}")
            # Who shares a memory has made it read-only and looked at its numbers (`recall.hits`): once is enough.
            if m.keys.flags.writeable and not is_finite(m):
                raise InvalidInput("a memory holds NaN or infinity")
        changed = bool(memories) != self.slots_in_use and bool(self.layout.layouts)
        if changed:
            self._reshape(self.text_rows, bool(memories))
        for number, tokens in enumerate(self.layout.layouts):
            mask = self.slot_masks[number]
            mask.fill(-np.inf)
            for slot, m in enumerate(memories):
                start = slot * max(tokens)
                for row, kept in enumerate(tokens[: len(mask)]):
                    mask[row, start : start + min(kept, m.tokens)] = 0.0
        if memories:
            for tensor in self.layout.tensors:
                if tensor.layout != TEXT:
                    self._write_slots(self.view(tensor.keys), tensor, [m.keys for m in memories])
                    self._write_slots(self.view(tensor.values), tensor, [m.values for m in memories])
        return changed

    def _write_slots(self, view: np.ndarray, tensor: CacheTensor, rows: Sequence[np.ndarray]) -> None:
        longest, first, heads = max(tensor.tokens), tensor.first_rows[0], len(tensor.heads)
        uniform = len(set(tensor.tokens)) == 1
        for slot, memory in enumerate(rows):
            start = slot * longest
            if uniform:  # the heads of a layer lie one after the other in a memory
                block = memory[first : first + heads * longest].reshape(heads, longest, -1)
                view[:, start : start + longest] = block
                continue
            for h, (kept, row) in enumerate(zip(tensor.tokens, tensor.first_rows, strict=True)):
                view[h, start : start + kept] = memory[row : row + kept]
                view[h, start + kept : start + longest] = 0.0
        view[:, len(rows) * longest : self._slots[tensor.layout]] = 0.0

    def _reshape(self, text_rows: int, slots: bool) -> None:
        """Give the views another length; keeps text rows and memories, zeroes rows that appear.

        Rows that are masked must be finite, because 0 times NaN is NaN: hence the zeroes.
        """
        kept = min(self.text_rows, text_rows)
        for name, buffer in self._buffers.items():
            layout = self._of[name].layout
            old_first, new_first = self.slot_rows(layout), self._slots[layout] if slots else 0
            old = self._view(name, old_first + self.text_rows)
            new = self._view(name, new_first + text_rows)
            if old.shape == new.shape:
                continue
            assert new.size <= buffer.size
            grows = new.shape[1] > old.shape[1]
            # Where slots stay they keep their memories; where they come or go only text rows move.
            stay = 0 if old_first == new_first else new_first
            source = old_first - new_first + stay
            rows = kept + new_first - stay
            for h in reversed(range(len(old))) if grows else range(len(old)):
                # numpy copies overlapping ranges correctly; the order of heads keeps the others intact.
                new[h, stay : stay + rows] = old[h, source : source + rows]
                new[h, :stay] = 0.0
                new[h, stay + rows :] = 0.0
        self.text_rows, self.slots_in_use = text_rows, slots


def is_finite(memory: ExplicitMemory) -> bool:
    """Whether all numbers are finite: their sum is, which is quicker to know."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(memory.keys.sum() + memory.values.sum()))
