"""What commands that train or measure read: a memory budget, conversations, the corpus, retrieved references."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from memory_model.cli.options import EMBEDDER, console, progress_bars

CACHE = Path("build/continual")
TASKS = "facts, prose, asked, continual, warmup, keeping"


def base_to_tune(heads: str, start: Any, folder: Any) -> Any:
    """The plain model with the budget that `--heads` says, else that of the adapter `start`, else its folder's."""
    from memory_model.config import parse_budget
    from memory_model.models.load import load_base

    budget = parse_budget(heads, folder.config()) if heads else start.memory if start else folder.memory
    return load_base(folder, memory=budget)


def chat_pieces(loaded: Any) -> Any:
    """The model's chat template, taken apart for batches."""
    from memory_model.chat import ChatTemplate
    from memory_model.data.batches import ChatPieces

    template = ChatTemplate(loaded.chat_template, loaded.tokenizer)
    return ChatPieces(loaded.tokenizer, lambda messages, prompt: template.text(messages, prompt))


def fact_batches(loaded: Any, data: Path, seed: int, sizes: Any = None, *, distil: bool = True) -> Any:
    """Conversations about a knowledge base of facts, the held-out documents left out."""
    from memory_model.data import factbook
    from memory_model.data.conversations import FactConversations, references_of

    documents = [d for d in factbook.read_jsonl(data) if not factbook.held_out(d["key"])]
    console.print(f"{len(documents)} documents to tune on, the held-out ones left out")
    limit = loaded.config.memory.reference_tokens
    references = references_of(documents, loaded.tokenizer, limit)
    return FactConversations(references, chat_pieces(loaded), seed, sizes, distil=distil, longest=limit)


def mixture_of(
    weights: str, loaded: Any, data: Path, corpus: Path | None, seed: int, *, distil: bool, sizes: Any = None,
    prose_sizes: Any = None, sequence: int = 512, rows: int = 2, cache: Path = CACHE, embedder: Path = EMBEDDER,
) -> Any:  # fmt: skip
    """The mixture that `--mixture facts:4,prose:3,…` says; raises InvalidInput for a task that is none.

    sizes: of the batches of conversations (`memory_model.data.conversations.Sizes`); prose_sizes: of those
    about prose, where they differ. sequence, rows, cache, embedder: of the tasks continual and warmup.
    """
    from memory_model.data.continual import ContinualBatches
    from memory_model.data.conversations import AskedConversations, ProseConversations
    from memory_model.data.corpus import asked
    from memory_model.data.keeping import KeepingBatches
    from memory_model.data.mixture import Mixture, parse_weights
    from memory_model.errors import InvalidInput

    shares = parse_weights(weights, TASKS.split(", "))
    passages: Any = ()
    if set(shares) - {"facts"}:
        if corpus is None:
            task = next(task for task in shares if task != "facts")
            raise InvalidInput(f"task {task} needs --corpus: docs/data.md says what it is")
        passages = training_passages(corpus, without=held_out_titles(data))
    sequences: Any = None
    if {"continual", "warmup"} & set(shares):
        assert corpus is not None
        sequences = prepared_sequences(
            loaded, corpus, sequence=sequence, cache=cache, embedder=embedder, without=held_out_titles(data)
        )
    prose_sizes = prose_sizes or sizes
    sources: dict[str, tuple[float, Any]] = {}
    for task, share in shares.items():
        made: Any
        if task == "facts":
            made = fact_batches(loaded, data, seed, sizes, distil=distil)
        elif task == "prose":
            made = ProseConversations(
                passages, chat_pieces(loaded), seed + 1, prose_sizes, distil=distil,
                longest=loaded.config.memory.reference_tokens,
            )  # fmt: skip
        elif task == "keeping":
            made = KeepingBatches(passages, loaded.tokenizer, seed + 2)
        elif task == "asked":
            assert corpus is not None
            known = {(p.source, p.key) for p in passages}
            questions = [q for q in asked.read_asked(corpus / asked.FILE) if (q.source, q.key) in known]
            console.print(f"{len(questions):,} questions that people asked about these passages")
            pieces = chat_pieces(loaded)
            made = AskedConversations(
                questions, passages, pieces, seed + 4, prose_sizes, distil=distil,
                longest=loaded.config.memory.reference_tokens,
            )  # fmt: skip
        else:
            made = ContinualBatches(sequences, seed + 3, rows=rows, warmup=task == "warmup")
        sources[task] = share, made
    return Mixture(sources, seed)


def held_out_titles(data: Path) -> Collection[str]:
    """The titles of other texts about a knowledge base's held-out documents, which stay out of training too."""
    from memory_model.data import factbook

    return factbook.HeldOutTitles(factbook.read_jsonl(data))


def training_passages(corpus: Path, without: Collection[str] = ()) -> Any:
    """The passages of a prepared corpus that are not held out, source by source in their order, read as needed.

    without: titles whose passages are left out too.
    """
    from memory_model.data.passage_files import PassageFiles
    from memory_model.data.retrieved import corpus_files

    found = PassageFiles(corpus_files(corpus), without)
    console.print(f"{len(found):,} passages to tune on, the held-out ones left out")
    return found


def prepared_sequences(
    loaded: Any, corpus: Path, *, sequence: int = 512, cache: Path = CACHE, embedder: Path = EMBEDDER,
    without: Collection[str] = (),
) -> Any:  # fmt: skip
    """The corpus as sequences with retrieved references, from the cache as far as they are there.

    without: titles of documents that stay out, beside those that the corpus holds out.
    """
    from memory_model.data.retrieved import RetrievalPlan, corpus_files, prepare
    from memory_model.embedder import Embedder
    from memory_model.export.embedder import MINILM, export_embedder

    memory = loaded.config.memory
    plan = RetrievalPlan(
        tokens=sequence, chunk_tokens=memory.chunk_tokens, reference_tokens=memory.reference_tokens,
        shared=memory.memories_per_chunk,
    )  # fmt: skip
    if not (embedder / "embedder.onnx").is_file():
        export_embedder(MINILM, embedder)
    with progress_bars() as progress:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        embed = Embedder(embedder, threads=os.cpu_count() or 1)
        return prepare(corpus_files(corpus), loaded.tokenizer, embed, cache, plan, report, without)
