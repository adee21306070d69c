"""What a codec costs is measured in predictions on held-out batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.codec_curve import Ruler, Variant
from memory_model.codec.codec import ExactCodec
from memory_model.errors import InvalidInput
from tests.memory_model.codec.test_codec_blocks import alike
from tests.memory_model.tiny import PREFIX, tiny_model
from tests.memory_model.train.test_codec_fit import CONFIG, batch


@given(st.text(max_size=12))
@settings(max_examples=50)
def test_any_other_name_of_a_variant_is_refused_or_read_back(name: str) -> None:
    try:
        variant = Variant.parse(name)
    except InvalidInput:
        return
    assert Variant.parse(variant.name) == variant


@pytest.mark.parametrize("name", ["paper:13", "tokens:0", "tokens:065", "tokens:65", "layers:8", "tokens"])
def test_an_impossible_variant_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        Variant.parse(name)


class Noisy(ExactCodec):
    """Exact but for noise of a scale on every number."""

    def __init__(self, scale: float) -> None:
        super().__init__(8)
        self.scale = scale

    def decode(self, codes: np.ndarray, blocks: int | np.ndarray) -> np.ndarray:
        vectors = super().decode(codes, blocks)
        return (vectors + self.scale * np.random.default_rng(0).normal(size=vectors.shape)).astype(np.float32)


def test_exact_memories_lose_nothing_and_coarser_codes_lose_more() -> None:
    ruler = Ruler(tiny_model(CONFIG), PREFIX, [batch(1), batch(2)])
    exact = ruler.measure(ExactCodec(8))
    assert exact == dict.fromkeys(exact, 0.0)
    little, much = ruler.measure(Noisy(0.05)), ruler.measure(Noisy(0.5))
    assert 0 < little["divergence"] < much["divergence"]


def test_the_curve_is_for_heads_that_keep_every_token() -> None:
    with pytest.raises(InvalidInput, match="every token"):
        Ruler(tiny_model(), PREFIX, [])


@pytest.mark.parametrize("family", ["groups", "heads", "tokens"])
def test_every_family_restores_vectors_better_than_their_mean(family: str) -> None:
    groups = alike(260, 4)
    codec = Variant(family, 2).fit(groups, [np.eye(8)] * 4, seed=0)
    assert codec.code_bytes == 2 * codec.together
    for block, first in enumerate(range(0, 4, codec.together)):
        before = np.concatenate(groups[first : first + codec.together], axis=1)
        after = codec.decode(codec.encode(before, block), block)
        assert ((before - after) ** 2).sum() < 0.5 * ((before - before.mean(0)) ** 2).sum()
