"""Stores that earlier versions wrote are opened, read and written by this one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from memory_service.stores import Query, open_store
from tests.memory_service.encoders import vector_of
from tests.memory_service.stored import IDENTITY, document, keys_near

ARCHIVES = sorted(Path(__file__).with_name("data_formats").glob("*.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=[archive.name for archive in ARCHIVES])
def test_a_store_of_an_earlier_version_is_read_and_written(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "store", filter="data")
    url = f"{archive.name.split('-')[0]}://{tmp_path}/store"
    store = open_store(url)
    try:
        empty, words = store.knowledge_bases()
        assert (empty.name, empty.problem, words.name, words.problem) == ("empty", "", "words", "")
        assert (words.description, words.identity) == ("kept from the first release", IDENTITY)
        assert store.check(words, deep=True) == []
        assert keys_near(store, words, "four") == ["a", "b"]
        stored = store.document(words, "a")
        assert (stored.title, stored.metadata) == ("A title", {"language": "en"})
        reference = document("b", "three").references[0]
        retrieved = store.retrieve(words, Query(vector_of("three")[None], 1, return_text=True))
        assert retrieved.hits[0][0].text == "three"
        assert bytes(retrieved.payloads[reference.memory_id]) == reference.payload
        store.write(words, [document("b", "six"), document("d", "seven")])
    finally:
        store.close()
    again = open_store(url)
    try:
        words = again.knowledge_base("words")
        assert again.check(words, deep=True) == []
        assert sorted(keys_near(again, words, "six")) == ["a", "b", "d"]
        assert keys_near(again, words, "six", k=1) == ["b"]
    finally:
        again.close()
