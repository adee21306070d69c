"""Reads the operators of an ONNX file, without the onnx package, which no device needs otherwise.

An ONNX file is a protobuf message; of it this reads opsets, nodes, inputs and the types of constants, and skips
the rest (weights lie in the external data file anyway, so nothing large is read).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_model.errors import CorruptFile, MissingFile

# Field numbers of onnx.proto, fixed for ever by protobuf's rules.
MODEL_GRAPH, MODEL_OPSETS = 7, 8
OPSET_DOMAIN, OPSET_VERSION = 1, 2
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT = 1, 5, 11
INPUT_NAME, INPUT_TYPE, TENSOR_TYPE_OF, SHAPE_OF, DIMENSION, DIMENSION_VALUE, DIMENSION_NAME = (
    1,
    2,
    1,
    2,
    1,
    1,
    2,
)
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_KIND, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
ATTRIBUTE_NAME = 1
TENSOR_TYPE, TENSOR_NAME = 2, 8
TYPE_NAMES = {1: "FLOAT", 2: "UINT8", 3: "INT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "FLOAT16", 16: "BFLOAT16",
              21: "UINT4", 22: "INT4"}  # fmt: skip

Field = tuple[int, int | memoryview]


@dataclass(frozen=True)
class Node:
    """One operator. domain: "" for the standard ones; attributes: their names."""

    kind: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    attributes: tuple[str, ...]


@dataclass(frozen=True)
class OnnxNodes:
    """opsets: version by domain; constants: type name of every initializer, e.g. "INT4"; inputs: shape by name."""

    opsets: dict[str, int]
    nodes: tuple[Node, ...]
    constants: dict[str, str]
    inputs: dict[str, tuple[int | str, ...]]


def read_nodes(path: str | Path) -> OnnxNodes:
    """The operators of the file at `path`; raises MissingFile, CorruptFile."""
    path = Path(path)
    if not path.is_file():
        raise MissingFile(f"no graph at {path}")
    try:
        return _model(memoryview(path.read_bytes()))
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise CorruptFile(f"{path} is not an ONNX file: {error}") from error


def _model(data: memoryview) -> OnnxNodes:
    opsets: dict[str, int] = {}
    nodes: list[Node] = []
    constants: dict[str, str] = {}
    inputs: dict[str, tuple[int | str, ...]] = {}
    for number, value in _fields(data):
        if number == MODEL_OPSETS and isinstance(value, memoryview):
            fields = dict(_fields(value))
            version = fields.get(OPSET_VERSION, 0)
            opsets[_text(fields.get(OPSET_DOMAIN, b""))] = version if isinstance(version, int) else 0
        elif number == MODEL_GRAPH and isinstance(value, memoryview):
            for part, content in _fields(value):
                if part == GRAPH_NODE:
                    nodes.append(_node(content))
                elif part == GRAPH_INPUT and isinstance(content, memoryview):
                    inputs[_text(dict(_fields(content))[INPUT_NAME])] = _shape(content)
                elif part == GRAPH_INITIALIZER and isinstance(content, memoryview):
                    tensor = dict(_fields(content))
                    kind = tensor.get(TENSOR_TYPE, 0)
                    constants[_text(tensor.get(TENSOR_NAME, b""))] = TYPE_NAMES.get(int(kind), f"type {kind}")
    if not nodes or not opsets:
        raise ValueError("it has no operators or no opset")
    return OnnxNodes(opsets, tuple(nodes), constants, inputs)


def _shape(value_info: memoryview) -> tuple[int | str, ...]:
    """Dimensions of an input: numbers, or names of free ones."""
    message: Any = value_info
    for field in (INPUT_TYPE, TENSOR_TYPE_OF, SHAPE_OF):
        message = dict(_fields(message)).get(field, b"")
    dimensions = (
        dict(_fields(content))
        for number, content in _fields(message)
        if number == DIMENSION and isinstance(content, memoryview)
    )
    return tuple(
        _text(d[DIMENSION_NAME]) if DIMENSION_NAME in d else int(d.get(DIMENSION_VALUE, 0))
        for d in dimensions
    )


def _node(content: int | memoryview) -> Node:
    assert isinstance(content, memoryview)
    fields = list(_fields(content))

    def text(wanted: int) -> str:
        return next((_text(v) for n, v in fields if n == wanted), "")

    attributes = [dict(_fields(v)) for n, v in fields if n == NODE_ATTRIBUTE and isinstance(v, memoryview)]
    return Node(
        text(NODE_KIND),
        text(NODE_DOMAIN),
        text(NODE_NAME),
        tuple(_text(v) for n, v in fields if n == NODE_INPUT),
        tuple(_text(a.get(ATTRIBUTE_NAME, b"")) for a in attributes),
    )


def _text(value: int | memoryview | bytes) -> str:
    if isinstance(value, int):
        raise ValueError("a number where text should be")
    return bytes(value).decode("utf-8")


def _fields(data: memoryview) -> Iterator[Field]:
    """(field number, number or bytes) of a protobuf message; fixed-width fields give their bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("it ends too early or is of another kind")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
