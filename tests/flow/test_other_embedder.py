"""An embedder of another width than the knowledge base's is refused: when a service starts, and when a device calls."""

from pathlib import Path

import pytest

from edge_client.model import EdgeModel
from memory_model.codec.codec import ExactCodec
from memory_model.embedder import Embedder
from memory_model.export.bundle import export_bundle
from memory_model.export.embedder import export_embedder
from memory_service.write.encoder import ModelEncoder
from protos.memory.v1 import knowledge_bases_pb2 as kb_pb
from tests.edge_client.tiny_bundle import format_of, tiny_bert, tiny_loaded
from tests.memory_service.running import document, refused, running

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
            assert model.recaller is not None
            (recall,) = model.recaller.recall(["Oslo?"], deadline_s=60)
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
