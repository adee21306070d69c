"""The oracle of the whole flow: without a lossy codec nothing on the way may change a memory.

Real gRPC, real store, real exported decoder; only the model is tiny, so that this takes seconds.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_client.decoder.batching import BatchingDecoder
from edge_client.model import EdgeModel
from memory3.codec.codec import ExactCodec
from memory3.files.bundle import Bundle
from memory3.runtime.embedder import Embedder
from memory_model.export.bundle import export_bundle
from memory_model.export.embedder import export_embedder
from memory_model.models.load import LoadedModel
from memory_service.write.model_encoder import ModelEncoder
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from tests.edge_client.tiny_bundle import format_of, tiny_bert, tiny_bundle, tiny_loaded
from tests.memory_service.running import Client, document, refused, running

FACTS = {
    name: f"Code {number * 37}." for number, name in enumerate(["Oslo", "Rome", "Lima", "Cairo", "Quito", "Paris"])
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return tiny_bundle(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_loaded()


@pytest.fixture(scope="module")
def model(tiny: Bundle, loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeModel]:
    encoder = ModelEncoder(loaded, tiny.embedder(), format_of(loaded))
    with running(tmp_path_factory.mktemp("store"), encoder) as (client, server):
        ingest(client)
        with EdgeModel.open(tiny.folder, f"127.0.0.1:{server.port}", deadline_s=60.0) as opened:
            yield opened


def ingest(client: Client) -> None:
    documents = [document(name.lower(), text, title=name) for name, text in FACTS.items()]
    answers = client.ingest("default", *documents)
    assert sum(answer.WhichOneof("message") == "acknowledged" for answer in answers) == len(FACTS)


def test_memories_come_back_from_the_store_as_they_were_written(model: EdgeModel, loaded: LoadedModel) -> None:
    assert model.engine.recaller is not None
    lima, several = model.engine.recaller.recall(["What is the code of Lima?", "..."], deadline_s=60)
    assert [read.title for read in lima.read] == ["Lima"], "a city that is named leaves the others far below"
    assert len(several.read) > 1
    for recall in (lima, several):
        assert recall.error == ""
        texts = [read.text for read in recall.read]
        assert len(recall.memories) == len(texts)
        never_left = loaded.writer.write([text for text in texts if text is not None])
        for arrived, written in zip(recall.memories, never_left, strict=True):
            assert arrived.tokens == written.tokens
            # A reference is padded to its batch; sums over another width may differ in the last bit.
            np.testing.assert_allclose(arrived.keys, written.keys, atol=1e-5)
            np.testing.assert_allclose(arrived.values, written.values, atol=1e-5)


def test_stored_memories_give_the_logits_of_memories_kept(model: EdgeModel, loaded: LoadedModel, tiny: Bundle) -> None:
    assert model.engine.recaller is not None
    recall = model.engine.recaller.recall(["the code of Quito"], deadline_s=60)[0]
    never_left = loaded.writer.write([read.text or "" for read in recall.read])
    tokens = tiny.chat.prompt([{"role": "user", "content": "Quito?"}]).ids[: tiny.config.memory.chunk_tokens]
    logits = []
    for memories in (recall.memories, never_left, ()):
        sequence = BatchingDecoder.open(tiny, parallel=1).sequence()
        sequence.begin(tokens, memory=True)
        sequence.inject(memories)
        logits.append(sequence.read(tokens))
    stored, direct, none = logits
    np.testing.assert_allclose(stored, direct, atol=1e-4)
    assert np.abs(stored - none).max() > 1e-2, "memories must matter here, or equality says nothing"


WIDTHS = "its vectors have 16 numbers, this embedder's 24"


def test_both_ends_name_both_widths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = tiny_loaded()
    ExactCodec(loaded.config.head_dim).save(tmp_path / "codec.npz")
    export_embedder(tiny_bert(tmp_path / "narrow"), tmp_path)
    narrow = ModelEncoder(loaded, Embedder(tmp_path), format_of(loaded))
    bert = tiny_bert(tmp_path / "wide", dim=24)
    wide = export_bundle(
        loaded, tmp_path / "bundle", "float32", codec=tmp_path / "codec.npz", embedder=bert, quiet=True
    )
    with running(tmp_path, narrow) as (client, server):
        client.ingest("default", document("oslo", "Code 1.", title="Oslo"))
        with EdgeModel.open(wide.folder, f"127.0.0.1:{server.port}", deadline_s=60.0) as model:
            assert model.engine.recaller is not None
            (recall,) = model.engine.recaller.recall(["Oslo?"], deadline_s=60)
    assert not recall.memories
    assert recall.reason == "EMBEDDER_MISMATCH"
    assert WIDTHS in recall.error
    assert "edge-client pull" in recall.error
    capsys.readouterr()
    with running(tmp_path, ModelEncoder(loaded, wide.embedder(), format_of(loaded))) as (client, _):
        log = capsys.readouterr()
        (base,) = client.bases.ListKnowledgeBases(kb_pb.ListKnowledgeBasesRequest()).knowledge_bases
        assert WIDTHS in refused(lambda: client.ingest("default", document("rome", "Code 2."))).message
        vectors = wide.embedder().embed(["Oslo?"])
        assert WIDTHS in refused(lambda: client.retrieve("default", vectors)).message
    assert base.state == kb_pb.KNOWLEDGE_BASE_STATE_MISMATCHED
    assert WIDTHS in base.problem
    assert WIDTHS in log.out + log.err
