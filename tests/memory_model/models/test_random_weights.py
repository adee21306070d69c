"""Random weights are a model's weights, made one by one; a bundle of them decodes."""

from __future__ import annotations

import numpy as np
import pytest

from memory_model.config import memory3_2b, weight_shapes
from memory_model.errors import InvalidInput
from memory_model.models.random_weights import RandomWeights
from tests.edge_client.tiny_bundle import tiny_config
from tests.memory_model.paper_codec import paper_codec
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


def test_the_random_codec_has_the_papers_fourteen_bytes() -> None:
    codec = paper_codec(80)
    assert (codec.code_bytes, codec.tables.coarse_bits, codec.tables.bits) == (14, 14, 10)
    codes = np.random.default_rng(0).integers(0, 256, (50, 14)).astype(np.uint8)
    assert np.isfinite(codec.decode(codes, 0)).all()
    with pytest.raises(InvalidInput, match="8 parts"):
        paper_codec(12)
