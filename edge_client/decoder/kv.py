"""`Caches`: the key-values of several sequences, in static buffers that the decoder reads and writes in place.

Every `CacheTensor` has two buffers [sequences, heads, rows, d], as long as the context. A sequence has one slot, an
index of the outermost axis, so its rows are contiguous. Its text begins behind the memory slots, or, in a sequence
without memory, at row 0; rows are never moved. On the CPU, pages that no row was written to are never allocated.

A `Buffer` stays on its device. Runs bind it, or a part of it, by address; only rows of memories, snapshots and logits
cross between host and device.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from edge_client.decoder.runtime import named_errors
from edge_client.errors import ProviderError
from memory3.codec.payload import ExplicitMemory
from memory3.config import ModelConfig
from memory3.process_memory import available_bytes
from memory3.runtime.cache_layout import TEXT, CacheTensor, cache_layout
from memory3.runtime.onnx_runtime import ort

CONTEXT, PARALLEL = 2048, 4
"""Text rows and sequences where nothing else is chosen; a context of 0 is this one."""
PROMPT_TOKENS = 64
"""Most tokens of a sequence in one run (paper 3.1: a chunk)."""
ELEMENT_TYPES = {np.dtype(np.float32): 1, np.dtype(np.float16): 10, np.dtype(np.int64): 7}
"""ONNX's numbers of element types."""


@dataclass(frozen=True)
class Device:
    """Where caches lie. name: ONNX Runtime's of the device. provider: the execution provider that copies rows there."""

    name: str
    provider: str


CPU = Device("cpu", "CPUExecutionProvider")
CUDA = Device("cuda", "CUDAExecutionProvider")


@dataclass(frozen=True)
class Buffer:
    """A C-contiguous tensor, or a part of one, on a device. Freed with the last Buffer of it.

    device: "cpu" or "cuda". pointer: the device's address of the first element. owner: keeps the memory.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: str
    pointer: int
    owner: Any

    @classmethod
    def zeros(cls, shape: Sequence[int], dtype: Any = np.float32, device: str = "cpu") -> Buffer:
        """Zeroed memory; the CPU takes physical pages when they are written. Raises ProviderError (OUT_OF_MEMORY)."""
        with named_errors(f"the decoder's caches of {math.prod(shape) * np.dtype(dtype).itemsize / 1e6:.0f} MB"):
            array = np.zeros(shape, dtype)
            if device == "cpu":
                return cls(array.shape, array.dtype, device, int(array.ctypes.data), array)
            value = ort.OrtValue.ortvalue_from_shape_and_type(list(shape), array.dtype.type, device, 0)
            value.update_inplace(array)
            return cls(array.shape, array.dtype, device, int(value.data_ptr()), value)

    def part(self, start: int, stop: int) -> Buffer:
        """`[start:stop]` of the outermost axis, in the same memory."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise IndexError(f"{start}:{stop} of {self.shape[0]}")
        offset = start * math.prod(self.shape[1:]) * self.dtype.itemsize
        return replace(self, shape=(stop - start, *self.shape[1:]), pointer=self.pointer + offset)

    def flat(self) -> Buffer:
        """The same memory as rows [n, d]."""
        return replace(self, shape=(math.prod(self.shape[:-1]), self.shape[-1]))

    @property
    def array(self) -> np.ndarray:
        """The memory as an array, writable; only on the CPU."""
        if not isinstance(self.owner, np.ndarray):
            raise TypeError(f"memory of {self.device} is no array of the host's: use RowCopies")
        size = math.prod(self.shape)
        first = (self.pointer - int(self.owner.ctypes.data)) // self.dtype.itemsize
        return self.owner.reshape(-1)[first : first + size].reshape(self.shape)

    def bind(self, io: ort.IOBinding, *, read: str = "", write: str = "") -> None:
        """Bind as the graph's input `read` and output `write`; with both it is updated in place.

        The binding holds an address: keep this Buffer as long as the binding.
        """
        binding = (self.device, 0, self.dtype.type, list(self.shape), self.pointer)
        if read:
            io.bind_input(read, *binding)
        if write:
            io.bind_output(write, *binding)


class RowCopies:
    """Copies rows between arrays of the host and buffers of one device, by a graph of one operator there. Thread-safe.

    So no CUDA package is needed, and the CPU runs the same code. A row is the innermost axis; rows are counted over
    all the others: in a cache [B, h, R, d], row r of head i of sequence b is `(b * h + i) * R + r`.
    """

    def __init__(self, device: Device = CPU) -> None:
        self._provider = device.provider
        self._sessions: dict[tuple[str, int], ort.InferenceSession] = {}

    def write(self, buffer: Buffer, rows: np.ndarray, values: np.ndarray) -> None:
        """buffer.row[rows[i]] = values[i]: rows int64 [n], each once; values [n, d], cast to the buffer's dtype."""
        self._run("ScatterND", buffer, rows.reshape(-1, 1), buffer, np.ascontiguousarray(values, buffer.dtype))

    def read(self, buffer: Buffer, rows: np.ndarray) -> np.ndarray:
        """A copy of these rows: [n, d] in the buffer's dtype."""
        result = Buffer.zeros((len(rows), buffer.shape[-1]), buffer.dtype)
        self._run("Gather", buffer, rows, result)
        return result.array

    def _run(self, operator: str, data: Buffer, rows: np.ndarray, out: Buffer, *values: np.ndarray) -> None:
        if not len(rows):
            return
        key = operator, ELEMENT_TYPES[data.dtype]
        if key not in self._sessions:
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            options.log_severity_level = 3
            self._sessions[key] = ort.InferenceSession(_graph(*key), options, providers=[self._provider])
        io = self._sessions[key].io_binding()
        data.flat().bind(io, read="data")
        out.flat().bind(io, write="out")
        io.bind_cpu_input("rows", np.ascontiguousarray(rows, np.int64))
        for array in values:
            io.bind_cpu_input("values", array)
        self._sessions[key].run_with_iobinding(io)


def _graph(operator: str, element: int) -> bytes:
    """An ONNX file of one operator on `data` [N, d], in protobuf's wire format (field numbers of onnx.proto)."""

    def field(number: int, *parts: bytes) -> bytes:  # its length as a varint of two bytes
        data = b"".join(parts)
        return bytes([number << 3 | 2, len(data) & 0x7F | 0x80, len(data) >> 7]) + data

    def tensor(number: int, name: bytes, kind: int) -> bytes:
        return field(number, field(1, name), field(2, field(1, bytes([8, kind]))))

    inputs = [(b"data", element), (b"rows", 7)] + [(b"values", element)] * (operator == "ScatterND")
    node = field(1, *(field(1, name) for name, _ in inputs), field(2, b"out"), field(4, operator.encode()))
    declared = (tensor(11, *given) for given in inputs)
    graph = field(7, node, field(2, b"rows"), *declared, tensor(12, b"out", element))
    return bytes([8, 8]) + graph + field(8, bytes([16, 16]))


BUCKET = 64
"""Rows are a multiple of it."""


class Caches:
    """Not thread-safe: a slot must not be changed while the decoder runs it.

    context: tokens of text, prefix included. parallel: slots. dtype, device: float32 or float16 on the CPU or a GPU.
    Raises ProviderError (OUT_OF_MEMORY) where one sequence's key-values do not fit in memory.
    """

    def __init__(
        self, config: ModelConfig, context: int, parallel: int = 1, dtype: DTypeLike = np.float32, device: Device = CPU
    ) -> None:
        self.config, self.parallel, self.dtype = config, parallel, np.dtype(dtype)
        self.layout = cache_layout(config)
        # One row more than the text: a run writes one row behind the text of a slot that it passes over.
        self.text_rows = -(-(context + 1) // BUCKET) * BUCKET
        shapes = {t: (parallel, len(t.heads), self.rows(t.layout), config.head_dim) for t in self.layout.tensors}
        self.sequence_bytes = sum(2 * int(np.prod(s[1:])) * self.dtype.itemsize for s in shapes.values())
        if device == CPU and self.sequence_bytes > (available := available_bytes()):
            raise ProviderError(
                f"the key-values of {context} tokens need {self.sequence_bytes / 1e6:,.0f} MB, "
                f"{available / 1e6:,.0f} MB are available",
                reason="OUT_OF_MEMORY",
                help="open the model with a shorter context",
            )
        self.tensors: dict[str, CacheTensor] = {n: t for t in self.layout.tensors for n in (t.keys, t.values)}
        self.buffers = {n: Buffer.zeros(shapes[t], self.dtype, device.name) for n, t in self.tensors.items()}
        # 0 where a slot row is seen, -inf elsewhere; [parallel, lead, memory slots].
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

    def clear(self, slot: int, memory: bool) -> None:
        """Prepare a slot for a sequence with or without memory; its memory slots are empty."""
        for mask in self.masks.values():
            mask[slot] = -np.inf if memory else 0.0

    def inject(self, slot: int, memories: Sequence[ExplicitMemory]) -> None:
        """Replace the memories of a sequence by these, at most a chunk's.

        Slot rows that are not filled keep what they hold, which is finite, and are masked.
        """
        for number, tokens in enumerate(self.layout.layouts):
            mask = self.masks[number][slot]
            mask.fill(-np.inf)
            for index, m in enumerate(memories):
                start = index * max(tokens)
                for row, kept in enumerate(tokens[: len(mask)]):
                    mask[row, start : start + min(kept, m.tokens)] = 0.0
        if not memories:
            return
        indices = np.arange(len(memories))[:, None]
        for tensor, (targets, sources) in self._slot_rows.items():
            rows = (targets + indices * max(tensor.tokens)).reshape(-1) + self._first(tensor, slot)
            keys = np.concatenate([m.keys[sources] for m in memories])
            self._copies.write(self.buffers[tensor.keys], rows, keys)
            values = np.concatenate([m.values[sources] for m in memories])
            self._copies.write(self.buffers[tensor.values], rows, values)

    def read(self, slot: int, memory: bool, stop: int, names: Collection[str] = ()) -> dict[str, np.ndarray]:
        """Copies of the first `stop` text rows of every cache tensor, or of those that are named."""
        found = {}
        for name in names or self.tensors:
            tensor = self.tensors[name]
            rows = self._text_rows(tensor, slot, memory, stop)
            shape = (len(tensor.heads), stop, self.config.head_dim)
            found[name] = self._copies.read(self.buffers[name], rows).reshape(shape)
        return found

    def write(self, slot: int, memory: bool, rows: Mapping[str, np.ndarray]) -> None:
        """Inverse of `read`, in this slot or another one, for a sequence with or without memory."""
        for name, tensor in self.tensors.items():
            targets = self._text_rows(tensor, slot, memory, rows[name].shape[1])
            self._copies.write(self.buffers[name], targets, rows[name].reshape(-1, self.config.head_dim))

    def _first(self, tensor: CacheTensor, slot: int) -> int:
        """The first row of a slot, counted over a whole buffer."""
        return slot * len(tensor.heads) * self.rows(tensor.layout)

    def _text_rows(self, tensor: CacheTensor, slot: int, memory: bool, stop: int) -> np.ndarray:
        """The first text rows of every head, counted over a whole buffer."""
        first = self._first(tensor, slot) + self.first_row(tensor.layout, memory)
        heads = np.arange(len(tensor.heads))[:, None] * self.rows(tensor.layout)
        return (first + heads + np.arange(stop)).reshape(-1)

    def _rows_of_memory(self, tensor: CacheTensor) -> tuple[np.ndarray, np.ndarray]:
        """The target rows of the first memory, counted from a slot's first row, and its source rows."""
        heads = list(zip(tensor.tokens, tensor.first_rows, strict=True))
        rows = self.rows(tensor.layout)
        targets = np.concatenate([h * rows + np.arange(kept) for h, (kept, _) in enumerate(heads)])
        return targets, np.concatenate([np.arange(first, first + kept) for kept, first in heads])
