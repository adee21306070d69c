"""The tokenizer that a GGUF file describes: byte-level BPE by the name of its pre-tokenizer, or SentencePiece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from memory3.errors import CorruptFile, InvalidInput
from memory3.text.tokenizer import SpecialTokens, ends_of

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Kinds of tokens in `tokenizer.ggml.token_type`."""
_ADVICE = "give the model's Hugging Face folder instead"
_SPACE = "▁"

Parts = list[pre_tokenizers.PreTokenizer]


def _splits(*patterns: str) -> Parts:
    """Cut by each pattern in turn, what it matches and what is between being words of their own."""
    cuts: Parts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


_ENGLISH = "'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_ENGLISH}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _letters_apart(digits: str) -> Parts:
    """The pattern that Qwen2 and Llama 3 share, but for how many digits stay together."""
    word = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return _splits(rf"(?i:{_ENGLISH})|{word}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}")


def _tekken() -> Parts:
    """Mistral's since Nemo: a word ends before an upper-case letter."""
    before = r"[^\r\n\p{L}\p{N}]?"
    word = rf"{before}[{_UPPER}]*[{_LOWER}]+|{before}[{_UPPER}]+[{_LOWER}]*"
    return _splits(rf"{word}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}")


def _single_digits() -> Parts:
    return [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]


def _unnamed() -> Parts:
    """What llama.cpp does with files that name no pre-tokenizer, or "default"."""
    return _splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


@dataclass(frozen=True)
class _Cutting:
    """What is done with a text before BPE.

    parts: how it is cut. whole_words: a word that is a token needs no merges. composed: letters and their accents
    become single characters first (NFC).
    """

    parts: Callable[[], Parts]
    whole_words: bool = False
    composed: bool = False


_QWEN = _Cutting(lambda: _letters_apart(r"\p{N}"), composed=True)
_LLAMA3 = _Cutting(lambda: _letters_apart(r"\p{N}{1,3}"), whole_words=True)
_SINGLE_DIGITS = _Cutting(_single_digits)
_PRE_TOKENIZERS = {
    "default": _Cutting(_unnamed),
    "gpt-2": _Cutting(lambda: [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "tekken": _Cutting(_tekken, whole_words=True),
}
"""By `tokenizer.ggml.pre`, as the publishers' own tokenizer.json; a GGUF file has no other word of a normalizer.

A wrong one would quietly give other tokens, so others are refused. SmolLM3's is "smaug-bpe".
"""


def rebuilt_tokenizer(fields: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer; raises InvalidInput where it is not known how a text is cut, CorruptFile for a missing list."""
    model = fields.get("tokenizer.ggml.model", "none")
    try:
        if model == "gpt2":
            backend = _byte_level(fields, path)
        elif model == "llama":
            backend = _sentence_piece(fields)
        else:
            raise InvalidInput(f"{path}: a tokenizer of kind {model} cannot be rebuilt, only gpt2 and llama: {_ADVICE}")
        tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
        for wanted, special in (((_CONTROL, _UNKNOWN), True), ((_USER_DEFINED,), False)):
            found = [t for t, kind in zip(tokens, kinds, strict=True) if kind in wanted]
            backend.add_tokens([AddedToken(t, special=special, normalized=False) for t in found])
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise CorruptFile(f"{path} does not describe its tokenizer: {error!r}") from error
    return backend


def _byte_level(fields: Mapping[str, Any], path: Path) -> Tokenizer:
    pre = fields.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        raise InvalidInput(f"{path}: pre-tokenizer {pre} is not known, only {', '.join(_PRE_TOKENIZERS)}: {_ADVICE}")
    cutting = _PRE_TOKENIZERS[pre]
    merges = [tuple(m.split(" ", 1)) for m in fields["tokenizer.ggml.merges"] if m]
    vocabulary = {t: i for i, t in enumerate(fields["tokenizer.ggml.tokens"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=cutting.whole_words))
    if cutting.composed:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(cutting.parts())
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece(fields: Mapping[str, Any]) -> Tokenizer:
    """BPE whose merges follow from the scores: the best-scored piece that two neighbours make is merged first."""
    tokens, scores = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"]
    unknown = fields.get("tokenizer.ggml.unknown_token_id", 0)
    vocabulary = {t: i for i, t in enumerate(tokens)}
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(tokens, scores, vocabulary),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    leading = fields.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if leading else spaces
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if leading else steps)
    return backend


def _merges(tokens: Sequence[str], scores: Sequence[float], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, by the score of that piece, then as transformers orders them."""
    found: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [(vocabulary[a], vocabulary[b], a, b) for a, b in halves if a in vocabulary and b in vocabulary]
        found += [(-score, one, two, a, b) for one, two, a, b in sorted(pairs)]
    found.sort(key=lambda merge: merge[0])
    return [(a, b) for *_, a, b in found]


def special_tokens_of(fields: Mapping[str, Any], backend: Tokenizer, path: Path) -> SpecialTokens:
    """Those that the metadata names, completed by the usual names; raises InvalidInput without an end."""
    rows = backend.get_vocab_size()

    def listed(name: str) -> int | None:
        value = fields.get(f"tokenizer.ggml.{name}_token_id")
        if value is not None and value not in range(rows):
            raise CorruptFile(f"{path}: tokenizer.ggml.{name}_token_id is {value!r}, of {rows} tokens")
        return value

    bos, eos, eot = listed("bos"), listed("eos"), listed("eot")
    try:
        usual = SpecialTokens.usual(backend)
    except InvalidInput:
        if eos is None:
            raise InvalidInput(f"{path} has no tokenizer.ggml.eos_token_id") from None
        usual = SpecialTokens(eos, eos, eos)
    eos = usual.end_of_turn if eos is None else eos
    # Qwen has no bos: documents begin after <|endoftext|>.
    bos = next(t for t in (bos, backend.token_to_id("<|endoftext|>"), usual.bos) if t is not None)
    return SpecialTokens(bos, eos, eos if eot is None else eot, ends_of(backend))
