"""The decoder's public inputs: what is wrong is named and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.decoder.runner import OnnxDecoder
from edge_client.errors import ContextFull, DecoderBroken
from memory_model.bundle import Bundle
from memory_model.errors import CorruptFile, InvalidInput, Memory3Error, MissingFile
from memory_model.export.decoder import decoder_graphs
from tests.edge_client.tiny_bundle import random_memory, tiny_loaded


@pytest.fixture(scope="module")
def decoder(tiny: Bundle) -> OnnxDecoder:
    return OnnxDecoder(tiny.decoder)


@pytest.fixture(autouse=True)
def _empty(decoder: OnnxDecoder) -> None:
    decoder.rewind(0)
    decoder.inject([])


def test_chunks_and_single_steps_give_the_same_logits(decoder: OnnxDecoder) -> None:
    tokens = list(range(100))
    whole = decoder.run(tokens, 40, all_logits=True).copy()
    decoder.rewind(0)
    steps = np.concatenate([decoder.run([t], 40 + n).copy() for n, t in enumerate(tokens)])
    np.testing.assert_allclose(steps, whole, atol=1e-4)


def test_rewinding_forgets_exactly_the_rest(decoder: OnnxDecoder) -> None:
    decoder.run([1, 2, 3], 40)
    first = decoder.run([4, 5], 43).copy()
    decoder.run(list(range(80)), 45)
    decoder.rewind(3)
    np.testing.assert_array_equal(decoder.run([4, 5], 43), first)
    for length in (-1, 6):
        with pytest.raises(InvalidInput, match="rewind"):
            decoder.rewind(length)


def test_positions_are_the_callers_and_not_the_rows(decoder: OnnxDecoder) -> None:
    """Rotary attention depends on distances only: the same distances elsewhere give the same logits."""
    near = decoder.run([1, 2, 3], 0).copy()
    decoder.rewind(0)
    np.testing.assert_allclose(decoder.run([1, 2, 3], 200), near, atol=1e-4)
    decoder.rewind(0)
    decoder.run([1, 2], 0)
    assert np.abs(decoder.run([3], 300) - near).max() > 1e-3


def test_a_full_cache_refuses_and_stays_as_it_was(decoder: OnnxDecoder) -> None:
    decoder.run(list(range(200)) + list(range(200)), 0)
    kept = decoder.length
    with pytest.raises(ContextFull, match="400 tokens are cached"):
        decoder.run([1] * 113, 0)
    assert decoder.length == kept
    decoder.run([1] * 112, 0)
    assert decoder.length == decoder.capacity
    with pytest.raises(ContextFull):
        decoder.run([1], 0)


@pytest.mark.parametrize(
    ("tokens", "position"),
    [([], 0), ([-1], 0), ([258], 0), ([2**70], 0), ([1], -1), ([1], 10**9), ([1, 2], 543)],
)
def test_tokens_and_positions_out_of_range_are_refused(
    decoder: OnnxDecoder, tokens: list[int], position: int
) -> None:
    with pytest.raises(InvalidInput):
        decoder.run(tokens, position)
    assert decoder.length == 0


@given(st.lists(st.integers(-5, 270), max_size=80), st.integers(-3, 600), st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_any_input_is_answered_or_refused_by_name(
    decoder: OnnxDecoder, tokens: list[int], position: int, count: int
) -> None:
    try:
        decoder.inject([random_memory(decoder.config, n) for n in range(count)])
        assert np.isfinite(decoder.run(tokens, position)).all()
    except Memory3Error:
        pass
    if decoder.length > 400:
        decoder.rewind(0)


def test_files_that_are_no_decoder_are_named(tiny: Bundle, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="memory-model export"):
        OnnxDecoder(tmp_path / "decoder.onnx")
    for content in (
        b"",
        b"garbage",
        tiny.decoder.read_bytes()[:1000],
        (tiny.folder / "embedder.onnx").read_bytes(),
    ):
        (tmp_path / "decoder.onnx").write_bytes(content)
        with pytest.raises(CorruptFile, match=r"decoder\.onnx"):
            OnnxDecoder(tmp_path / "decoder.onnx")
    (tmp_path / "decoder.onnx").write_bytes(tiny.decoder.read_bytes())
    with pytest.raises(CorruptFile):  # its weights are not beside it
        OnnxDecoder(tmp_path / "decoder.onnx")


def test_properties_that_do_not_describe_the_graph_are_refused(tmp_path: Path) -> None:
    loaded = tiny_loaded()
    weights = {k: v.numpy() for k, v in loaded.model.state_dict().items()}
    graph = decoder_graphs(weights, loaded.config, capacity=64)["standard"]
    graph.metadata["config"] = json.dumps({"layers": 3})
    graph.save(tmp_path / "decoder.onnx")
    with pytest.raises(CorruptFile):
        OnnxDecoder(tmp_path / "decoder.onnx")


def test_a_decoder_that_gives_nan_says_so(tmp_path: Path) -> None:
    loaded = tiny_loaded()
    weights = {k: v.numpy().copy() for k, v in loaded.model.state_dict().items()}
    weights["norm.weight"][:] = np.nan
    decoder_graphs(weights, loaded.config, capacity=64)["standard"].save(tmp_path / "decoder.onnx")
    with pytest.raises(DecoderBroken):
        OnnxDecoder(tmp_path / "decoder.onnx").run([1], 0)
