"""A file of the device as a document: what may be its key, and what is refused before anything is sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_client.wire.documents import LARGEST_BYTES, document_of, text_of
from memory_model.errors import InvalidInput, MissingFile
from protos.memory.v1 import ingestion_pb2


def test_a_file_whose_name_is_no_utf_8_gets_a_key_that_can_be_sent(tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"))
    file.write_text("Open from eight.")
    document = document_of(file)
    assert (document.key, document.title) == ("caf\ufffd.txt", "caf\ufffd")
    assert ingestion_pb2.Document(key=document.key, title=document.title).ByteSize() > 0


def test_what_is_no_document_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="cannot be read"):
        document_of(tmp_path / "none.txt")
    with pytest.raises(MissingFile, match="cannot be read"):
        document_of(tmp_path)
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    with pytest.raises(InvalidInput, match="larger than 4 MB"):
        document_of(tmp_path / "large.txt")
    for content in (b"\xff\xfe", b"a\0b", b"PK\x03\x04"):
        with pytest.raises(InvalidInput):
            text_of(content)
    assert text_of(b"\xef\xbb\xbfmarked") == "marked"
