"""Continual training: what each chunk reads, what leaks nothing, what gets a gradient, and exact resume."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.corpus.preparing import write_rows
from memory3.errors import InvalidInput
from memory3.text.tokenizer import Tokenizer
from memory_model.data.passages import Passage, corpus_files, held_out
from memory_model.data.retrieved import RetrievalPlan, RetrievedSequences, overlaps, prepare
from memory_model.data.running_text import ContinualBatches
from tests.edge_client.tiny_bundle import byte_tokenizer

PLAN = RetrievalPlan(tokens=96, chunk_tokens=16, reference_tokens=32, shared=3, candidates=12)
TOKENIZER = Tokenizer.from_json(byte_tokenizer())
WORDS = ["amber", "birch", "cedar", "delta", "ember", "flint", "grove", "haven", "inlet", "jetty", "knoll", "ledge"]


class CountingEmbedder:
    """A text's letter pairs, hashed; counts texts and can fail after some calls."""

    vectors_id, dim = "pairs", 48

    def __init__(self, fail_after: int | None = None) -> None:
        self.texts, self.calls, self.fail_after = 0, 0, fail_after

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if self.fail_after is not None and self.calls >= self.fail_after:
            raise KeyboardInterrupt
        self.calls += 1
        self.texts += len(texts)
        vectors = np.full((len(texts), self.dim), 1e-3, np.float32)
        for row, text in enumerate(texts):
            for a, b in pairwise(text):
                vectors[row, (ord(a) * 31 + ord(b)) % self.dim] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def corpus(folder: Path, count: int = 60) -> Path:
    rng = random.Random(1)
    passages = []
    for n in range(count):
        own = rng.sample(WORDS, 3)  # so that one reference is the nearest of several chunks
        for part in range(2):
            text = " ".join(rng.choices(own, k=rng.randint(3, 25))) + "."
            passages.append(Passage("tales", f"t{n}#{part}", f"Tale {n}", text))
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "tales.jsonl", passages)
    return folder


def made(folder: Path, plan: RetrievalPlan = PLAN, embedder: CountingEmbedder | None = None) -> RetrievedSequences:
    files = corpus_files(corpus(folder / "corpus"))
    return prepare(files, TOKENIZER, embedder or CountingEmbedder(), folder / "made", plan)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> RetrievedSequences:
    return made(tmp_path_factory.mktemp("continual"))


def text_of(row: np.ndarray) -> str:
    return TOKENIZER.decode(row[row >= 0].tolist())


def test_each_chunk_takes_the_nearest_reference_that_neither_leaks_nor_is_read(data: RetrievedSequences) -> None:
    embedder = CountingEmbedder()
    vectors = embedder.embed([text_of(r) for r in data.references])
    skipped = Counter[str]()
    for sequence, chosen in zip(data.sequences[:20], data.chosen[:20], strict=True):
        for chunk, taken in enumerate(chosen.tolist()):
            query = embedder.embed([text_of(sequence[chunk * 16 : chunk * 16 + 16])])[0]
            order = (-(vectors @ query)).argsort(kind="stable")[: PLAN.candidates]
            expected = -1
            for number in order.tolist():
                reference = data.references[number]
                body = TOKENIZER.encode(text_of(reference).partition("\n")[2])
                if number in chosen[max(0, chunk - 2) : chunk]:
                    skipped["read"] += 1
                elif overlaps(sequence, body):
                    skipped["leaks"] += 1
                else:
                    expected = number
                    break
            same = taken >= 0 and vectors[taken] @ query == pytest.approx(vectors[expected] @ query, abs=1e-5)
            assert taken == expected or same
    assert skipped["leaks"] > 5, "no reference of a sequence's own documents was near: nothing was tested"
    assert skipped["read"] > 0


def test_what_is_held_out_is_neither_read_nor_learned(data: RetrievedSequences) -> None:
    kept_out = [n for n in range(60) if held_out("tales", f"t{n}#0")]
    assert kept_out
    assert (data.sequences[:, 0] == TOKENIZER.bos_id).all()
    everything = text_of(np.concatenate(list(data.sequences))) + "".join(map(text_of, data.references))
    assert not any(f"Tale {n}\n" in everything for n in kept_out)
    assert sum(f"Tale {n}\n" in everything for n in range(60)) > 50


def test_an_interrupted_preparation_goes_on_where_it_stopped(tmp_path: Path, data: RetrievedSequences) -> None:
    whole = CountingEmbedder()
    made(tmp_path / "whole", embedder=whole)
    assert whole.calls >= 3
    first = CountingEmbedder(fail_after=whole.calls - 1)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "cut", embedder=first)
    second = CountingEmbedder()
    again = made(tmp_path / "cut", embedder=second)
    assert first.texts + second.texts == whole.texts
    assert np.array_equal(again.chosen, data.chosen)
    third = CountingEmbedder()
    made(tmp_path / "cut", embedder=third)
    assert third.calls == 0


def test_a_chunk_reads_its_own_reference_and_those_of_the_chunks_before_it(data: RetrievedSequences) -> None:
    batches = ContinualBatches(data, seed=3, rows=2)
    for _ in range(4):
        batch = batches.next()
        assert batch.task == "continual"
        assert torch.equal(batch.ids, batch.labels)
        written = [
            ids[:length].tolist()
            for ids, length in zip(batch.reference_ids, batch.reference_lengths.tolist(), strict=True)
        ]
        for ids, memories, chunks in zip(batch.ids, batch.memories, batch.chunks, strict=True):
            number = next(n for n, s in enumerate(data.sequences) if np.array_equal(s, ids.numpy()))
            assert chunks.tolist() == [t // 16 for t in range(96)]
            for chunk, slots in enumerate(memories.tolist()):
                expected = data.chosen[number][max(0, chunk - 2) : chunk + 1][::-1]
                texts = [r[r >= 0].tolist() for r in data.references[expected[expected >= 0]]]
                assert [written[s] for s in slots if s >= 0] == texts
                assert len(slots) == 3


def test_every_epoch_has_every_sequence_once_and_a_restored_source_goes_on(data: RetrievedSequences) -> None:
    batches = ContinualBatches(data, seed=0, rows=1)
    size = len(data.sequences)
    drawn = [batches.next().ids[0].numpy().tobytes() for _ in range(2 * size)]
    assert sorted(drawn[:size]) == sorted(drawn[size:])
    assert drawn[:size] != drawn[size:]
    again = ContinualBatches(data, seed=0, rows=1)
    again.restore({"drawn": size})
    assert [again.next().ids[0].numpy().tobytes() for _ in range(size)] == drawn[size:]


def test_text_that_is_too_short_and_lengths_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="multiple of 64"):
        RetrievalPlan(tokens=100)
    with pytest.raises(InvalidInput, match="give more text"):
        made(tmp_path, RetrievalPlan(tokens=64_000, chunk_tokens=64))


def longest_common_subsequence(a: Sequence[int], b: Sequence[int]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        above = 0
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], above + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def by_definition(sequence: Sequence[int], reference: Sequence[int]) -> float:
    """Every first position i_1, and all positions at most 2 |r| after it."""
    span = 2 * len(reference) + 1
    starts = range(len(sequence))
    return max((longest_common_subsequence(sequence[s : s + span], reference) for s in starts), default=0) / len(
        reference
    )


tokens = st.lists(st.integers(0, 5), max_size=60)
references = st.lists(st.integers(0, 7), min_size=1, max_size=12)


@settings(deadline=None)
@given(tokens, references, st.floats(0, 1) | st.sampled_from([0.0, 1 / 3, 0.5, 0.9, 1.0]))
def test_overlap_is_the_papers_definition(sequence: list[int], reference: list[int], most: float) -> None:
    assert overlaps(sequence, reference, most) == (by_definition(sequence, reference) > most)


def test_a_reference_of_more_than_one_machine_word_is_measured() -> None:
    reference = list(range(200))
    assert overlaps([*range(500, 900), *range(0, 200, 2), *range(300)], reference, 0.99)
    assert overlaps([7, *range(181)], reference)
    assert not overlaps([7, *range(180)], reference)
