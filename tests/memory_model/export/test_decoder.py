"""The exported decoder gives the logits of the torch decoder, whatever is cut into chunks and put into slots."""

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from edge_client.decoder.sequence import Sequence
from memory3.codec.payload import ExplicitMemory
from memory3.config import ModelConfig
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.data.factbook import read_jsonl
from memory_model.export import writer
from memory_model.export.activations import KEYS, second_moments
from memory_model.export.decoder import OPERATORS, decoder_graphs, export_decoder
from memory_model.export.graph import Graph
from memory_model.export.quantize import quantize
from memory_model.export.weights import Precision
from memory_model.models.folder import DEFAULT
from memory_model.nn.decoder import Decoder
from testing.programs import ROOT
from tests.edge_client.tiny_bundle import tiny_loaded
from tests.memory_model.export.random_graphs import (
    BUDGETS,
    PREFIX,
    WINDOW,
    config_of,
    exported,
    memories,
    opened,
    weights_of,
)
from tests.memory_model.tiny import chunk_memories, random_model

BLOCK = 32


def standard(weights: dict[str, np.ndarray], config: ModelConfig, precision: str = "float32") -> Graph:
    return decoder_graphs(weights, config, precision, operators=["standard"])["standard"]


def reference_logits(
    model: Decoder, ids: list[int], cuts: list[tuple[int, int, int]], sets: list[list[ExplicitMemory]]
) -> np.ndarray:
    """The torch decoder's logits, all tokens in one pass; cuts are (start, end, number of the memory set or -1)."""
    positions = torch.tensor([[i if i < PREFIX else i + WINDOW for i in range(len(ids))]])
    chunk_of = torch.full((1, len(ids)), -1)
    for start, end, number in cuts:
        chunk_of[0, start:end] = number
    with torch.no_grad():
        reads = chunk_memories(sets, model.config) if any(sets) else None
        return model.head(model.hidden(torch.tensor([ids]), positions, memory=reads, chunk_BT=chunk_of))[0].numpy()


def run_cuts(
    sequence: Sequence, ids: list[int], cuts: list[tuple[int, int, int]], sets: list[list[ExplicitMemory]]
) -> np.ndarray:
    """Logits of the text; the first cut is the prefix, which the decoder has read."""
    assert cuts[0] == (0, PREFIX, -1)
    rows = []
    sequence.begin([], memory=any(sets))
    for start, end, number in cuts[1:]:
        if any(sets):
            sequence.inject(sets[number])
        rows.append(sequence.read(ids[start:end], all_logits=True))
    return np.concatenate(rows)


@pytest.mark.parametrize("precision", ["float32", "int4", "float16-half"])
@pytest.mark.parametrize("budget", list(BUDGETS))
def test_a_cache_is_read_by_the_node_that_writes_it_and_by_no_other(
    budget: str, precision: str, tmp_path: Path
) -> None:
    # Devices bind input and output of a cache to the same memory. TensorRT promises nothing about that; where all other
    # nodes read the output, the only thing that an engine can do to the input is to copy it onto itself.
    config = config_of(budget)
    standard(weights_of(random_model(config)), config, precision).save(tmp_path / "decoder.onnx")
    graph = onnx.load(tmp_path / "decoder.onnx", load_external_data=False).graph
    caches = {given.name for given in graph.input} & {made.name.removesuffix("_out") for made in graph.output}
    assert caches
    readers = {name: [(n.op_type, list(n.output)) for n in graph.node if name in n.input] for name in caches}
    assert readers == {name: [("ScatterND", [f"{name}_out"])] for name in caches}


@pytest.mark.parametrize("budget", [*BUDGETS, "none"])
@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("variant", [*OPERATORS, "torch"])
def test_logits_equal_torch_in_chunks_and_steps(budget: str, count: int, variant: str, tmp_path: Path) -> None:
    model = random_model(config_of(budget))
    sets = [memories(model.config, count, seed) for seed in (1, 2)]
    cuts = [(0, 3, -1), (3, 67, 0), (67, 83, 1), *((i, i + 1, i < 85) for i in range(83, 88))]
    ids = np.random.default_rng(count).integers(0, 200, 88).tolist()
    got = run_cuts(exported(model, tmp_path, variant=variant, prefix=tuple(ids[:3])), ids, cuts, sets)
    np.testing.assert_allclose(got, reference_logits(model, ids, cuts, sets)[3:], atol=1e-4)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("count", [0, 3])
def test_poison_in_unused_rows_does_not_leak(budget: str, count: int, tmp_path: Path) -> None:
    model = random_model(config_of(budget))
    chosen = memories(model.config, count, 3)
    ids = np.random.default_rng(0).integers(0, 200, 30).tolist()

    def run(poison: bool) -> np.ndarray:
        sequence = exported(model, tmp_path)
        caches = sequence.decoder.scheduler._runner.caches
        sequence.begin([], memory=count > 0)
        sequence.read(ids[:20])
        if count:
            sequence.inject(chosen)
        for name, tensor in caches.tensors.items() if poison else ():
            rows = caches.buffers[name].array[0]
            first = caches.first_row(tensor.layout, count > 0)
            rows[:, first + sequence.length :] = 1e30  # not written yet
            if first:  # what the mask hides
                hidden = np.isinf(caches.masks[tensor.layout][0])
                for head in range(len(rows)):
                    rows[head, :first][hidden[head if len(hidden) > 1 else 0]] = -1e30
        return sequence.read(ids[20:], all_logits=True)

    np.testing.assert_array_equal(run(poison=True), run(poison=False))


@pytest.mark.parametrize("precision", ["int8", "int4", "int4-attention-int8-down-int8"])
def test_low_bit_weights_equal_their_dequantized_float_model(precision: str, tmp_path: Path) -> None:
    """Quantization is the only difference: a float model of the rounded weights gives the same logits.

    Up to 8 bits for activations inside the kernel, that is: hence the tolerance.
    """
    model = random_model(config_of("one head", tied_embeddings=False))
    chosen = Precision.parse(precision)
    rounded = random_model(model.config)
    with torch.no_grad():
        for name, parameter in rounded.named_parameters():
            if parameter.ndim == 2:
                part = "attention" if "attn" in name else "down" if "down" in name else ""
                stored = quantize(parameter.numpy().T, 8 if "embed" in name else chosen.bits(part))
                parameter.copy_(torch.tensor(stored.dequantize().T))
    sets, cuts = [memories(model.config, 5, 1)], [(0, 3, -1), (3, 60, 0)]
    ids = np.random.default_rng(2).integers(0, 200, 60).tolist()
    got = run_cuts(exported(model, tmp_path, precision, prefix=tuple(ids[:3])), ids, cuts, sets)
    want = reference_logits(rounded, ids, cuts, sets)[3:]
    assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)


def test_the_file_holds_standard_operators_only_and_a_tied_table_once(tmp_path: Path) -> None:
    for precision in ("float32", "int8", "int4"):
        exported(random_model(config_of()), tmp_path, precision, variant="standard")
        model = onnx.load(tmp_path / "decoder.onnx")
        assert {node.domain for node in model.graph.node} == {""}
        assert [(o.domain, o.version) for o in model.opset_import] == [("", 21)]
    graph = standard(weights_of(random_model(config_of())), config_of()).model().graph
    assert [list(t.dims) for t in graph.initializer].count([200, 192]) == 1


def weight_extents(graph: Path) -> set[tuple[int, int]]:
    """Offset and length of each weight of a graph in its file of weights."""
    tensors = onnx.load(graph, load_external_data=False).graph.initializer
    entries = [{entry.key: entry.value for entry in tensor.external_data} for tensor in tensors]
    return {(int(entry["offset"]), int(entry["length"])) for entry in entries if entry}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "int4"])
def test_both_variants_read_one_file_of_weights_and_agree(precision: str, tied: bool, tmp_path: Path) -> None:
    """The CPU opens its own variant where there is one; the other stays for accelerators."""
    loaded = tiny_loaded(config=config_of("unequal heads", tied_embeddings=tied))
    model, path = loaded.model, tmp_path / "decoder.onnx"
    names = {file.name for file in export_decoder(loaded, path, precision)}
    assert names == {"decoder.onnx", "decoder.cpu.onnx", "writer.onnx", "decoder.onnx.data"}
    assert names == set(os.listdir(tmp_path))
    standard(weights_of(model), model.config, precision).save(tmp_path / "alone.onnx")
    extents = [weight_extents(tmp_path / name) for name in ("decoder.onnx", "decoder.cpu.onnx")]
    assert extents[1] <= extents[0], "the other variant adds no weights"
    chosen, ids = memories(model.config, 4, 1), list(range(50))
    logits, graphs = [], []
    for file in (path, tmp_path / "alone.onnx"):
        decoder = opened(file, [1, 2, 3])
        graphs.append(decoder.backend)
        sequence = decoder.sequence()
        sequence.begin(ids, memory=True)
        sequence.inject(chosen)
        logits.append(sequence.read(ids, all_logits=True))
    np.testing.assert_allclose(*logits, atol=0.05 * float(np.abs(logits[0]).max()))
    assert [graph.fused for graph in graphs] == [True, False]


@pytest.mark.parametrize(("small", "mlp"), [(10**9, "int8"), (0, "int4")])
def test_the_writer_of_a_large_base_shares_the_decoders_mlps(
    small: int, mlp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SMALL_PARAMETERS", small)
    export_decoder(tiny_loaded(config=config_of("unequal heads")), tmp_path / "decoder.onnx", "int4")
    read = [onnx.load(tmp_path / name, load_external_data=False) for name in ("writer.onnx", "decoder.onnx")]
    written, decoded = ({tensor.name for tensor in model.graph.initializer} for model in read)
    assert {"layers.0.qkv.int8", "layers.0.o.int8", f"layers.0.gate_up.{mlp}", f"layers.0.down.{mlp}"} <= written
    assert {"layers.0.gate_up.int4", "layers.0.down.int4"} <= decoded


def test_a_large_bases_writer_shares_projections_of_mixed_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SMALL_PARAMETERS", 0)
    loaded = tiny_loaded(config=config_of("unequal heads"))
    export_decoder(loaded, tmp_path / "decoder.onnx", "int4-attention-int8-down-int8")
    mixed = {f"layers.0.{name}" for name in ("qkv.int8", "o.int8", "gate_up.int4", "down.int8")}
    for name in ("writer.onnx", "decoder.onnx", "decoder.cpu.onnx"):
        stored = {t.name for t in onnx.load(tmp_path / name, load_external_data=False).graph.initializer}
        assert mixed == {tensor for tensor in stored if tensor.startswith("layers.0.") and tensor.count(".") == 3}


def test_zero_and_extreme_weights_are_quantized() -> None:
    weight = np.zeros((BLOCK, 3), np.float32)
    weight[0, 1], weight[:, 2] = -1e30, 1e-30
    for bits in (4, 8):
        assert np.isfinite(quantize(weight, bits).dequantize()).all()
        assert (quantize(weight, bits).dequantize()[:, 0] == 0).all()


@pytest.mark.parametrize("block", [32, 128])
def test_the_last_block_of_a_weight_may_be_shorter(block: int) -> None:
    """576 inputs are 4.5 blocks of 128: the rest is rounded with a scale of its own, as if it were a whole block."""
    weight = np.random.default_rng(3).standard_normal((2 * block + 32, 4)).astype(np.float32)
    parts = quantize(weight[: 2 * block], 4, block), quantize(weight[2 * block :], 4, 32)
    got = quantize(weight, 4, block)
    np.testing.assert_array_equal(got.codes, np.concatenate([part.codes for part in parts]))
    np.testing.assert_array_equal(got.scales, np.concatenate([part.scales for part in parts]))


def test_what_cannot_be_exported_is_named() -> None:
    config = config_of()
    weights = weights_of(random_model(config))
    with pytest.raises(InvalidInput, match="precision must be"):
        standard(weights, config, "int2")
    with pytest.raises(InvalidInput, match=r"one of \(32, 64, 128\) inputs, not 48"):
        Precision("int4", block=48)
    broken = dict(weights)
    broken["layers.0.self_attn.q_proj.weight"] = np.full((192, 192), np.nan, np.float32)
    with pytest.raises(InvalidInput, match="NaN"):
        standard(broken, config, "int8")


# Calibrated rounding keeps a layer's outputs; what it is calibrated with is what the exported layers read.

ROWS = [
    {"knowledge": f"Land {n} has {n} hills.", "question": f"How many hills has {n}?", "right_answer": f"{n}"}
    for n in range(6)
]


@pytest.mark.parametrize("block", [32, 64])
def test_calibrated_codes_keep_outputs_better_than_the_nearest(block: int) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((2000, 12)) @ rng.standard_normal((12, 96)) + 0.1 * rng.standard_normal((2000, 96))
    weight = rng.standard_normal((96, 40)).astype(np.float32)
    moment = (inputs.T @ inputs / len(inputs)).astype(np.float32)

    def error(dequantized: np.ndarray) -> float:
        return float(np.linalg.norm(inputs @ (dequantized - weight)))

    found = quantize(weight, 4, block, moment)
    assert error(found.dequantize()) < 0.5 * error(quantize(weight, 4, block).dequantize())
    assert found.codes.min() >= -8
    assert found.codes.max() <= 7


def test_moments_have_the_names_and_widths_of_the_exported_layers() -> None:
    loaded = tiny_loaded()
    graph = decoder_graphs(loaded.model.state_dict(), loaded.config, "int4")["standard"].model().graph
    steps: list[tuple[int, int]] = []
    moments = second_moments(loaded, ROWS, lambda done, of: steps.append((done, of)))
    widths = {t.name.removesuffix(".int4"): t.dims[0] for t in graph.initializer if t.data_type == TensorProto.INT4}
    widths["table"] = widths.pop("embed_tokens")
    assert {name: len(m) for name, m in moments.items()} == widths
    assert steps == [(n + 1, len(ROWS)) for n in range(len(ROWS))]
    for moment in moments.values():
        np.testing.assert_allclose(moment, moment.T, atol=1e-6)
        assert np.trace(moment) == pytest.approx(1.5, rel=1e-3)


def test_half_of_the_shipped_rows_are_about_countries_that_are_not_held_out_half_are_tunings_prose() -> None:
    rows, data = read_jsonl(DEFAULT / "calibration.jsonl", KEYS), ROOT / "data"
    names = [c["title"] for c in json.loads((data / "heldout.json").read_text())]
    tuned = {(row["text"], row["question"]) for row in map(json.loads, (data / "introductions.jsonl").open())}
    facts = [row for row in rows if (row["knowledge"], row["question"]) not in tuned]
    assert len(rows) == 2 * len(facts) >= 128
    assert rows[::2] == facts, "what is read as text, the first of all, is of both kinds too"
    for row in facts:
        assert not any(row["knowledge"].startswith(f"{name}\n") for name in names)


@pytest.mark.parametrize("text", ["", "{", "[]\n", '{"knowledge": "a"}\n', "\u00ff"])
def test_rows_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(CorruptFile):
        read_jsonl(tmp_path / "rows.jsonl", KEYS)
    with pytest.raises(MissingFile):
        read_jsonl(tmp_path / "none.jsonl", KEYS)


def test_a_precision_is_read_from_its_label_and_others_are_refused() -> None:
    mixed = "int4-64-attention-int8-down-int8-table-int8"
    for label in ("float32", "int8", "int4", "int4-128", "int4-64-table-int8", "float16-half", mixed):
        assert Precision.parse(label).label == label
    assert [Precision.parse(mixed).bits(part) for part in ("", "attention", "down")] == [4, 8, 8]
    for label in ("", "int2", "int4-", "int4-48", "int4-table", "int4-table-int3", "int4-fast", "int8-down-int4"):
        with pytest.raises(InvalidInput):
            Precision.parse(label)
