"""The LLM's tokenizer: text to token ids and back, without special tokens unless the text spells them.

Knows nothing about chat templates (`memory_model.chat`) or references.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

from tokenizers import Tokenizer as Backend

from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile, InvalidInput, MissingFile


class Tokenizer:
    """A `tokenizers` file with the ids of its special tokens. Thread-safe: encoding does not change it."""

    def __init__(self, backend: Backend, bos_id: int, eos_id: int, end_of_turn_id: int) -> None:
        self.backend = backend
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.end_of_turn_id = end_of_turn_id

    @classmethod
    def from_file(cls, path: str | Path) -> Tokenizer:
        """Read `tokenizer.json`; one that is open already is shared. Raises MissingFile or CorruptFile."""
        path = Path(path)
        if not path.is_file():
            raise MissingFile(f"no tokenizer at {path}: make the bundle with `memory-model export`")
        digest = file_sha256(path)
        with _opening:
            tokenizer = _open.get(digest)
            if tokenizer is None:
                try:
                    backend = Backend.from_file(str(path))
                except Exception as error:  # the library raises a bare Exception for every kind of bad file
                    raise CorruptFile(f"{path} is not a tokenizer file: {error}") from error
                tokenizer = _open[digest] = cls.from_backend(without_word_cache(backend))
        return tokenizer

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The same from the file's text, for long texts: words that were met are remembered, as the library does."""
        return cls.from_backend(Backend.from_str(text))

    @classmethod
    def from_backend(cls, backend: Backend) -> Tokenizer:
        """Find the special tokens by their usual spellings (ChatML, Llama)."""

        def first(*names: str) -> int:
            for name in names:
                token = backend.token_to_id(name)
                if token is not None:
                    return int(token)
            raise InvalidInput(f"the tokenizer has none of the special tokens {names}")

        return cls(
            backend,
            bos_id=first("<|im_start|>", "<s>", "<|begin_of_text|>"),
            eos_id=first("<|im_end|>", "</s>", "<|end_of_text|>", "<|endoftext|>"),
            end_of_turn_id=first("<|im_end|>", "<|eot_id|>", "</s>", "<|endoftext|>"),
        )

    @cached_property
    def literal(self) -> Backend:
        """The same tokens, but special tokens that a text spells out stay text: "<|im_end|>" ends no turn."""
        literal = without_word_cache(Backend.from_str(self.backend.to_str()))
        literal.encode_special_tokens = True
        return literal

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; adds no BOS."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of several texts, in one call of the library."""
        return [list(e.ids) for e in self.backend.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids; bytes that are not complete UTF-8 become U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""
        return len(self.backend.encode(text, add_special_tokens=False).ids)


_open: WeakValueDictionary[str, Tokenizer] = WeakValueDictionary()
"""By the file's SHA-256, as long as somebody holds them: every one that is made leaves a trace in the library."""
_opening = threading.Lock()


def without_word_cache(backend: Backend) -> Backend:
    """The same tokenizer, which no longer remembers words: what is opened and closed again must leave nothing behind.

    The library keeps the words of a BPE or Unigram model in every thread that encodes, up to 10,000 of them, and
    keeps them after the tokenizer is gone: kilobytes for each that was ever opened. A question costs 4 µs more
    without, a long text nearly twice as much (docs/decisions/0024).
    """
    resize = getattr(backend.model, "_resize_cache", None)
    if resize is not None:  # WordPiece has none
        resize(0)
    return backend
