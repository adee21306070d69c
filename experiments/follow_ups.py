"""Recall of follow-up questions, searched as a device searches them, beside the same questions asked in full."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from edge_client.recall.embedding import QueryEmbedder
from edge_client.retrieval import Query, words_of
from experiments.questions.paragraphs import RowData, write_sets
from memory3.text.references import split
from memory3.text.tokenizer import Tokenizer
from memory_model.eval.retrieval import ReferenceIndex
from memory_model.export.embedder_cache import open_embedder
from memory_model.models.folder import ModelFolder

NAMES = [
    f"{name} {kind}"
    for name in ("Volta", "Renko", "Opal", "Mira", "Cirro", "Delta")
    for kind in ("3", "Van", "Pro", "SE")
]
ITEMS = ("Oil change", "Tyre change", "Windscreen replacement", "Service", "Battery", "Cleaning", "Inspection")
ITEMS_OF_A_LIST = 5


@dataclass(frozen=True)
class FollowUp:
    """A question, the turns before it that it needs, the same in full, and the keys of the right documents."""

    question: str
    before: tuple[str, ...]
    full: str
    right: frozenset[str]


@dataclass(frozen=True)
class Found:
    """recall: of the right documents (up to five) that are among five references. share: of these that are right."""

    recall: float
    share: float


def follow_ups(
    conversations: Annotated[Path | None, typer.Option(help="MTRAG-UN's JSON (docs/data.md).")] = None,
    in_full: Annotated[
        Path | None, typer.Option(help="Tab-separated: index of a conversation, its last question in full.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the price lists.")] = 0,
    write: Annotated[
        Path | None,
        typer.Option(help="Only write the price lists' conversations to this JSON file, for `conversations`."),
    ] = None,
) -> None:
    """Recall@5 of follow-ups about 24 price lists, and of conversations with their passages as knowledge base."""
    documents, asked = price_lists(random.Random(seed))
    if write is not None:
        write_sets(write.parent, {write.stem: conversation_rows(documents, asked)})
        return
    folder = ModelFolder.open()
    tokenizer = folder.tokenizer
    embedder = QueryEmbedder(open_embedder(None, folder.embedder))
    sets = {"price lists": (documents, asked)}
    if conversations is not None and in_full is not None:
        sets["conversations"] = mtrag(json.loads(conversations.read_text("utf-8")), in_full.read_text("utf-8"))
    table = Table("set", "questions", "asked", "recall@5", "share of the right documents")
    for name, (documents, asked) in sets.items():
        base = _Base.of(documents, embedder, tokenizer, folder.memory.reference_tokens)
        ways = {
            "in full": [Query(one.full) for one in asked],
            "as a follow-up": [Query(one.question, one.before[:-4:-1]) for one in asked],
            "alone": [Query(one.question) for one in asked],
        }
        for way, queries in ways.items():
            found = base.found(queries, asked)
            table.add_row(name, str(len(asked)), way, f"{found.recall:.3f}", f"{found.share:.3f}")
    Console().print(table)


def price_lists(rng: random.Random) -> tuple[dict[str, str], list[FollowUp]]:
    """Documents by title, and follow-ups with the subject one or two turns back, or after another subject."""
    documents, asked = {}, []
    for name in NAMES:
        items = rng.sample(ITEMS, ITEMS_OF_A_LIST)
        documents[name] = "\n".join(f"{item}: {rng.randint(20, 600)} euros" for item in items)
        first, second, third = (item.lower() for item in items[:3])
        other = rng.choice([one for one in NAMES if one != name])
        full, follow = f"How much is the {third} for the {name}?", f"What about the {third}?"
        named, elsewhere = f"How much is the {first} for the {name}?", f"What does the {second} cost for the {other}?"
        for before in ((named,), (named, f"And the {second}?"), (elsewhere, named)):
            asked.append(FollowUp(follow, before, full, frozenset([name])))
    return documents, asked


def conversation_rows(documents: Mapping[str, str], asked: Sequence[FollowUp]) -> list[RowData]:
    """Rows of `conversations`: the right answer is the price that the right list has for the item."""
    rows = []
    for one in asked:
        (name,) = one.right
        item = one.question.removeprefix("What about the ").removesuffix("?")
        price = next(line.split(": ")[1] for line in documents[name].splitlines() if line.lower().startswith(item))
        rows.append(
            {
                "before": one.before,
                "question": one.question,
                "in_full": one.full,
                "knowledge": f"{name}\n{documents[name]}",
                "right_answer": price,
                "answers": [price.removesuffix(" euros")],
            }
        )
    return rows


def mtrag(conversations: Sequence[Mapping[str, Any]], in_full: str) -> tuple[dict[str, str], list[FollowUp]]:
    """The passages of all conversations by key, and the last questions that have a right passage."""
    documents = {c["document_id"]: c["text"] for one in conversations for c in one["contexts"]}
    asked = []
    for line in in_full.splitlines():
        index, _, full = line.partition("\t")
        one = conversations[int(index)]
        *before, question = (turn["text"] for turn in one["input"] if turn["speaker"] == "user")
        asked.append(FollowUp(question, tuple(before), full, frozenset(c["document_id"] for c in one["contexts"])))
    return documents, asked


class _Base:
    def __init__(self, index: ReferenceIndex, owners: Sequence[str], embedder: QueryEmbedder) -> None:
        self._index, self._owners, self._embedder = index, owners, embedder

    @classmethod
    def of(cls, documents: Mapping[str, str], embedder: QueryEmbedder, tokenizer: Tokenizer, limit: int) -> _Base:
        """Titles are keys of price lists; a passage has none."""
        split_up = {
            key: split(text, key if key in NAMES else "", tokenizer.count, limit) for key, text in documents.items()
        }
        owners = [key for key, references in split_up.items() for _ in references]
        references = [reference for references in split_up.values() for reference in references]
        return cls(ReferenceIndex.of(references, embedder.embedder), owners, embedder)

    def found(self, queries: Sequence[Query], asked: Sequence[FollowUp]) -> Found:
        vectors, words, recall, share = self._embedder.vectors(queries), list(map(words_of, queries)), 0.0, 0.0
        nearest = self._index.nearest(queries, vectors=vectors, words=words)
        for one, numbers in zip(asked, nearest, strict=True):
            owners = [self._owners[number] for number in numbers]
            recall += len(one.right.intersection(owners)) / min(len(one.right), 5)
            share += sum(owner in one.right for owner in owners) / len(owners)
        return Found(recall / len(asked), share / len(asked))
