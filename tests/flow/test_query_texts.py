"""A client without an embedder finds by text what a device finds by vector and words."""

from __future__ import annotations

from pathlib import Path

from memory_model.embedder import Embedder
from memory_model.export.embedder import export_embedder
from memory_model.words import LARGEST_DROP, query_words
from protos.memory.v1 import retrieval_pb2 as pb
from tests.edge_client.tiny_bundle import tiny_bert, tiny_loaded
from tests.flow.tiny_service import TinyEncoder
from tests.memory_service.running import document, running

TOWNS = ("Oslo", "Rome", "Lima", "Bern", "Kyiv")


def test_a_text_finds_what_a_device_finds(tmp_path: Path) -> None:
    export_embedder(tiny_bert(tmp_path / "bert"), tmp_path)
    embedder = Embedder(tmp_path)
    with running(tmp_path, TinyEncoder(tiny_loaded(), embedder), store=f"file://{tmp_path}/store") as (
        client,
        _,
    ):
        documents = [document(town, f"Code of {town}: {number}.", town) for number, town in enumerate(TOWNS)]
        client.ingest("towns", *documents)
        texts = [f"What is the code of {town}?" for town in TOWNS]
        words = [pb.QueryWords(hashes=query_words(text)) for text in texts]
        as_device = client.retrieve(
            "towns", embedder.embed(texts), query_words=words, maximum_drop=LARGEST_DROP, return_text=True
        )
        by_text = client.retrieval.Retrieve(
            pb.RetrieveRequest(
                knowledge_base="towns", query_texts=texts, maximum_drop=LARGEST_DROP, return_text=True,
                embedder_id=embedder.embedder_id,
            ),
            timeout=60,
        )  # fmt: skip
    assert [[hit.document_key for hit in result.hits] for result in by_text.results] == [
        [hit.document_key for hit in result.hits] for result in as_device.results
    ]
    assert [result.hits[0].document_key for result in by_text.results] == list(TOWNS)
