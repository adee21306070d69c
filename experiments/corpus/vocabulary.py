"""Byte-level BPE: trained on a text, and merged with another vocabulary to a given size (paper 4.3)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from memory3.errors import InvalidInput
from memory3.text.tokenizer import read_backend
from memory_model.data.passages import PassageFiles, corpus_files
from memory_model.models.folder import ModelFolder
from memory_model.terminal import console

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def train_bpe(texts: Iterable[str], size: int) -> Tokenizer:
    """A tokenizer of `size` tokens, SPECIAL included; digits stand alone, as in SmolLM2's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(SPECIAL),
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return made


def merged(first: Tokenizer, second: Tokenizer, size: int) -> Tokenizer:
    """The first byte-level BPE with tokens of the second, its most frequent first, up to `size` tokens.

    Each pair of the second is appended behind the first's pairs, so what only the first knows is cut as before.
    Raises InvalidInput where the two together have fewer tokens.
    """
    state, other = json.loads(first.to_str()), json.loads(second.to_str())["model"]
    vocabulary: dict[str, int] = state["model"]["vocab"]
    pairs = [tuple(pair) for pair in state["model"]["merges"]]
    known = set(pairs)
    for left, right in map(tuple, other["merges"]):
        new = left + right not in vocabulary
        if new and len(vocabulary) >= size:
            break
        if {left, right} <= vocabulary.keys() and (left, right) not in known:
            vocabulary.setdefault(left + right, len(vocabulary))
            pairs.append((left, right))
            known.add((left, right))
    if len(vocabulary) != size:
        raise InvalidInput(f"together {len(vocabulary)} tokens, not {size}: train with more, or ask for fewer")
    state["model"]["merges"] = [list(pair) for pair in pairs]
    return Tokenizer.from_str(json.dumps(state))


def vocabulary(
    corpus: Annotated[Path, typer.Option(help="Folder of passages to train on.")],
    out: Annotated[Path, typer.Option(help="tokenizer.json to write.")],
    size: Annotated[int, typer.Option(help="Size of the merged vocabulary; paper: 60,299.")] = 60_299,
    trained: Annotated[int, typer.Option(help="Size of the vocabulary trained on the corpus.")] = 40_000,
    first: Annotated[Path | None, typer.Option(help="tokenizer.json to add to; default: the packaged one.")] = None,
) -> None:
    """Train a byte-level BPE vocabulary on a corpus and merge it into another one, up to a size."""
    texts = [f"{p.title}\n{p.text}" for p in PassageFiles(corpus_files(corpus))]
    old = read_backend(first) if first else Tokenizer.from_str(ModelFolder.open().checkpoint.tokenizer_json)
    made = merged(old, train_bpe(texts, trained), size)
    out.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(out))
    sample = texts[:: max(1, len(texts) // 1000)]
    was, now = (sum(len(e.ids) for e in t.encode_batch(sample)) for t in (old, made))
    console.print(f"{made.get_vocab_size():,} tokens in [bold]{out}[/bold]; a text takes {now / was:.3f} of as many")
