"""The device's writer against the torch writer of the same model: the same memories, whatever is batched with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_client.local.writer import MemoryWriter
from memory3.codec.codec import ExactCodec
from memory3.config import MemoryConfig, MemoryHead, ModelConfig
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory_model.export.bundle import export_bundle
from memory_model.nn.writing import MemoryWriter as TorchWriter
from tests.edge_client.tiny_bundle import tiny_bert, tiny_config, tiny_loaded

TEXTS = ["Oslo, Norway.", "Lima.", "A reference of 32 tokens, full.", "x", "The code of Rome is 37."]


def changed(**changes: object) -> ModelConfig:
    return replace(tiny_config(), **changes)  # type: ignore[arg-type]


SHAPES = {
    "unequal heads": tiny_config(),
    "all tokens, no early layers": changed(
        memory=MemoryConfig((MemoryHead(1, 0, 32), MemoryHead(1, 1, 32)), reference_tokens=32, chunk_tokens=16)
    ),
    "every head normed, one layer without positions": changed(
        qk_norm=True,
        attention_bias=True,
        plain_layers=(1,),
        memory=MemoryConfig(
            tuple(MemoryHead(layer, head, 5) for layer in range(3) for head in range(2)),
            reference_tokens=32,
            chunk_tokens=16,
        ),
    ),
}


ROUNDED = "all tokens, no early layers"
"""Where weights are rounded, a token that is just chosen in torch may just not be: only heads of all tokens compare."""


@pytest.mark.parametrize(
    ("shape", "precision", "tolerance"),
    [*((shape, "float32", 2e-5) for shape in SHAPES), (ROUNDED, "int8", 0.05), (ROUNDED, "int4-64-table-int8", 0.05)],
)
def test_memories_equal_those_that_torch_writes(shape: str, precision: str, tolerance: float, tmp_path: Path) -> None:
    loaded = tiny_loaded(config=SHAPES[shape])
    codec = tmp_path / "codec.npz"
    ExactCodec(loaded.config.head_dim).save(codec)
    bundle = export_bundle(
        loaded, tmp_path / "bundle", precision, codec=codec, embedder=tiny_bert(tmp_path / "bert"), quiet=True
    )
    ours = MemoryWriter(bundle).memories(TEXTS)
    for one, other in zip(ours, TorchWriter(loaded.model, loaded.tokenizer).write(TEXTS), strict=True):
        assert one.tokens == other.tokens
        for mine, torchs in ((one.keys, other.keys), (one.values, other.values)):
            assert np.linalg.norm(mine - torchs) <= tolerance * np.linalg.norm(torchs)


def test_a_memory_does_not_depend_on_what_is_written_with_it(tiny: Bundle) -> None:
    writer = MemoryWriter(tiny)
    together = writer.write(TEXTS)
    for number, text in enumerate(TEXTS):
        alone = writer.write([text])
        (one, other) = tiny.memory_format.decode([alone.payloads[0], together.payloads[number]])
        np.testing.assert_allclose(one.keys, other.keys, atol=1e-5)
        np.testing.assert_allclose(alone.vectors[0], together.vectors[number], atol=1e-5)


@pytest.mark.parametrize("text", ["", "a" * 33])
def test_a_text_that_no_memory_holds_is_refused(text: str, tiny: Bundle) -> None:
    with pytest.raises(InvalidInput, match="split it first"):
        MemoryWriter(tiny).write(["fine", text])
