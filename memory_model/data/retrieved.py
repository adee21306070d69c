"""Sequences with one retrieved reference for each chunk: the data of continual training, made once and kept.

The corpus' documents are put into a fixed random order, joined and cut into sequences; the same documents
split into references are what is retrieved. Each chunk of 64 tokens takes the nearest reference (by the
embedder) that the sequence does not contain to more than 90 % (paper 3.6) and that none of the four chunks
before it has taken, since it reads theirs as well; five different memories, as it will be when decoding. The
title in front of each reference does not count: it is ours, and would let a copy of the text pass as new.

Everything lies in a folder named by what it was made from, written block by block, so that an interrupted
preparation goes on where it stopped:

    sequences.npy   int32 [sequences, tokens]     references.npy  int32 [references, tokens], padded by -1
    vectors.npy     float32 [references, dim]     bodies.npy      int32 [references], tokens of the title in front
    chosen.npy      int32 [sequences, chunks], -1 where none fits
    progress.json   rows of vectors.npy and chosen.npy that are done
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np

from memory_model.data.corpus.passages import Passage, held_out, read_passages
from memory_model.data.overlap import exceeds
from memory_model.digest import file_sha256
from memory_model.errors import InvalidInput, MissingFile
from memory_model.references import split
from memory_model.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]
"""Told (what is being made, done, of how many)."""


class TextEmbedder(Protocol):
    """What is needed of `memory_model.embedder.Embedder`."""

    @property
    def vectors_id(self) -> str:
        """Equal ids give equal vectors."""

    @property
    def dim(self) -> int:
        """Width of a vector."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors float32 [n, dim]."""


@dataclass(frozen=True)
class RetrievalPlan:
    """How sequences are cut and references chosen; the defaults are the paper's but for the length (2048 there).

    `tokens` and `reference_tokens`: of a sequence and, at most, of a reference. `shared`: chunks, the own
    included, whose references a chunk reads. `candidates`: neighbours looked at before a chunk gets none.
    `limit`: documents are taken until there are so many tokens, 0 takes all.
    """

    tokens: int = 512
    chunk_tokens: int = 64
    reference_tokens: int = 128
    shared: int = 5
    candidates: int = 32
    most_overlap: float = 0.9
    limit: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sequences that are no whole number of chunks."""
        if self.tokens < self.chunk_tokens or self.tokens % self.chunk_tokens:
            raise InvalidInput(
                f"a sequence of {self.tokens} tokens is no whole number of chunks of {self.chunk_tokens}: "
                f"give a multiple of {self.chunk_tokens}"
            )


@dataclass(frozen=True)
class RetrievedSequences:
    """Prepared data: `sequences`, `references` and `chosen` as above, read-only, mapped from disk."""

    sequences: np.ndarray
    references: np.ndarray
    chosen: np.ndarray
    chunk_tokens: int
    shared: int


@dataclass(frozen=True)
class Document:
    """A document of the corpus, its passages joined."""

    title: str
    text: str


def corpus_files(corpus: Path, sources: Sequence[str] = ()) -> list[Path]:
    """The corpus' files, those of `sources` only if any are named; raises MissingFile."""
    files = [corpus / f"{name}.jsonl" for name in sources] or sorted(corpus.glob("*.jsonl"))
    missing = [f for f in files if not f.is_file()]
    if missing or not files:
        raise MissingFile(
            f"no corpus at {missing[0] if missing else corpus}: make it with `memory-model prepare-data`"
        )
    return files


def documents(files: Iterable[Path], seed: int = 0, without: Collection[str] = ()) -> list[Document]:
    """The documents that training may see, in an order fixed by the seed; their passages keep theirs.

    without: titles of documents that are left out too.
    """
    found = []
    for path in files:
        kept = (p for p in read_passages(path) if not held_out(p.source, p.key))
        for _, passages in groupby(kept, key=lambda p: p.key.partition("#")[0]):
            document = _document(list(passages))
            if document.title not in without:
                found.append(document)
    random.Random(seed).shuffle(found)
    return found


def _document(passages: Sequence[Passage]) -> Document:
    return Document(passages[0].title, "\n".join(p.text for p in passages))


def prepare(
    files: Sequence[Path], tokenizer: Tokenizer, embedder: TextEmbedder, folder: Path, plan: RetrievalPlan,
    progress: Progress | None = None, without: Collection[str] = (),
) -> RetrievedSequences:  # fmt: skip
    """The prepared data of a corpus, from `folder` as far as it is there already.

    without: titles of documents that are left out beside those that are held out. Raises InvalidInput when the
    corpus is shorter than one sequence.
    """
    sources = [file_sha256(path) for path in files]
    made_from: list[Any] = [sources, asdict(plan), tokenizer.backend.to_str(), embedder.vectors_id]
    if without:
        made_from.append(sorted(without))
    place = folder / sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    report = progress or (lambda what, done, total: None)
    if not (place / "references.npy").is_file():
        _cut(documents(files, plan.seed, without), tokenizer, plan, place, report)
    sequences = np.load(place / "sequences.npy", mmap_mode="r")
    references = np.load(place / "references.npy", mmap_mode="r")
    bodies = np.load(place / "bodies.npy")

    def embed(rows: np.ndarray) -> np.ndarray:
        return embedder.embed([tokenizer.decode(row[row >= 0].tolist()) for row in rows])

    vectors = _blocks(
        place, "vectors", (len(references), embedder.dim), np.float32, 512,
        lambda start, end: embed(references[start:end]), report,
    )  # fmt: skip
    chunks = plan.tokens // plan.chunk_tokens
    index = faiss.IndexFlatIP(embedder.dim)

    def choose(start: int, end: int) -> np.ndarray:
        if index.ntotal == 0:
            index.add(np.ascontiguousarray(vectors))
        block = sequences[start:end]
        queries = embed(block.reshape(-1, plan.chunk_tokens))
        _, near = index.search(queries, min(plan.candidates, len(references)))
        near = near.reshape(len(block), chunks, -1)
        return np.array([_chosen(t, n, references, bodies, plan) for t, n in zip(block, near, strict=True)])

    chosen = _blocks(place, "chosen", (len(sequences), chunks), np.int32, 32, choose, report)
    return RetrievedSequences(sequences, references, chosen, plan.chunk_tokens, plan.shared)


def _cut(
    found: Sequence[Document], tokenizer: Tokenizer, plan: RetrievalPlan, place: Path, report: Progress
) -> None:
    """Write sequences.npy, bodies.npy and references.npy; this one last, because it says that all are whole."""
    stream: list[np.ndarray] = []
    references: list[list[int]] = []
    bodies: list[int] = []
    tokens = number = 0
    for number, document in enumerate(found):
        title = " ".join(document.title.split())
        ids = tokenizer.encode(f"{title}\n{document.text}\n\n")
        stream.append(np.array(ids, np.int32))
        tokens += len(ids)
        head = tokenizer.count(f"{title}\n") if title else 0
        if head > plan.reference_tokens // 2:
            title, head = "", 0
        texts = split(document.text, title, tokenizer.count, plan.reference_tokens)
        encoded = tokenizer.encode_batch(texts)
        references += encoded
        bodies += [min(head, len(reference) - 1) for reference in encoded]
        if number % 256 == 0:
            report("cutting sequences and references", number, len(found))
        if plan.limit and tokens >= plan.limit:
            break
    report("cutting sequences and references", number + 1, number + 1)
    whole = tokens // plan.tokens
    if not whole:
        raise InvalidInput(
            f"the corpus has {tokens} tokens, one sequence {plan.tokens}: give more text or shorter sequences"
        )
    padded = np.full((len(references), plan.reference_tokens), -1, np.int32)
    for row, ids in enumerate(references):
        padded[row, : len(ids)] = ids
    cut = np.concatenate(stream)[: whole * plan.tokens].reshape(whole, plan.tokens)
    _save(place / "sequences.npy", cut)
    _save(place / "bodies.npy", np.array(bodies, np.int32))
    _save(place / "references.npy", padded)


def _chosen(
    sequence: np.ndarray, near: np.ndarray, references: np.ndarray, bodies: np.ndarray, plan: RetrievalPlan
) -> list[int]:  # fmt: skip
    """The reference of each chunk, out of its neighbours `near` [chunks, candidates], nearest first."""
    leaks: dict[int, bool] = {}
    chosen: list[int] = []
    for candidates in near.tolist():
        before = chosen[-(plan.shared - 1) :] if plan.shared > 1 else []
        taken = -1
        for number in candidates:
            if number in before or number < 0:
                continue
            if number not in leaks:
                ids = references[number]
                body = ids[ids >= 0][bodies[number] :]
                leaks[number] = exceeds(sequence, body, plan.most_overlap)
            if not leaks[number]:
                taken = number
                break
        chosen.append(taken)
    return chosen


def _blocks(
    place: Path, name: str, shape: tuple[int, int], kind: type, block: int,
    make: Callable[[int, int], np.ndarray], report: Progress,
) -> np.ndarray:  # fmt: skip
    """The rows of `name`.npy, made `block` by block; what `progress.json` says is done is not made again."""
    record = place / "progress.json"
    done: dict[str, int] = json.loads(record.read_text()) if record.is_file() else {}
    path = place / f"{name}.npy"
    mode = "r+" if path.is_file() and name in done else "w+"
    rows = np.lib.format.open_memmap(path, mode, kind, shape)
    for start in range(done.get(name, 0), shape[0], block):
        end = min(start + block, shape[0])
        rows[start:end] = make(start, end)
        rows.flush()
        _record(record, {**done, name: end})
        report(_DOING[name], end, shape[0])
    return np.load(path, mmap_mode="r")


_DOING = {"vectors": "embedding references", "chosen": "retrieving for each chunk"}


def _record(path: Path, done: Mapping[str, int]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(done))
    partial.replace(path)


def _save(path: Path, array: np.ndarray) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, array)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
