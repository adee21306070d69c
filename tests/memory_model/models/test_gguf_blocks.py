"""Every block type that the package gguf dequantises is read, bit for bit as it reads it."""

from pathlib import Path

import gguf.quants
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from memory3.errors import InvalidInput
from memory_model.models.gguf.blocks import dequantized, require_readable
from memory_model.models.gguf.header import StoredTensor

KINDS = sorted(gguf.quants._type_traits, key=lambda kind: kind.name)


def random_blocks(kind: GGMLQuantizationType, rows: int, blocks: int) -> np.ndarray:
    """Bytes whose float16 scales are finite: no byte ends in a full exponent."""
    size = GGML_QUANT_SIZES[kind][1]
    return np.random.default_rng(0).integers(0, 256, (rows, blocks * size), dtype=np.uint8) & 0xBB


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_block_type_is_read_as_gguf_reads_it(kind: GGMLQuantizationType) -> None:
    data = random_blocks(kind, 3, 4)
    expected = gguf.quants.dequantize(data, kind)
    tensor = StoredTensor("x", expected.shape, kind, data)
    np.testing.assert_array_equal(dequantized(tensor, torch.float32).numpy(), expected)
    assert torch.equal(dequantized(tensor, torch.bfloat16), torch.from_numpy(expected).bfloat16())


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.F16], ids=lambda kind: kind.name)
def test_plain_values_are_read(kind: GGMLQuantizationType) -> None:
    stored = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32 if kind.name == "F32" else np.float16)
    tensor = StoredTensor("x", (2, 2), kind, stored.view(np.uint8))
    assert dequantized(tensor, torch.bfloat16).tolist() == stored.tolist()


def test_a_tensor_larger_than_a_piece_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = GGMLQuantizationType.Q4_K
    data = random_blocks(kind, 7, 2)
    monkeypatch.setattr("memory_model.models.gguf.blocks._AT_ONCE", 1024)
    found = dequantized(StoredTensor("x", (7, 512), kind, data), torch.float32)
    np.testing.assert_array_equal(found.numpy(), gguf.quants.dequantize(data, kind))


def test_an_unknown_block_type_is_refused_by_name() -> None:
    kind = GGMLQuantizationType.Q8_K
    data = np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8)
    with pytest.raises(InvalidInput, match="Q8_K"):
        require_readable(StoredTensor("x", (1, 256), kind, data), Path("m.gguf"))
