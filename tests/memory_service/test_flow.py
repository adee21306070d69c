"""flow.py, the service in two functions, does what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_service.errors import DocumentEmpty
from memory_service.stores import open_store
from memory_service.write.flow import read_memories, write_document
from tests.memory_service.encoders import HashEncoder, payload_of, vector_of


def test_a_document_comes_back_as_the_memories_nearest_to_a_question(tmp_path: Path) -> None:
    encoder = HashEncoder()
    store = open_store(f"chdb://{tmp_path}")
    try:
        base = store.create("kb", "", encoder.description.identity)
        written = write_document(store, base, encoder, "a", "Title", "One fact.", {"from": "here"})
        assert (written.reference_count, written.replaced) == (1, False)
        assert write_document(store, base, encoder, "a", "Title", "One fact.", {"from": "here"}).unchanged
        with pytest.raises(DocumentEmpty):
            write_document(store, base, encoder, "b", "Title", " ", {})
        retrieved = read_memories(store, base, vector_of("Title\nOne fact.").tobytes(), k=5)
        ((hit,),) = retrieved.hits
        assert retrieved.payloads[hit.memory_id] == payload_of("Title\nOne fact.", base.identity.model_id)
    finally:
        store.close()
