"""The codec's graph decodes what numpy decodes, and is used where the provider is not the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_client.codec_graph import device_format, open_codec_graph, relative_error
from memory_model.bundle import Bundle
from memory_model.codec.codec import ExactCodec, MemoryCodec, ProductCodec
from memory_model.codec.tables import ProductTables
from memory_model.errors import InvalidInput
from memory_model.export.codec import codec_graph, export_codec
from memory_model.models.folder import DEFAULT
from tests.memory_model.paper_codec import paper_codec


def product_codec(bits: int, parts: int, coarse_bits: int = 0, blocks: int = 1) -> ProductCodec:
    rng = np.random.default_rng(bits)
    d = 2 * parts
    coarse = rng.standard_normal((blocks, 2, 1 << coarse_bits, d // 2), np.float32) if coarse_bits else None
    words = rng.standard_normal((blocks, parts, 1 << bits, 2), np.float32)
    basis = rng.standard_normal((blocks, d, d), np.float32)
    return ProductCodec(ProductTables(rng.standard_normal((blocks, d), np.float32), basis, words, coarse))


CODECS = {
    "the paper's": lambda: paper_codec(80),
    "the default model's": lambda: MemoryCodec.load(DEFAULT / "codec.npz"),
    "bits that cross bytes": lambda: product_codec(7, 6),
    "four bits": lambda: product_codec(4, 8),
    "eleven bits and a coarse stage": lambda: product_codec(11, 4, 13),
}


@pytest.mark.parametrize("name", CODECS)
def test_the_graph_decodes_what_numpy_decodes(name: str, tmp_path: Path) -> None:
    codec = CODECS[name]()
    path = export_codec(codec, tmp_path)
    assert path is not None
    assert relative_error(open_codec_graph(path, codec), codec, 1000) < 1e-6


def test_codes_of_another_size_are_refused(tmp_path: Path) -> None:
    codec = product_codec(8, 4)
    path = export_codec(codec, tmp_path)
    assert path is not None
    with pytest.raises(InvalidInput, match="codes have shape"):
        open_codec_graph(path, codec).decode(np.zeros((3, 5), np.uint8), 0)


def test_a_codec_with_tables_for_every_group_has_no_graph(tmp_path: Path) -> None:
    for codec in (ExactCodec(16), product_codec(6, 4, blocks=2)):
        assert export_codec(codec, tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="2 sets"):
        codec_graph(product_codec(6, 4, blocks=2))


@pytest.mark.parametrize("provider", ["cpu", "cuda", "auto"])
def test_numpy_decodes_where_the_cpu_is_what_is_active(bundle: Path, provider: str) -> None:
    opened = Bundle.open(bundle)
    assert (opened.folder / "codec.onnx").is_file()
    assert device_format(opened, provider) is opened.memory_format
