"""An embedder of another width than the knowledge base's is refused: when a service starts, and when a device calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client.model import EdgeModel
from memory_model.bundle import Bundle
from memory_model.codec.codec import ExactCodec
from memory_model.embedder import Embedder
from memory_model.export.bundle import export_bundle
from memory_model.export.embedder import export_embedder
from protos.memory.v1 import knowledge_bases_pb2
from tests.edge_client.tiny_bundle import tiny_bert, tiny_loaded
from tests.flow.tiny_service import TinyEncoder
from tests.memory_service.running import document, running

WIDTHS = "its vectors have 16 numbers, this embedder's 24"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose embedder makes vectors of 24 numbers."""
    folder, loaded = tmp_path_factory.mktemp("wide"), tiny_loaded()
    ExactCodec(loaded.config.head_dim).save(folder / "codec.npz")
    bert = tiny_bert(folder / "bert", dim=24)
    return export_bundle(
        loaded, folder / "bundle", "float32", codec=folder / "codec.npz", embedder=bert, quiet=True
    )


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> TinyEncoder:
    """An encoder whose embedder makes vectors of 16 numbers."""
    folder = tmp_path_factory.mktemp("narrow")
    export_embedder(tiny_bert(folder / "bert"), folder)
    return TinyEncoder(tiny_loaded(), Embedder(folder))


def test_the_error_of_a_device_names_both_widths(wide: Bundle, narrow: TinyEncoder, tmp_path: Path) -> None:
    with running(tmp_path, narrow) as (client, server):
        client.ingest("default", document("oslo", "Code 1.", title="Oslo"))
        with EdgeModel.open(wide.folder, f"127.0.0.1:{server.port}", deadline_s=60.0) as model:
            assert model.recaller is not None
            (recall,) = model.recaller.recall(["Oslo?"], deadline_s=60)
    assert not recall.memories
    assert recall.reason == "EMBEDDER_MISMATCH"
    assert WIDTHS in recall.error
    assert "edge-client pull" in recall.error


def test_a_service_reports_the_knowledge_base_when_it_starts_and_refuses_to_read_or_write_it(
    wide: Bundle, narrow: TinyEncoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path, narrow) as (client, _):
        client.ingest("default", document("oslo", "Code 1.", title="Oslo"))
    capsys.readouterr()
    with running(tmp_path, TinyEncoder(tiny_loaded(), wide.embedder())) as (client, _):
        log = capsys.readouterr()
        (base,) = client.bases.ListKnowledgeBases(
            knowledge_bases_pb2.ListKnowledgeBasesRequest()
        ).knowledge_bases
        with pytest.raises(Exception, match=WIDTHS):
            client.ingest("default", document("rome", "Code 2.", title="Rome"))
        with pytest.raises(Exception, match=WIDTHS):
            client.retrieve("default", wide.embedder().embed(["Oslo?"]))
    assert base.state == knowledge_bases_pb2.KNOWLEDGE_BASE_STATE_MISMATCHED
    assert WIDTHS in base.problem
    assert WIDTHS in log.out + log.err
