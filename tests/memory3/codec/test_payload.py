"""Payloads come back as they were, and whatever is not ours is refused by name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory3.codec.codec import ExactCodec
from memory3.codec.payload import HEADER, ExplicitMemory, MemoryFormat
from memory3.errors import CodecMismatch, CorruptFile, FormatMismatch, InvalidInput, Memory3Error, ModelMismatch
from tests.edge_client.tiny_bundle import random_memory
from tests.memory_model.tiny import tiny_config

CONFIG = tiny_config()
MODEL = "ab" * 32


def memory_format(model_id: str = MODEL, codec: ExactCodec | None = None) -> MemoryFormat:
    return MemoryFormat(CONFIG, model_id, codec or ExactCodec(CONFIG.head_dim))


@given(st.lists(st.integers(1, 16), max_size=6))
def test_memories_survive_their_payloads(lengths: list[int]) -> None:
    ours = memory_format()
    written = [random_memory(CONFIG, i, n) for i, n in enumerate(lengths)]
    payloads = ours.encode(written)
    assert [len(p) for p in payloads] == [ours.payload_bytes(n) for n in lengths]
    for before, after in zip(written, ours.decode(payloads), strict=True):
        assert after.tokens == before.tokens
        np.testing.assert_array_equal(after.keys, before.keys)
        np.testing.assert_array_equal(after.values, before.values)


def test_a_memory_of_another_writer_is_refused_by_name() -> None:
    [payload] = memory_format().encode([random_memory(CONFIG, 0, 9)])
    with pytest.raises(ModelMismatch, match="abababababab"):
        memory_format(model_id="cd" * 32).decode([payload])
    with pytest.raises(CodecMismatch, match="codec"):
        memory_format(codec=ExactCodec(CONFIG.head_dim, dtype="float16")).decode([payload])
    other = MemoryFormat(tiny_config(rope_base=5000.0), MODEL, ExactCodec(CONFIG.head_dim))
    with pytest.raises(FormatMismatch, match="format"):
        other.decode([payload])


@given(st.binary(max_size=200))
def test_bytes_that_are_no_payload_are_refused(garbage: bytes) -> None:
    with pytest.raises(Memory3Error):
        memory_format().decode([garbage])


@given(st.integers(0, 16 * 8), st.integers(0, HEADER.size * 8 - 1))
@settings(max_examples=100)
def test_a_cut_payload_or_a_changed_header_is_refused(cut: int, bit: int) -> None:
    ours = memory_format()
    [payload] = ours.encode([random_memory(CONFIG, 0, 12)])
    with pytest.raises(CorruptFile):
        ours.decode([payload[: len(payload) - 1 - cut]])
    changed = bytearray(payload)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Memory3Error):
        ours.decode([bytes(changed)])


def test_what_is_no_memory_of_the_model_is_not_written() -> None:
    good, broken = (random_memory(CONFIG, 0, 5) for _ in range(2))
    broken.keys[0, 0] = np.nan
    for one in (broken, ExplicitMemory(good.keys[:-1], good.values, 5)):
        with pytest.raises(InvalidInput):
            memory_format().encode([one])


def test_a_codec_for_another_shape_is_refused() -> None:
    with pytest.raises(InvalidInput, match="head dimension"):
        MemoryFormat(CONFIG, MODEL, ExactCodec(CONFIG.head_dim + 1))
