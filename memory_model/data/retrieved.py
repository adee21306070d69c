"""Sequences with one retrieved reference for each chunk: the data of continual training (docs/training.md).

It is stored in a folder named by the hash of its sources, written block by block, so that an interrupted preparation
continues where it stopped:

    sequences.npy   int32 [sequences, tokens]     references.npy  int32 [references, tokens], padded by -1
    vectors.npy     float32 [references, dim]     bodies.npy      int32 [references], tokens of the title in front
    chosen.npy      int32 [sequences, chunks], -1 where none fits
    progress.json   rows of vectors.npy and chosen.npy that are done
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from memory3.digest import file_sha256
from memory3.errors import InvalidInput
from memory3.text.references import split
from memory3.text.tokenizer import Tokenizer
from memory_model.data.passages import Passage, PassageFiles

if TYPE_CHECKING:
    from memory3.runtime.embedder import Embedder

Progress = Callable[[str, int, int], None]
"""Called with (description, done, total)."""
Tokens = Sequence[int] | np.ndarray
_MOST_OVERLAP = 0.9  # share of a reference that its sequence may contain (paper 3.6)
_FORMAT = 2  # of the files; 2 put the context BOS before each sequence


@dataclass(frozen=True)
class RetrievalPlan:
    """How sequences are cut and references chosen; the defaults are the paper's but for the length (2048 there).

    `tokens` and `reference_tokens`: of a sequence and, at most, of a reference. `shared`: chunks, the own
    included, whose references a chunk reads. `candidates`: neighbours looked at before a chunk gets none.
    """

    tokens: int = 512
    chunk_tokens: int = 64
    reference_tokens: int = 128
    shared: int = 5
    candidates: int = 32

    def __post_init__(self) -> None:
        """Refuse sequences that are no whole number of chunks."""
        if self.tokens < self.chunk_tokens or self.tokens % self.chunk_tokens:
            raise InvalidInput(
                f"a sequence of {self.tokens} tokens is no whole number of chunks of {self.chunk_tokens}: "
                f"give a multiple of {self.chunk_tokens}"
            )


@dataclass(frozen=True)
class RetrievedSequences:
    """Prepared data, read-only, mapped from disk."""

    sequences: np.ndarray
    references: np.ndarray
    chosen: np.ndarray
    chunk_tokens: int
    shared: int


def documents(passages: Iterable[Passage], seed: int = 0) -> list[tuple[str, str]]:
    """(title, text) of the documents, the passages of each joined, in an order fixed by the seed."""
    found = []
    for _, group in groupby(passages, key=lambda p: (p.source, p.document)):
        joined = list(group)
        found.append((joined[0].title, "\n".join(p.text for p in joined)))
    random.Random(seed).shuffle(found)
    return found


def prepare(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    embedder: Embedder,
    folder: Path,
    plan: RetrievalPlan,
    report: Progress = lambda *_: None,
) -> RetrievedSequences:
    """The prepared data of a corpus, from `folder` as far as it is there already.

    Raises InvalidInput when the corpus is shorter than one sequence.
    """
    sources = [file_sha256(path) for path in files]
    made_from: list[Any] = [_FORMAT, sources, asdict(plan), tokenizer.backend.to_str(), embedder.vectors_id]
    target = folder / sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    target.mkdir(parents=True, exist_ok=True)
    if not (target / "references.npy").is_file():
        _cut(documents(PassageFiles(files)), tokenizer, plan, target, report)
    sequences = np.load(target / "sequences.npy", mmap_mode="r")
    references = np.load(target / "references.npy", mmap_mode="r")
    bodies = np.load(target / "bodies.npy")

    def embed(rows: np.ndarray) -> np.ndarray:
        return embedder.embed([tokenizer.decode(row[row >= 0].tolist()) for row in rows])

    vectors = _blocks(
        target / "vectors.npy",
        (len(references), embedder.dim),
        np.float32,
        512,
        lambda start, end: embed(references[start:end]),
        partial(report, "embedding references"),
    )
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

    chosen = _blocks(
        target / "chosen.npy",
        (len(sequences), chunks),
        np.int32,
        32,
        choose,
        partial(report, "retrieving for each chunk"),
    )
    return RetrievedSequences(sequences, references, chosen, plan.chunk_tokens, plan.shared)


def _cut(
    found: Sequence[tuple[str, str]], tokenizer: Tokenizer, plan: RetrievalPlan, target: Path, report: Progress
) -> None:
    """Write sequences.npy, bodies.npy and references.npy; the last marks them as complete."""
    stream: list[np.ndarray] = []
    references: list[list[int]] = []
    bodies: list[int] = []
    for number, (title, text) in enumerate(found):
        title = " ".join(title.split())
        stream.append(np.array(tokenizer.encode(f"{title}\n{text}\n\n"), np.int32))
        head = tokenizer.count(f"{title}\n") if title else 0
        if head > plan.reference_tokens // 2:
            title, head = "", 0
        texts = split(text, title, tokenizer.count, plan.reference_tokens)
        encoded = tokenizer.encode_batch(texts)
        references += encoded
        bodies += [min(head, len(reference) - 1) for reference in encoded]
        if number % 256 == 0:
            report("cutting sequences and references", number, len(found))
    report("cutting sequences and references", len(found), len(found))
    tokens, own = sum(map(len, stream)), plan.tokens - 1  # behind the context BOS
    whole = tokens // own
    if not whole:
        raise InvalidInput(f"the corpus has {tokens} tokens, one sequence {own}: give more text or shorter sequences")
    padded = np.full((len(references), plan.reference_tokens), -1, np.int32)
    for row, ids in enumerate(references):
        padded[row, : len(ids)] = ids
    cut = np.concatenate(stream)[: whole * own].reshape(whole, own)
    np.save(target / "sequences.npy", np.pad(cut, ((0, 0), (1, 0)), constant_values=tokenizer.bos_id))
    np.save(target / "bodies.npy", np.array(bodies, np.int32))
    np.save(target / "references.partial.npy", padded)
    (target / "references.partial.npy").replace(target / "references.npy")


def _chosen(
    sequence: np.ndarray, near: np.ndarray, references: np.ndarray, bodies: np.ndarray, plan: RetrievalPlan
) -> list[int]:
    """The reference of each chunk, out of its neighbours `near` [chunks, candidates], nearest first."""

    @cache
    def leaks(number: int) -> bool:
        ids = references[number]
        return overlaps(sequence, ids[ids >= 0][bodies[number] :])

    chosen: list[int] = []
    for candidates in near.tolist():
        read = chosen[-(plan.shared - 1) :] if plan.shared > 1 else []
        fitting = (n for n in candidates if n >= 0 and n not in read and not leaks(n))
        chosen.append(next(fitting, -1))
    return chosen


def overlaps(sequence: Tokens, reference: Tokens, most: float = _MOST_OVERLAP) -> bool:
    """Whether `sequence` contains more than a share `most` of `reference` (paper 3.6, eq. 6); both are token ids.

    overlap(t, r) = LCS of t and r, the tokens taken from t at most 2 |r| apart, over |r|
    """
    target, ids = np.asarray(reference).tolist(), np.asarray(sequence).tolist()
    size, allowed = len(target), int(most * len(target))
    if sum((Counter(ids) & Counter(target)).values()) <= allowed:  # of any order: rules out most
        return False
    masks: dict[int, int] = {}
    for bit, token in enumerate(target):
        masks[token] = masks.get(token, 0) | 1 << bit
    # Tokens that the reference lacks do not count; a window begins at each of the others.
    kept = [(at, masks[token]) for at, token in enumerate(ids) if token in masks]
    positions = np.array([at for at, _ in kept], np.int64)
    ends = np.searchsorted(positions, positions + 2 * size, side="right").tolist()
    window = 0
    while window < len(kept):
        length = _common([mask for _, mask in kept[window : ends[window]]], size)
        if length > allowed:
            return True
        # A window's LCS exceeds that of one before it at most by the tokens that entered.
        missing, end = allowed - length, ends[window]
        window += 1
        while window < len(kept) and ends[window] - end <= missing:
            window += 1
    return False


def _common(masks: Sequence[int], size: int) -> int:
    """Longest common subsequence of a reference of `size` tokens and the tokens whose positions in it are `masks`.

    Bit-parallel (Hyyrö, 2004): one row of `size` bits is one integer.
    """
    ones = (1 << size) - 1
    v = ones
    for mask in masks:
        both = v & mask
        v = ((v + both) | (v - both)) & ones
    return size - v.bit_count()


def _blocks(
    path: Path,
    shape: tuple[int, int],
    kind: type,
    block: int,
    make: Callable[[int, int], np.ndarray],
    report: Callable[[int, int], None],
) -> np.ndarray:
    """The rows of a file, made `block` by block; blocks that progress.json lists are not made again."""
    record, name = path.with_name("progress.json"), path.stem
    done: dict[str, int] = json.loads(record.read_text()) if record.is_file() else {}
    rows = np.lib.format.open_memmap(path, "r+" if path.is_file() and name in done else "w+", kind, shape)
    for start in range(done.get(name, 0), shape[0], block):
        end = min(start + block, shape[0])
        rows[start:end] = make(start, end)
        rows.flush()
        new = record.with_suffix(".partial")
        new.write_text(json.dumps({**done, name: end}))
        new.replace(record)
        report(end, shape[0])
    return np.load(path, mmap_mode="r")
