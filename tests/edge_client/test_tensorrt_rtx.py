"""NVIDIA's own parser and builder take what we export, with the profiles we build with: no GPU needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from edge_client.errors import EngineMismatch, EngineNotBuilt, GraphUnsupported, TensorRtMissing
from edge_client.onnx_nodes import read_nodes
from edge_client.tensorrt_api import TensorRt, build_engine, load_tensorrt
from edge_client.tensorrt_build import build_bundle, build_graph
from edge_client.tensorrt_check import CpuRun, check_engine
from edge_client.tensorrt_operators import check_graph, operators_of
from edge_client.tensorrt_profiles import GraphInput, Range, decoder_profiles, graph_profile
from experiments.random_base import random_weight
from memory_model.bundle import Bundle
from memory_model.config import MemoryConfig, memory3_2b, smollm2_135m, uniform_budget, weight_shapes
from memory_model.errors import CorruptFile, InvalidInput
from memory_model.export.decoder import decoder_graphs
from memory_model.export.weights import Precision
from tests.edge_client.tiny_bundle import tiny_bundle, tiny_config

QUICK = 0  # the effort of a build: every graph is parsed and compiled, kernels are not searched for


@pytest.fixture(scope="module")
def rtx() -> TensorRt:
    return load_tensorrt(("tensorrt_rtx_bindings",))


def exported(config: object, precision: Precision, folder: Path) -> Path:
    path = folder / "decoder.onnx"
    weights = {name: random_weight(name, shape) for name, shape in weight_shapes(config).items()}
    graphs = decoder_graphs(weights, config, precision, 512, operators=["standard"])  # type: ignore[arg-type]
    graphs["standard"].save(path, external=True)
    return path


@pytest.mark.parametrize(
    "precision",
    [Precision("float32"), Precision("float16"), Precision("int8"), Precision("int4"),
     Precision("int4", compute="float16")],
    ids=lambda p: p.label,
)  # fmt: skip
def test_the_builder_takes_the_decoder_in_every_precision(
    precision: Precision, rtx: TensorRt, tmp_path: Path
) -> None:
    path = exported(tiny_config(), precision, tmp_path)
    profiles = decoder_profiles(tiny_config(), 512, CpuRun(path).inputs)
    steps: list[str] = []
    kept: list[bytes] = []
    built = build_engine(
        rtx, path, profiles, keep_timing=kept.append, effort=QUICK, progress=lambda phase, *_: steps.append(phase)
    )  # fmt: skip
    assert len(built.plan) > 1000
    assert steps
    assert kept


@pytest.mark.parametrize(
    ("shape", "precision"),
    [
        ("memory3-2b", "int4"),
        pytest.param("memory3-2b", "int4-128", marks=pytest.mark.slow),
        ("smollm2-135m", "int4-64-table-int8"),
    ],
)
def test_the_builder_takes_two_layers_of_the_real_shapes(
    shape: str, precision: str, rtx: TensorRt, tmp_path: Path
) -> None:
    from dataclasses import replace

    full = memory3_2b() if shape == "memory3-2b" else smollm2_135m()
    heads = uniform_budget(1, full.kv_heads, 8)
    config = replace(full, layers=2, vocabulary=512, memory=MemoryConfig(heads))
    path = exported(config, Precision.parse(precision), tmp_path)
    profiles = decoder_profiles(config, 512, CpuRun(path).inputs)
    assert len(build_engine(rtx, path, profiles[:1], effort=QUICK).plan) > 1000


def test_a_bundle_is_built_kept_and_found_again(tiny: Bundle, rtx: TensorRt, tmp_path: Path) -> None:
    first = list(build_bundle(tiny, api=rtx, root=tmp_path))
    assert {"decoder.onnx", "embedder.onnx"} <= {o.graph for o in first}
    assert all(o.place.is_file() and "-sm86-" in o.place.parent.name for o in first)
    assert all(o.was_there for o in build_bundle(tiny, api=rtx, root=tmp_path))


def test_an_int8_embedder_is_left_to_the_processor(rtx: TensorRt, tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path, embedder_precision="int8")
    built = {o.graph for o in build_bundle(bundle, api=rtx, root=tmp_path / "cache")}
    assert "decoder.onnx" in built
    assert "embedder.onnx" not in built


class Wrong:
    """An engine that is wrong in its first output, as a miscompiled kernel would be."""

    def __init__(self, cpu: CpuRun, factor: float) -> None:
        self.cpu, self.factor = cpu, factor

    def run(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        found = self.cpu.run(feeds)
        return {**found, "logits": found["logits"] * np.float32(self.factor)}


@pytest.mark.parametrize("factor", [1.2, float("nan")])
def test_an_engine_that_computes_something_else_is_refused_and_not_kept(
    factor: float, tiny: Bundle, rtx: TensorRt, tmp_path: Path
) -> None:
    wrong = Wrong(CpuRun(tiny.decoder), factor)
    with pytest.raises(EngineMismatch, match="differs from the CPU"):
        build_graph(tiny.decoder, tiny, rtx, "86", root=tmp_path, opening=lambda *_: wrong)
    assert not list(tmp_path.rglob("engine.plan"))
    assert list(tmp_path.rglob("timing.cache"))


def test_an_engine_that_agrees_passes_in_every_profile(tiny: Bundle) -> None:
    cpu = CpuRun(tiny.decoder)
    profiles = decoder_profiles(tiny.config, tiny.manifest.capacity, cpu.inputs)
    results = check_engine(Wrong(cpu, 1.0), cpu, profiles, tiny.config.vocabulary)
    assert [(r.profile, r.same_choice) for r in results] == [("step", 1.0), ("chunk", 1.0)]
    assert max(r.error for r in results) < 1e-5


def test_every_dynamic_input_needs_a_range() -> None:
    inputs = [GraphInput("a", (2, "S")), GraphInput("fixed", (3,))]
    profile = graph_profile("p", inputs, {"S": Range(1, 4, 8)})
    assert profile.shapes == {"a": ((2, 1), (2, 4), (2, 8))}
    assert [profile.text(n) for n in range(3)] == ["a:2x1", "a:2x4", "a:2x8"]
    with pytest.raises(InvalidInput, match="'T'"):
        graph_profile("p", [GraphInput("b", ("T",))], {"S": Range(1, 4, 8)})
    with pytest.raises(InvalidInput, match="no range"):
        Range(3, 2, 9)


def test_a_profile_that_is_not_the_graphs_is_refused(tiny: Bundle, rtx: TensorRt) -> None:
    profile = graph_profile("p", [GraphInput("nothing", ("S",))], {"S": Range(1, 1, 1)})
    with pytest.raises(EngineNotBuilt, match="disagree about"):
        build_engine(rtx, tiny.decoder, [profile])


def test_a_machine_without_tensorrt_is_told_what_to_install() -> None:
    with pytest.raises(TensorRtMissing, match="python3-libnvinfer"):
        load_tensorrt(("tensorrt_that_is_not_there",))


@pytest.mark.parametrize("release", ["10.3", "10.16"])
def test_both_jetpacks_know_every_operator_we_export(release: str, tiny: Bundle, tmp_path: Path) -> None:
    paths = [tiny.decoder, tiny.folder / "embedder.onnx"]
    for precision in ("float32", "float16", "int8", "int4"):
        folder = tmp_path / precision
        folder.mkdir()
        paths.append(exported(tiny_config(), Precision(precision), folder))
    for path in paths:
        check_graph(path, release)


def test_operators_that_came_later_are_not_in_the_older_list() -> None:
    assert {"Attention", "RotaryEmbedding", "TensorScatter"} <= operators_of("10.16") - operators_of("10.3")
    assert "ScatterND" in operators_of("10.3")


def test_what_a_release_does_not_take_is_refused_by_name(tmp_path: Path, rtx: TensorRt) -> None:
    table = helper.make_tensor("table", TensorProto.INT8, [4, 2], b"\0" * 8, raw=True)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["S"])
    out = helper.make_tensor_value_info("out", TensorProto.INT8, ["S", 2])
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Unique", ["rows"], ["out"]),
    ]
    graph = helper.make_graph(nodes, "g", [ids], [out], [table])
    path = tmp_path / "g.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    )
    with pytest.raises(GraphUnsupported, match=r"Gather reads a constant of INT8.*Unique is not among"):
        check_graph(path, "10.16")
    with pytest.raises(EngineNotBuilt, match=r"g\.onnx"):
        build_engine(rtx, path, [graph_profile("p", [GraphInput("ids", ("S",))], {"S": Range(1, 1, 1)})])


def test_operators_are_read_as_the_onnx_package_reads_them(tiny: Bundle, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(tiny.decoder, load_external_data=False)
    found = read_nodes(tiny.decoder)
    assert [(n.kind, n.inputs) for n in found.nodes] == [
        (n.op_type, tuple(n.input)) for n in model.graph.node
    ]
    assert found.opsets == {"": 21}
    assert set(found.constants) == {t.name for t in model.graph.initializer}
    assert found.inputs == {i.name: i.shape for i in CpuRun(tiny.decoder).inputs}
    whole = tiny.decoder.read_bytes()
    for content in (b"", b"garbage", whole[: len(whole) // 2]):
        (tmp_path / "x.onnx").write_bytes(content)
        with pytest.raises(CorruptFile):
            read_nodes(tmp_path / "x.onnx")


def test_the_data_file_names_its_source() -> None:
    from edge_client.tensorrt_operators import lists

    assert "operators.md" in lists()["source"]
    json.dumps(lists())
