"""Does a TensorRT release know every operator of a graph? Answered from lists, before minutes of building.

The lists and where they come from are in `tensorrt_operators.json`. A `Finding` that refuses would fail
on the device; a caution has been reported for that release and is shown, because nothing here can try it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from edge_client.errors import GraphUnsupported
from edge_client.onnx_nodes import OnnxNodes, read_nodes

JETSON_RELEASES = ("10.3", "10.16")
"""TensorRT of JetPack 6.2 and 7.2: every exported graph is checked against both."""


@dataclass(frozen=True)
class Finding:
    """What a release would say to an operator; `refuses`: the graph does not build there."""

    operator: str
    refuses: bool
    text: str


def lists() -> Any:
    """The content of the data file."""
    return json.loads(files("edge_client").joinpath("tensorrt_operators.json").read_text(encoding="utf-8"))


def operators_of(release: str) -> frozenset[str]:
    """Standard operators that a TensorRT release takes."""
    data = lists()
    later = [names for since, names in data["added"].items() if _number(since) > _number(release)]
    return frozenset(data["operators"]) - {name for names in later for name in names}


def findings(graph: OnnxNodes, release: str) -> list[Finding]:
    """What is wrong or doubtful with a graph on a TensorRT release ("10.3"), one for each operator."""
    data, known, opset = lists(), operators_of(release), graph.opsets.get("", 0)
    found: dict[tuple[str, bool], Finding] = {}
    for node in graph.nodes:
        if node.domain or node.kind not in known:
            name = f"{node.domain}.{node.kind}".strip(".")
            found[name, True] = Finding(name, True, "is not among its operators")
            continue
        if node.kind != "DequantizeLinear":
            types = {graph.constants.get(name, "") for name in node.inputs}
            if quantized := sorted(types & set(data["quantized_types"])):
                text = f"reads a constant of {' or '.join(quantized)}, which only DequantizeLinear may"
                found[node.kind, True] = Finding(node.kind, True, text)
        for caution in data["cautions"]:
            if (
                node.kind == caution["operator"]
                and opset >= caution["opset"]
                and _number(release) < _number(caution["fixed_in"])
            ):
                found.setdefault((node.kind, False), Finding(node.kind, False, caution["text"]))
    newest = max((v for k, v in data["newest_opset"].items() if _number(k) <= _number(release)), default=0)
    if opset > newest:
        text = f"the graph has opset {opset}, the release documents {newest}: what is newer may fail"
        found["opset", False] = Finding("opset", False, text)
    return list(found.values())


def check_graph(path: str | Path, release: str) -> list[Finding]:
    """The cautions for a file on a release; raises GraphUnsupported for what would refuse, with all of it."""
    found = findings(read_nodes(path), release)
    if refused := [f for f in found if f.refuses]:
        raise GraphUnsupported(
            f"TensorRT {release} does not take {Path(path).name}: "
            + "; ".join(f"{f.operator} {f.text}" for f in refused)
        )
    return found


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(n) for n in release.split(".")[:2])
