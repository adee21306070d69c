"""A tokenizer that is gone leaves nothing behind, whatever it read: an app may open and close models for weeks."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from memory_model.chat import ChatTemplate
from memory_model.tokenizer import Tokenizer, without_word_cache
from tests.edge_client.tiny_bundle import TEMPLATE, byte_tokenizer

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 150
LEFT_BYTES = 512
"""Of each tokenizer; the library's own cache leaves about 4,000."""


class _Allocated(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                     "keepcost")
    ]  # fmt: skip


def allocated_bytes() -> int:
    """Bytes of the C library's heaps that are in use; Python's own small objects lie elsewhere."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Allocated
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def left_by(one: Callable[[str], None]) -> float:
    """Bytes that stay allocated after each call with a text that was not seen before."""
    texts = (f"Who found the {number}th comet, and which comets had been found before?" for number in count())
    for _ in range(30):
        one(next(texts))
    before = allocated_bytes()
    for _ in range(ROUNDS):
        one(next(texts))
    return (allocated_bytes() - before) / ROUNDS


def left_by_tokenizers(file: Path) -> float:
    """Bytes that each tokenizer of `file` leaves that was opened, used and dropped."""

    def read(text: str) -> None:
        tokenizer = Tokenizer.from_file(file)
        tokenizer.encode(text)
        ChatTemplate(TEMPLATE, tokenizer).encode_content(text)

    return left_by(read)


def test_a_tokenizer_leaves_no_words_behind(tmp_path: Path) -> None:
    """In a process of its own: the heaps of this one are also those of other tests' threads."""
    file = tmp_path / "tokenizer.json"
    file.write_text(byte_tokenizer())
    program = [sys.executable, "-m", "tests.memory_model.test_tokenizer", str(file)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < LEFT_BYTES


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


if __name__ == "__main__":
    print(left_by_tokenizers(Path(sys.argv[1])))
