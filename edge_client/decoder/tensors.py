"""`Buffer`: a tensor in the memory of an execution provider's device, and `RowCopies`: rows of it copied in and out.

Caches stay on the device. Runs bind them, or a part of them, by address; only rows of memories, snapshots and logits
cross between host and device. ONNX Runtime makes the copies itself, by a graph of one operator on the same device, so
no CUDA package is needed and the CPU runs the same code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort

from edge_client.decoder.providers import named_errors

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""The provider that copies on a device; TensorRT's tensors are CUDA's."""
ELEMENT_TYPES = {np.dtype(np.float32): 1, np.dtype(np.float16): 10, np.dtype(np.int64): 7}
"""ONNX's numbers of element types."""
Fields = Sequence[tuple[int, int | str | bytes]]


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
        """Zeroed memory; on the CPU physical pages are taken when they are written. Raises OutOfMemory."""
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
        return Buffer((stop - start, *self.shape[1:]), self.dtype, self.device, self.pointer + offset, self.owner)

    def reshaped(self, *shape: int) -> Buffer:
        """The same memory with another shape of as many elements."""
        if math.prod(shape) != math.prod(self.shape):
            raise ValueError(f"{self.shape} cannot be {shape}")
        return Buffer(shape, self.dtype, self.device, self.pointer, self.owner)

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
        place = (self.device, 0, self.dtype.type, list(self.shape), self.pointer)
        if read:
            io.bind_input(read, *place)
        if write:
            io.bind_output(write, *place)


class RowCopies:
    """Copies rows between arrays of the host and buffers of one device. Thread-safe.

    A row is the innermost axis; rows are counted over all the others: in a cache [B, h, R, d], row r of head i of
    sequence b is `(b * h + i) * R + r`.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._sessions: dict[tuple[str, int], ort.InferenceSession] = {}

    def write(self, buffer: Buffer, rows: np.ndarray, values: np.ndarray) -> None:
        """buffer.row[rows[i]] = values[i]: rows int64 [n], each once; values [n, d], cast to the buffer's dtype."""
        flat = buffer.reshaped(-1 if not buffer.shape else math.prod(buffer.shape[:-1]), buffer.shape[-1])
        values = np.ascontiguousarray(values, buffer.dtype)
        if len(rows) == 0:
            return
        io = self._session("ScatterND", buffer.dtype).io_binding()
        flat.bind(io, read="data", write="out")
        io.bind_cpu_input("rows", np.ascontiguousarray(rows, np.int64).reshape(-1, 1))
        io.bind_cpu_input("values", values.reshape(len(rows), flat.shape[1]))
        self._session("ScatterND", buffer.dtype).run_with_iobinding(io)

    def read(self, buffer: Buffer, rows: np.ndarray) -> np.ndarray:
        """A copy of these rows: [n, d] in the buffer's dtype."""
        flat = buffer.reshaped(math.prod(buffer.shape[:-1]), buffer.shape[-1])
        result = Buffer.zeros((len(rows), flat.shape[1]), buffer.dtype)
        if len(rows):
            io = self._session("Gather", buffer.dtype).io_binding()
            flat.bind(io, read="data")
            io.bind_cpu_input("rows", np.ascontiguousarray(rows, np.int64))
            result.bind(io, write="out")
            self._session("Gather", buffer.dtype).run_with_iobinding(io)
        return result.array

    def _session(self, operator: str, dtype: np.dtype[Any]) -> ort.InferenceSession:
        key = (operator, ELEMENT_TYPES[dtype])
        if key not in self._sessions:
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            options.log_severity_level = 3
            self._sessions[key] = ort.InferenceSession(_graph(*key), options, providers=[PROVIDERS[self.device]])
        return self._sessions[key]


def _graph(operator: str, element: int) -> bytes:
    """An ONNX file of one operator on `data` [N, d], in protobuf's wire format (field numbers of onnx.proto)."""
    rows = ("n", "one") if operator == "ScatterND" else ("n",)
    inputs = [("data", element, ("N", "d")), ("rows", 7, rows)]
    if operator == "ScatterND":
        inputs.append(("values", element, ("n", "d")))
    output = ("out", element, ("N" if operator == "ScatterND" else "n", "d"))
    node: Fields = [(1, name) for name, _, _ in inputs] + [(2, "out"), (4, operator)]
    graph: Fields = [(1, _message(node)), (2, "rows"), *((11, _value(*i)) for i in inputs), (12, _value(*output))]
    return _message([(1, 8), (7, _message(graph)), (8, _message([(1, ""), (2, 16)]))])


def _value(name: str, element: int, shape: Sequence[str]) -> bytes:
    """A ValueInfoProto: a tensor with named dimensions."""
    dimensions = _message([(1, _message([(2, dimension)])) for dimension in shape])
    return _message([(1, name), (2, _message([(1, _message([(1, element), (2, dimensions)]))]))])


def _message(fields: Fields) -> bytes:
    """Fields (number, value) of a protobuf message."""
    written = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            written += bytes([number << 3]) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            written += bytes([number << 3 | 2]) + _varint(len(data)) + data
    return bytes(written)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
