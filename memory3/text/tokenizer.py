"""The LLM's tokenizer: text to token ids and back, without special tokens unless the text contains them.

Independent of chat templates (`memory3.text.chat`) and references.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

from tokenizers import Tokenizer as Backend

from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput, MissingFile

_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>")
"""Special tokens that end the output, whatever a model's files list."""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the tokens that mean something to the model.

    bos opens a text, eos ends one, end_of_turn ends an answer; stop: every id that ends the output.
    """

    bos: int
    eos: int
    end_of_turn: int
    stop: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """The ends of a text and of a turn always stop an answer."""
        object.__setattr__(self, "stop", tuple(sorted({*self.stop, self.eos, self.end_of_turn})))

    @classmethod
    def usual(cls, backend: Backend) -> SpecialTokens:
        """Those of the usual names (ChatML, Llama); raises InvalidInput where there are none."""

        def first(*names: str) -> int:
            found = [token for name in names if (token := backend.token_to_id(name)) is not None]
            if not found:
                raise InvalidInput(f"the tokenizer has none of the special tokens {names}")
            return int(found[0])

        return cls(
            bos=first("<|im_start|>", "<s>", "<|begin_of_text|>"),
            eos=first("<|im_end|>", "</s>", "<|end_of_text|>", "<|endoftext|>"),
            end_of_turn=first("<|im_end|>", "<|eot_id|>", "</s>", "<|endoftext|>"),
        )


def special_ids(backend: Backend) -> dict[str, int]:
    """The ids of the tokens that a tokenizer file marks as special, by their text."""
    return {token.content: number for number, token in backend.get_added_tokens_decoder().items() if token.special}


def ends_of(backend: Backend) -> tuple[int, ...]:
    """The ids of a tokenizer's special tokens that end the output."""
    special = special_ids(backend)
    return tuple(special[text] for text in _ENDS if text in special)


class Tokenizer:
    """A `tokenizers` file with the ids of its special tokens. Thread-safe: encoding does not change it."""

    def __init__(self, backend: Backend, special: SpecialTokens | None = None) -> None:
        """special: by default the usual ones. Raises InvalidInput where the tokenizer has none of them."""
        # A file may hold how texts were cut and padded for a training run; transformers does so only if it is asked to.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special = special or SpecialTokens.usual(backend)
        self.bos_id, self.eos_id = self.special.bos, self.special.eos
        self.end_of_turn_id, self.stop_ids = self.special.end_of_turn, self.special.stop

    @classmethod
    def from_file(cls, path: str | Path, special: SpecialTokens | None = None) -> Tokenizer:
        """Read `tokenizer.json`; one that is open already is shared. Raises MissingFile or CorruptFile."""
        path = Path(path)
        if not path.is_file():
            raise MissingFile(f"no tokenizer at {path}: make the bundle with `memory-model export`")
        key = file_sha256(path), special
        with _opening:
            tokenizer = _open.get(key)
            if tokenizer is None:
                tokenizer = _open[key] = cls(without_word_cache(read_backend(path)), special)
        return tokenizer

    @classmethod
    def from_json(cls, text: str, special: SpecialTokens | None = None) -> Tokenizer:
        """The same from the file's text, for long texts: words that were met are remembered, as the library does."""
        return cls(Backend.from_str(text), special)

    @cached_property
    def literal(self) -> Backend:
        """The same tokens, but special tokens written in a text stay text: "<|im_end|>" ends no turn."""
        literal = without_word_cache(Backend.from_str(self.backend.to_str()))
        literal.encode_special_tokens = True
        return literal

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; adds no BOS."""
        return list(self.backend.encode(well_formed(text), add_special_tokens=False).ids)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Characters [start, end) of each token of `text`; a space before a word may be of its token or of none."""
        return list(self.backend.encode(well_formed(text), add_special_tokens=False).offsets)

    def encode_next(self, text: str, *, literal: bool = False) -> list[int]:
        """Token ids of a text that follows another one; `literal`: special tokens written in it stay text.

        A tokenizer of the SentencePiece kind puts a space before every text it is given, which only the first
        piece of a text must get: here the piece is encoded behind a line break that is then taken away.
        """
        backend = self.literal if literal else self.backend
        if not self.opens_with_space:
            return list(backend.encode(text, add_special_tokens=False).ids)
        ids = backend.encode(f"\n{text}", add_special_tokens=False).ids
        opening = backend.encode("\n", add_special_tokens=False).ids
        return list(ids[len(opening) :]) if ids[: len(opening)] == opening else self.encode(text)

    @cached_property
    def opens_with_space(self) -> bool:
        """Whether encoding puts a space before a text and decoding takes it away (SentencePiece)."""
        once, twice = (self.backend.encode(text, add_special_tokens=False).ids for text in ("a", "a a"))
        return bool(twice == once + once)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of several texts, in one call of the library."""
        return [list(e.ids) for e in self.backend.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids; bytes that are not complete UTF-8 become U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))

    def piece(self, token: int) -> str:
        """Text of one token in the midst of a text, special ones included: SentencePiece keeps its space there."""
        if not self.opens_with_space:
            return self.decode([token], skip_special=False)
        before = self.encode("a")
        return self.decode([*before, token], skip_special=False)[len(self.decode(before)) :]

    def piece_bytes(self, token: int) -> bytes:
        """Bytes of one token, as `piece`; a token may hold a part of a character."""
        text = self.piece(token)
        if "\ufffd" not in text:
            return text.encode()
        name = self.backend.id_to_token(token) or ""
        if _BYTE_FALLBACK.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        return bytes(_BYTES[c] for c in name) if _BYTES.keys() >= set(name) else text.encode()

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""
        return len(self.encode(text))


_BYTE_FALLBACK = re.compile("<0x[0-9A-Fa-f]{2}>")
"""A byte in SentencePiece's notation."""


def _byte_level() -> dict[str, int]:
    """Byte by character, of byte-level BPE: printable ones as themselves, the others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [n for n in range(256) if n not in printable]
    return {chr(n): n for n in printable} | {chr(256 + index): n for index, n in enumerate(others)}


_BYTES = _byte_level()

_open: WeakValueDictionary[tuple[str, SpecialTokens | None], Tokenizer] = WeakValueDictionary()
"""By SHA-256 of the file and special tokens, while in use: every one that is made leaves a trace in the library."""
_opening = threading.Lock()


def well_formed(text: str) -> str:
    """The text with "?" for lone surrogates, which are legal in a str and which the library does not take."""
    return text.encode("utf-8", "replace").decode("utf-8")


def read_backend(path: Path) -> Backend:
    """The library's tokenizer of a `tokenizer.json`; raises CorruptFile, and OSError where it cannot be read now."""
    raw = path.read_bytes()
    try:
        return Backend.from_buffer(raw)
    except Exception as error:  # the library raises a bare Exception for every kind of bad file
        raise CorruptFile(f"{path} is not a tokenizer file ({error}): fetch or export it again") from error


def without_word_cache(backend: Backend) -> Backend:
    """The same tokenizer, which no longer remembers words: what is opened and closed again must leave nothing behind.

    The library keeps up to 10,000 words in every thread that encodes, after the tokenizer is gone too. A question costs
    4 µs more without, a long text nearly twice as much.
    """
    resize = getattr(backend.model, "_resize_cache", None)
    if resize is not None:  # WordPiece has none
        resize(0)
    return backend
