"""The tokenizer that a GGUF file describes, rebuilt as a `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from memory3.errors import CorruptFile, InvalidInput
from memory3.tokenizer import SpecialTokens

_CONTROL, _USER_DEFINED = 3, 4
"""Kinds of tokens in `tokenizer.ggml.token_type`."""
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>")
"""Control tokens after which nothing more is said, whatever the metadata lists."""
_WORDS = "'s|'t|'re|'ve|'m|'ll|'d"


def _split(pattern: str) -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


def _gpt4(digits: str) -> list[pre_tokenizers.PreTokenizer]:
    """The pattern that Qwen2 and Llama 3 share but for how many digits stay together."""
    return _split(
        rf"(?i:{_WORDS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_PRE_TOKENIZERS: dict[str, Callable[[], list[pre_tokenizers.PreTokenizer]]] = {
    "smollm": lambda: [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ],
    "qwen2": lambda: _gpt4(r"\p{N}"),
}
"""How a text is cut before BPE, by `tokenizer.ggml.pre`. A wrong one would quietly give other tokens."""


def rebuilt_tokenizer(fields: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer; raises InvalidInput where it is not known how a text is cut."""
    model, pre = fields.get("tokenizer.ggml.model", "none"), fields.get("tokenizer.ggml.pre", "none")
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise InvalidInput(
            f"{path}: its tokenizer ({model}, pre-tokenizer {pre}) cannot be rebuilt, only "
            f"{', '.join(_PRE_TOKENIZERS)}: give the model's Hugging Face folder instead"
        )
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ", 1)) for m in fields["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(_PRE_TOKENIZERS[pre]())
    backend.decoder = decoders.ByteLevel()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        found = [t for t, own in zip(tokens, kinds, strict=True) if own == kind]
        backend.add_tokens([AddedToken(t, special=special, normalized=False) for t in found])
    return backend


def special_tokens_of(fields: Mapping[str, Any], backend: Tokenizer, path: Path) -> SpecialTokens:
    """Those that the metadata names, completed by the usual spellings; raises InvalidInput without an end."""
    rows = backend.get_vocab_size()

    def listed(name: str) -> int | None:
        value = fields.get(f"tokenizer.ggml.{name}_token_id")
        if value is not None and value >= rows:
            raise CorruptFile(f"{path}: tokenizer.ggml.{name}_token_id is {value}, of {rows} tokens")
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
    control = {token.content: number for number, token in backend.get_added_tokens_decoder().items() if token.special}
    ends = tuple(control[text] for text in _ENDS if text in control)
    return SpecialTokens(bos, eos, eos if eot is None else eot, ends)
