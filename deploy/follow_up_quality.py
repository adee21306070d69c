"""What a second question finds: recall@5 in two-turn conversations over the whole factbook.

    python -m deploy.follow_up_quality

Two kinds of second question: about another country than the first ("change"), and one that needs the first ("follow":
"How many airports does it have?"). Three ways to ask: with the question alone, with all turns as one text, and as the
device asks (`edge_client.generate.prompt`). Embeds the factbook, minutes on two cores.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from edge_client.generate.prompt import Query, query_text, query_vectors
from memory_model.bundle import Bundle
from memory_model.eval.retrieval import CANDIDATES, KnowledgeBase, references_of
from memory_model.eval.rows import Row, open_rows
from memory_model.eval.scores import Mean
from memory_model.words import LARGEST_DROP, order, query_words, text_words

ROOT = Path(__file__).resolve().parents[1]
CHUNK_TOKENS, FOUND = 64, 5


@dataclass(frozen=True)
class Conversation:
    """A question with its answer, then one whose answer is in `right`, a reference."""

    first: str
    answer: str
    second: str
    right: str


def main() -> None:
    """Measure and print."""
    bundle = Bundle.open(ROOT / "build" / "bundle")
    tokenizer = bundle.tokenizer
    limit = bundle.config.memory.reference_tokens
    references = references_of(ROOT / "data" / "factbook.jsonl", tokenizer, limit)
    base = KnowledgeBase.of(references, bundle.embedder())
    rows = open_rows(ROOT / "data" / "heldout_questions.json")

    def as_asked(one: Conversation) -> Query:
        roles = ("user", "assistant", "user")
        turns = zip(roles, (one.first, one.answer, one.second), strict=True)
        prompt = bundle.chat.prompt([{"role": role, "content": said} for role, said in turns])
        query = query_text(prompt, tokenizer, 0, len(prompt.ids), CHUNK_TOKENS)
        assert query is not None
        return query

    ways: dict[str, Callable[[Conversation], str]] = {
        "the question alone": lambda one: one.second,
        "all turns as one text": lambda one: "\n".join((one.first, one.answer, one.second)),
        "as the device asks": as_asked,
    }
    kinds = {"change": changes(rows), "follow": follow_ups(rows)}
    table = Table("asked with", *(f"{kind} ({len(said)})" for kind, said in kinds.items()), title="recall@5")
    for name, way in ways.items():
        found = [
            Mean.of([found_by(base, way(one), one.right) for one in track(said)]) for said in kinds.values()
        ]
        table.add_row(name, *(f"{share.mean:.3f} ± {share.error:.3f}" for share in found))
    Console().print(table)


def changes(rows: Sequence[Row]) -> list[Conversation]:
    """Each question after one about another country."""
    rng = random.Random(0)
    said = []
    for row in rows:
        other = rng.choice([r for r in rows if country(r) != country(row)])
        said.append(Conversation(other.question, other.right_answer, row.question, row.knowledge))
    return said


def follow_ups(rows: Sequence[Row]) -> list[Conversation]:
    """Each question that names its country, said with a pronoun after one about another fact of the same country."""
    rng = random.Random(0)
    said = []
    for row in rows:
        name, second = country(row), row.question
        others = [r for r in rows if country(r) == name and r.knowledge != row.knowledge]
        for spelled, pronoun in (
            (f"{name}'s", "its"),
            (f"{name}'", "its"),
            (f"the {name}", "it"),
            (name, "it"),
        ):
            second = second.replace(spelled, pronoun)
        if others and second != row.question:
            other = rng.choice(others)
            said.append(Conversation(other.question, other.right_answer, second, row.knowledge))
    return said


def country(row: Row) -> str:
    """The title of the document that answers it."""
    return row.knowledge.partition("\n")[0]


def found_by(base: KnowledgeBase, query: str, right: str) -> float:
    """Whether `right` is among the five that the service would return: 1 or 0."""
    cosines = base.vectors @ query_vectors(base.embedder, [query])[0]
    near = np.argsort(-cosines, kind="stable")[:CANDIDATES].tolist()
    texts = [base.references[n] for n in near]
    titles = [query_words(text.partition("\n")[0]) for text in texts]
    best = order(
        query_words(query), cosines[near].tolist(), [text_words(t) for t in texts], titles, LARGEST_DROP
    )
    return float(right in [texts[place] for place in best[:FOUND]])


if __name__ == "__main__":
    main()
