"""What commands that train or measure read: a memory budget, conversations, the corpus, retrieved references."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from memory3.printable import counted
from memory_model.cli.options import console, open_embedder, progress_bar, progress_bars, write_json
from memory_model.data import factbook

CACHE = Path("build/continual")
TASKS = "facts, hard, articles, dialogue, asked, continual, warmup, keeping, preferences"
_WITHOUT_CORPUS = {"facts", "hard", "articles", "dialogue", "preferences"}
QUESTIONS = Path("build/questions/squad_training.json")
REQUESTS = Path("data/requests.jsonl")
INTRODUCTIONS = Path("data/introductions.jsonl")
_UNREAD = 600  # questions that the model answers without memory, for preferences: two minutes of one core


@cache
def training_documents(data: Path) -> list[dict[str, Any]]:
    """The documents of a knowledge base, the held-out ones left out."""
    documents = [d for d in factbook.read_jsonl(data) if not factbook.held_out(d["key"])]
    console.print(f"{counted(len(documents), 'document')} to tune on, the held-out ones left out")
    return documents


def facts_of(loaded: Any, data: Path, seed: int, sizes: Any, *, hard: bool = False) -> Any:
    """Conversations about a knowledge base of facts, the held-out documents left out; or the hard ones."""
    from memory_model.data.alike import HardFacts
    from memory_model.data.conversations import FactConversations, references_of

    references = references_of(training_documents(data), loaded.tokenizer, sizes.longest)
    return (HardFacts if hard else FactConversations)(references, loaded.chat, seed, sizes)


def mixture_of(
    weights: str,
    loaded: Any,
    data: Path,
    corpus: Path | None,
    seed: int,
    sizes: Any,
    *,
    sequence: int = 512,
    rows: int = 2,
    embedder: Path | None = None,
    questions: Path = QUESTIONS,
    unread: Callable[[Any], Mapping[str, str]] = lambda _: {},
) -> Any:
    """The mixture that `--mixture facts:4,hard:3,…` says; raises InvalidInput for a task that is none.

    sizes: of the batches of conversations (`memory_model.data.conversations.Sizes`). sequence, rows, embedder: of the
    tasks continual and warmup. questions: of articles. unread: wrong answers without memory (`unread_answers`).
    """
    from memory3.errors import InvalidInput
    from memory_model.data.alike import Articles
    from memory_model.data.batches import Mixture, parse_weights
    from memory_model.data.conversations import AskedConversations
    from memory_model.data.dialogue import Dialogues
    from memory_model.data.passages import ASKED, Asked, read_rows
    from memory_model.data.preferences import Preferences
    from memory_model.data.rows import open_rows
    from memory_model.data.running_text import ContinualBatches, KeepingBatches

    shares = parse_weights(weights, TASKS.split(", "))
    sizes, passages = replace(sizes, longest=loaded.config.memory.reference_tokens), []
    if needing := [task for task in shares if task not in _WITHOUT_CORPUS]:
        if corpus is None:
            raise InvalidInput(f"task {needing[0]} needs --corpus: docs/data.md says what it is")
        passages = training_passages(corpus)
    folder = corpus or Path()
    people = partial(open_rows, questions, advice="`python -m experiments split-questions` makes it")

    def source(task: str) -> Any:
        if task in ("facts", "hard"):
            hard = task == "hard"
            return facts_of(loaded, data, seed + 5 * hard, sizes, hard=hard)
        if task == "articles":
            return Articles(people(), loaded.chat, seed + 6, sizes)
        if task == "preferences":
            facts = facts_of(loaded, data, seed + 8, sizes, hard=True)
            articles = Articles(people(), loaded.chat, seed + 9, sizes)
            return Preferences(facts, articles, unread(people()), seed + 10)
        if task == "dialogue":
            return Dialogues(training_documents(data), loaded.chat, seed + 7, sizes)
        if task == "keeping":
            small_talk = factbook.read_jsonl(REQUESTS, ("request", "answer")) if REQUESTS.is_file() else []
            talk = [(row["request"], row["answer"]) for row in small_talk]
            return KeepingBatches(passages, loaded.chat, seed + 2, requests=talk)
        if task == "asked":
            known = {(p.source, p.key) for p in passages}
            files = [folder / ASKED, *([INTRODUCTIONS] if INTRODUCTIONS.is_file() else [])]
            asked = [q for file in files for q in read_rows(file, Asked) if (q.source, q.key) in known]
            console.print(f"{counted(len(asked), 'question')} that people asked about these passages")
            return AskedConversations(asked, loaded.chat, seed + 4, sizes)
        prepared = prepared_sequences(loaded.config.memory, loaded.tokenizer, folder, sequence, embedder)
        return ContinualBatches(prepared, seed + 3, rows=rows, warmup=task == "warmup")

    return Mixture({task: (share, source(task)) for task, share in shares.items()}, seed)


def unread_answers(folder: Any, start: Path | None, file: Path, rows: Sequence[Any]) -> dict[str, str]:
    """What a model with the adapter `start` answers wrongly without memory, by question; kept in `file`.

    Raises InvalidInput without a start: preferences come after tuning.
    """
    from memory3.errors import InvalidInput
    from memory_model.eval.conditions import Evaluation
    from memory_model.eval.subject import Subject
    from memory_model.models.load import load_model
    from memory_model.models.tensor_files import read_json

    if start is None:
        raise InvalidInput("task preferences needs --start: the adapter that it improves")
    if not file.is_file():
        loaded, rows = load_model(folder, start), [row for row in rows if row.answerable]
        subject = Subject.of(loaded)
        run = Evaluation(subject, random.Random(0).sample(rows, min(_UNREAD, len(rows))), ["none"])
        with subject.computing(), progress_bar("answers without memory", len(run.rows)) as advance:
            found = run.run(advance)["none"]
        said = zip(run.rows, found.answers, found.f1, found.refused, strict=True)
        write_json(file, {row.question: answer for row, answer, f1, no in said if answer and f1 < 0.3 and not no})
    return read_json(file)


def training_passages(corpus: Path) -> Any:
    """The passages of a corpus that training may see, source by source in their order, read as needed."""
    from memory_model.data.passages import PassageFiles, corpus_files

    found = PassageFiles(corpus_files(corpus))
    console.print(f"{counted(len(found), 'passage')} to tune on, the held-out ones left out")
    return found


def prepared_sequences(memory: Any, tokenizer: Any, corpus: Path, sequence: int, embedder: Path | None) -> Any:
    """The corpus as sequences with retrieved references, from the cache as far as they are there."""
    from memory_model.data.passages import corpus_files
    from memory_model.data.retrieved import RetrievalPlan, prepare

    plan = RetrievalPlan(
        tokens=sequence,
        chunk_tokens=memory.chunk_tokens,
        reference_tokens=memory.reference_tokens,
        shared=memory.memories_per_chunk,
    )
    opened = open_embedder(embedder, threads=os.cpu_count() or 1)
    with progress_bars() as progress:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        return prepare(corpus_files(corpus), tokenizer, opened, CACHE, plan, report)


def codec_texts(loaded: Any, data: Path, corpus: Path | None, references: int, seed: int) -> tuple[Any, list[str]]:
    """What the codec is fitted to: batches that read memories, and the texts of as many references."""
    from memory3.references import split
    from memory_model.data.conversations import Sizes
    from memory_model.data.passages import ASKED

    tasks = "facts:1,asked:2" if corpus and (corpus / ASKED).is_file() else "facts"
    mixture = mixture_of(tasks, loaded, data, corpus, seed, Sizes())
    rng, facts = random.Random(seed), [r.text for r in mixture.sources["facts"][1].references]
    # Prose is less alike than facts and loses more.
    chosen = rng.sample(facts, min(references // 3 if corpus else references, len(facts)))
    if corpus is None:
        return mixture, chosen
    passages, limit = training_passages(corpus), loaded.config.memory.reference_tokens
    while len(chosen) < references:
        passage = rng.choice(passages)
        if pieces := split(passage.text, passage.title, loaded.tokenizer.count, limit):
            chosen.append(rng.choice(pieces))
    rng.shuffle(chosen)
    return mixture, chosen
