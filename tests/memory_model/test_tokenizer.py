"""A tokenizer that is open is shared, and forgetting words changes no token."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from memory_model.tokenizer import Tokenizer, without_word_cache
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


@pytest.mark.parametrize(
    "model",
    [
        models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]),
        models.Unigram([("a", -1.0), ("b", -2.0), ("ab", -0.5)], 0, False),
        models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_forgetting_words_changes_no_token(model: models.Model) -> None:
    text = Backend(model).to_str()
    plain, forgetful = Backend.from_str(text), without_word_cache(Backend.from_str(text))
    for said in ("ab", "ab", "abab", "ba", ""):
        assert forgetful.encode(said).ids == plain.encode(said).ids
