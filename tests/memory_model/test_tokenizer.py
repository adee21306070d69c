"""A tokenizer that is open is shared, and nothing of it is left behind."""

from __future__ import annotations

import weakref
from pathlib import Path

from memory_model.tokenizer import Tokenizer
from tests.edge_client.tiny_bundle import byte_tokenizer


def test_a_file_that_is_open_is_shared_and_one_that_is_not_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(byte_tokenizer() + "\n\n")  # a file that no bundle of another test has open
    (other := tmp_path / "other.json").write_text(byte_tokenizer() + "\n")
    tokenizer = Tokenizer.from_file(file)
    assert Tokenizer.from_file(file) is tokenizer
    assert Tokenizer.from_file(other) is not tokenizer
    gone = weakref.ref(tokenizer)
    del tokenizer
    assert gone() is None
