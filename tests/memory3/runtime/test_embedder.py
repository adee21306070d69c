"""What an embedder does with any text, and which folders it refuses. Parity: export/test_embedder.py."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory3.runtime.embedder import Embedder
from memory_model.export.embedder import export_embedder
from tests.edge_client.tiny_bundle import tiny_bert
from tests.memory_model.encoder_folders import TEXTS


def test_minilm_ranks_the_right_sentence_first(tmp_path: Path) -> None:
    export_embedder("minilm", tmp_path)
    embedder = Embedder(tmp_path)
    asked, *texts = ("Which city is the capital of Norway?", "Oslo is Norway's capital.", "Iron melts at 1538 °C.")
    question, *references = embedder.embed([asked, *texts])
    assert embedder.dim == 384
    assert np.argmax(references @ question) == 0


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    folder = tmp_path_factory.mktemp("tiny")
    export_embedder(tiny_bert(folder / "bert"), folder / "out")
    return Embedder(folder / "out")


def test_a_text_has_the_same_vector_in_any_company(embedder: Embedder) -> None:
    together = embedder.embed(TEXTS)
    alone = np.concatenate([embedder.embed([t]) for t in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert embedder.embed([]).shape == (0, 16)


@given(st.lists(st.text(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_text_has_a_finite_vector_of_unit_length(embedder: Embedder, texts: list[str]) -> None:
    vectors = embedder.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.ones(len(texts)), atol=1e-5)


def test_lone_surrogates_and_huge_texts_are_embedded(embedder: Embedder) -> None:
    assert np.isfinite(embedder.embed(["\ud800 x", "word " * 1_000_000])).all()


@pytest.mark.parametrize("texts", ["a text", [1], [None], [b"bytes"]])
def test_what_is_no_list_of_texts_is_refused(embedder: Embedder, texts: object) -> None:
    with pytest.raises(InvalidInput):
        embedder.embed(texts)  # type: ignore[arg-type]


def test_missing_and_damaged_files_are_named(embedder: Embedder, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="memory-model export"):
        Embedder(tmp_path / "nowhere")
    for name in ("embedder.onnx", "embedder_tokenizer.json", "embedder.json"):
        folder = Path(shutil.copytree(embedder.folder, tmp_path / name))
        (folder / name).write_bytes((folder / name).read_bytes()[:50])
        with pytest.raises(CorruptFile, match=name):
            Embedder(folder)
        (folder / name).unlink()
        with pytest.raises(MissingFile, match=name):
            Embedder(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedder_id": "00" * 32}, "of another embedder"),
        ({"dim": 8}, "vectors of 8 as in embedder.json"),
        ({"pooling": "max"}, "pooling must be"),
        ({"normalize": True}, "export the embedder again"),
    ],
)
def test_another_config_is_refused(embedder: Embedder, tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = Path(shutil.copytree(embedder.folder, tmp_path / "copy"))
    config = json.loads((folder / "embedder.json").read_text())
    (folder / "embedder.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CorruptFile, match=message):
        Embedder(folder)
