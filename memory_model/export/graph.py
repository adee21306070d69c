"""An ONNX graph under construction: named constants, nodes that return the names of their outputs, a file.

Nodes are added one by one, never traced, so that the file holds standard operators only and the same
weights give the same bytes: the identity of an embedder is the hash of its file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.external_data_helper import set_external_data

OPSET = 21
IR_VERSION = 10
EXTERNAL_BYTES = 1024
"""Weights above this size go to the external data file, which the runtime maps instead of copying."""
PAGE_BYTES = 4096
Value = np.ndarray | Sequence[int] | int | float


class ExternalData:
    """The file of weights next to the models, written as constants are added: none of them stays in memory.

    It appears under its name with `finish`; leaving the context before that removes what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._partial = path, path.with_name(path.name + ".partial")
        self._file = self._partial.open("wb")
        self._known: dict[str, tuple[int, int]] = {}

    def add(self, raw: np.ndarray) -> tuple[int, int]:
        """Offset and length of these bytes, uint8 [n], in the file; equal bytes are written once."""
        digest = hashlib.sha256(raw.data).hexdigest()
        if digest not in self._known:
            self._file.write(b"\0" * (-self._file.tell() % PAGE_BYTES))  # the runtime maps the file page by page
            self._known[digest] = start, size = self._file.tell(), len(raw)
            # TensorRT merges tensors of one address, so a tensor that shares bytes has an empty page in front
            # of one of them.
            if not raw[:PAGE_BYTES].any():
                rest = hashlib.sha256(raw[PAGE_BYTES:].data).hexdigest()
                self._known[rest] = start + PAGE_BYTES, size - PAGE_BYTES
            self._file.write(raw.data)
        return self._known[digest]

    def finish(self) -> Path:
        """The file, complete."""
        self._file.close()
        self._partial.replace(self.path)
        return self.path

    def __enter__(self) -> ExternalData:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


class Graph:
    """Collects nodes, constants, inputs and outputs; `save` writes the model.

    Inputs of nodes are names of tensors, or values, which become constants. Equal constants are stored once. `metadata`
    becomes the file's key-value properties. Every method returns names of tensors. A graph made `next_to`
    another shares its constants; its file lists those that its nodes read. data: where large constants are written at
    once; without, they stay in memory until the graph is saved.
    """

    def __init__(self, name: str, next_to: Graph | None = None, data: ExternalData | None = None) -> None:
        self.name = name
        self.data: ExternalData | None = next_to.data if next_to else data
        self.metadata: dict[str, str] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[str, onnx.TensorProto] = next_to._constants if next_to else {}
        self._known: dict[tuple[str, str, tuple[int, ...]], str] = next_to._known if next_to else {}
        self._count = 0

    def input(self, name: str, dtype: type[np.generic], shape: Sequence[int | str]) -> str:
        """Declare an input; a str in `shape` is a free dimension."""
        self._inputs.append(helper.make_tensor_value_info(name, _kind(dtype), list(shape)))
        return name

    def output(self, name: str, dtype: type[np.generic], shape: Sequence[int | str]) -> str:
        """Declare an output; a node must produce a tensor of this name (see `op(..., out=name)`)."""
        self._outputs.append(helper.make_tensor_value_info(name, _kind(dtype), list(shape)))
        return name

    def offer(self, tensor: str, name: str, dtype: type[np.generic], shape: Sequence[int | str]) -> str:
        """Make a tensor that no node reads yet an output as well; returns its new name."""
        made = next(node.output for node in reversed(self._nodes) if tensor in node.output)
        made[list(made).index(tensor)] = name
        return self.output(name, dtype, shape)

    def constant(self, value: Value, name: str = "") -> str:
        """Store an array; Python ints become int64, floats float32."""
        if not isinstance(value, np.ndarray):
            value = np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        array = np.asarray(value, order="C")  # ascontiguousarray would give a scalar one dimension
        return self._store(name, _kind(array.dtype), array.shape, array.reshape(-1).view(np.uint8))

    def constant_int4(self, values: np.ndarray, name: str = "") -> str:
        """Store int8 values in -8..7 as INT4, two to a byte, low nibble first (ONNX's order)."""
        return self._store(name, TensorProto.INT4, values.shape, packed_int4(values))

    def _store(self, name: str, kind: int, shape: Sequence[int], raw: np.ndarray) -> str:
        key = (str(kind), hashlib.sha256(raw.data).hexdigest(), tuple(shape))
        if key not in self._known:
            name = name or f"constant_{len(self._constants)}"
            assert name not in self._constants, name
            tensor = TensorProto(name=name, data_type=kind)
            tensor.dims.extend(int(n) for n in shape)
            if self.data is not None and len(raw) >= EXTERNAL_BYTES:
                _place(tensor, self.data, raw)
            else:
                tensor.raw_data = raw.tobytes()
            self._constants[name] = tensor
            self._known[key] = name
        return self._known[key]

    def op(self, kind: str, *inputs: str | Value, out: str = "", **attributes: Any) -> str:
        """Add a node with one output and return its name (`out`, or a fresh one)."""
        return self.ops(kind, *inputs, out=[out] if out else 1, **attributes)[0]

    def ops(self, kind: str, *inputs: str | Value, out: Sequence[str] | int, **attributes: Any) -> list[str]:
        """Add a node with several outputs: their names, or how many."""
        self._count += 1
        names = [f"{kind}_{self._count}_{i}" for i in range(out)] if isinstance(out, int) else list(out)
        tensors = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        node = helper.make_node(kind, tensors, names, name=f"{kind}_{self._count}", **attributes)
        self._nodes.append(node)
        return names

    def model(self) -> onnx.ModelProto:
        """The graph as a model, all weights inside."""
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, initializer=self._initializers())
        domains = sorted({node.domain for node in self._nodes} - {""})
        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = IR_VERSION
        helper.set_model_props(model, self.metadata)
        model.producer_name, model.producer_version = "memory3-edge", ""
        return model

    def _initializers(self) -> list[onnx.TensorProto]:
        read = {name for node in self._nodes for name in node.input}
        return [tensor for name, tensor in self._constants.items() if name in read]

    def save(self, path: Path) -> None:
        """Write the model to `path` and its weights to `<path>.data`; see `save_together`."""
        with self.data or ExternalData(path.with_name(path.name + ".data")) as data:
            save_together({path: self}, data)


def packed_int4(values: np.ndarray) -> np.ndarray:
    """Values in -8..7 two to a byte, low nibble first: uint8 of half as many, rounded up."""
    flat = np.pad(values.reshape(-1).astype(np.uint8) & 0xF, (0, values.size % 2))
    return flat[0::2] | (flat[1::2] << 4)


def _kind(dtype: type[np.generic] | np.dtype[Any]) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _place(tensor: TensorProto, data: ExternalData, raw: np.ndarray) -> None:
    """Write a tensor's bytes to the file and have it refer to them."""
    extent = data.add(raw)
    tensor.raw_data = b""  # the function below requires the field
    set_external_data(tensor, data.path.name, *extent)
    tensor.ClearField("raw_data")


def save_together(graphs: Mapping[Path, Graph], data: ExternalData) -> list[Path]:
    """Write models whose weights are in one file next to them; return the files written.

    What several of them read is written once. Each file appears whole or not at all.
    """
    for graph in graphs.values():
        for tensor in graph._initializers():
            if tensor.data_location != TensorProto.EXTERNAL and len(tensor.raw_data) >= EXTERNAL_BYTES:
                _place(tensor, data, np.frombuffer(tensor.raw_data, np.uint8))
    data.finish()
    for path, graph in graphs.items():
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(graph.model().SerializeToString(deterministic=True))
        partial.replace(path)
    return [*graphs, data.path]
