"""Random weights are a model's weights, made one by one; a bundle of them decodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress

from edge_client.decoder import OnnxDecoder
from memory_model.codec.codec import ProductCodec
from memory_model.config import memory3_2b
from memory_model.errors import InvalidInput
from memory_model.export.random_bundle import export_random, paper_codec
from memory_model.export.weights import Precision
from memory_model.models.random_weights import RandomWeights, weight_shapes
from tests.edge_client.tiny_bundle import tiny_bert, tiny_config
from tests.memory_model.tiny import tiny_model


def test_names_and_shapes_are_those_of_the_torch_model() -> None:
    model = tiny_model()
    found = {n: tuple(t.shape) for n, t in model.state_dict().items() if n != "lm_head.weight"}
    assert weight_shapes(model.config) == found


def test_the_papers_shape_has_the_papers_parameters() -> None:
    shapes = weight_shapes(memory3_2b())
    assert sum(int(np.prod(s)) for s in shapes.values()) == memory3_2b().parameters()


def test_numbers_follow_from_the_seed_and_not_from_the_order() -> None:
    names = list(weight_shapes(tiny_config()))
    a, b, other = (
        RandomWeights(tiny_config(), 1),
        RandomWeights(tiny_config(), 1),
        RandomWeights(tiny_config(), 2),
    )
    forward, backward = {n: a[n] for n in names}, {n: b[n] for n in reversed(names)}
    assert all(np.array_equal(forward[n], backward[n]) for n in names)
    assert not np.array_equal(other[names[0]], forward[names[0]])
    assert a.model_id == b.model_id != other.model_id


def test_a_random_bundle_decodes_and_says_that_it_is_random(tmp_path: Path) -> None:
    with Progress(disable=True) as progress:
        bundle = export_random(
            tiny_config(), tmp_path / "bundle", Precision("int4"), 128, progress, embedder=tiny_bert(tmp_path / "bert")
        )  # fmt: skip
    assert bundle.manifest.name == "tiny-random"
    bundle.verify()
    logits = OnnxDecoder(bundle.decoder).run([1, 2, 3], 40)
    assert np.isfinite(logits).all()
    assert logits.std() > 0.1
    assert isinstance(bundle.memory_format.codec, ProductCodec)


def test_the_random_codec_has_the_papers_fourteen_bytes() -> None:
    codec = paper_codec(80)
    assert (codec.code_bytes, codec.tables.coarse_bits, codec.tables.bits) == (14, 14, 10)
    codes = np.random.default_rng(0).integers(0, 256, (50, 14)).astype(np.uint8)
    assert np.isfinite(codec.decode(codes, 0)).all()
    with pytest.raises(InvalidInput, match="8 parts"):
        paper_codec(12)
