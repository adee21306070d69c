"""Calibrated rounding keeps a layer's outputs; what it is calibrated with is what the exported layers read."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.export.activations import read_rows, second_moments
from memory_model.export.decoder import decoder_graphs
from memory_model.export.quantize import quantize
from memory_model.export.weights import Precision
from memory_model.models.folder import DEFAULT
from tests.edge_client.tiny_bundle import tiny_loaded

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
    widths = {t.name: t.dims[0] for t in graph.initializer if t.data_type == TensorProto.INT4}
    widths["table"] = widths.pop("embed_tokens")
    assert {name: len(m) for name, m in moments.items()} == widths
    assert steps == [(n + 1, len(ROWS)) for n in range(len(ROWS))]
    for moment in moments.values():
        np.testing.assert_allclose(moment, moment.T, atol=1e-6)
        assert np.trace(moment) == pytest.approx(1.5, rel=1e-3)


def test_half_of_the_shipped_rows_are_about_countries_that_are_not_held_out_half_are_tunings_prose() -> None:
    rows, data = read_rows(DEFAULT / "calibration.jsonl"), Path(__file__).parents[3] / "data"
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
        read_rows(tmp_path / "rows.jsonl")
    with pytest.raises(MissingFile):
        read_rows(tmp_path / "none.jsonl")


def test_a_precision_is_read_from_its_label_and_others_are_refused() -> None:
    for label in ("float32", "int8", "int4", "int4-128", "int4-64-table-int8", "float16-half"):
        assert Precision.parse(label).label == label
    for label in ("", "int2", "int4-", "int4-48", "int4-table", "int4-table-int3", "int4-fast"):
        with pytest.raises(InvalidInput):
            Precision.parse(label)
