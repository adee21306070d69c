"""An evaluation reads the memories it says, retrieves what the knowledge base holds, and scores every condition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from memory_model.errors import InvalidInput
from memory_model.eval.conditions import CONDITIONS, Evaluation
from memory_model.eval.memories import MemoryBank
from memory_model.eval.prose import perplexity, windows
from memory_model.eval.retrieval import KnowledgeBase, query_of, references_of
from memory_model.eval.rows import Row, read_rows
from memory_model.eval.scores import REFUSAL
from memory_model.eval.subject import Subject
from memory_model.models.load import LoadedModel
from tests.edge_client.tiny_bundle import format_of, tiny_loaded

TEXTS = [f"Land{n}\nArea: {n} km" for n in range(8)]
ROWS = [Row(text, f"Area of Land{n}?", f"{n} km") for n, text in enumerate(TEXTS[:6])]


class LetterEmbedder:
    """Unit vectors of which letters and digits a text holds; counts what it is asked for."""

    vectors_id = "letters" * 8

    def __init__(self) -> None:
        self.embedded = 0

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.embedded += len(texts)
        counts = np.array([[t.lower().count(chr(c)) for c in range(48, 123)] for t in texts], np.float32)
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_loaded()


def evaluation(loaded: LoadedModel, rows: Sequence[Row] = ROWS, **options: object) -> Evaluation:
    bank = MemoryBank(loaded, format_of(loaded))
    return Evaluation(bank, loaded.tokenizer.encode, rows, batch=4, **options)  # type: ignore[arg-type]


def knowledge_base(folder: Path, embedder: LetterEmbedder | None = None) -> KnowledgeBase:
    return KnowledgeBase.of(TEXTS, embedder or LetterEmbedder(), folder)


def test_every_row_reads_its_own_reference_and_four_others(loaded: LoadedModel) -> None:
    for row, reads in zip(ROWS, evaluation(loaded).given, strict=True):
        assert len(reads) == len(set(reads)) == 5
        assert row.knowledge in reads


def test_a_rows_own_distractors_are_read_instead_of_random_ones(loaded: LoadedModel) -> None:
    rows = [Row("A: 1", "A?", "1", distractors=("B: 2", "C: 3"))]
    assert sorted(evaluation(loaded, rows).given[0]) == ["A: 1", "B: 2", "C: 3"]
    assert len(evaluation(loaded, rows, distractors=1).given[0]) == 2


def test_all_conditions_are_scored_for_every_row(loaded: LoadedModel, tmp_path: Path) -> None:
    result = evaluation(loaded, knowledge_base=knowledge_base(tmp_path)).run(CONDITIONS)
    assert list(result) == list(CONDITIONS)
    for condition, scores in result.items():
        summary = scores.summary()
        assert len(scores.answers) == len(scores.nll) == len(ROWS)
        assert math.isfinite(summary["nll"])
        assert ("recall_at_5" in summary) == (condition == "memory_retrieved")
        assert "follows_memory" not in summary


def test_the_exact_codec_costs_nothing_and_memories_change_what_is_likely(loaded: LoadedModel) -> None:
    result = evaluation(loaded).run(("none", "memory", "memory_exact"))
    assert result["memory"].nll == pytest.approx(result["memory_exact"].nll, abs=5e-3)  # float16 payloads
    assert result["memory"].nll != pytest.approx(result["none"].nll, abs=1e-6)


def test_retrieved_memories_equal_given_ones_when_the_same_references_are_read(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    base = KnowledgeBase.of(TEXTS[:5], LetterEmbedder(), tmp_path)
    rows = [Row(TEXTS[0], "Land0?", "0 km", distractors=tuple(TEXTS[1:5]))]
    run = evaluation(loaded, rows, knowledge_base=base, candidates=0)
    result = run.run(("memory", "memory_retrieved"))
    assert sorted(run.retrieved[0]) == sorted(run.given[0])
    assert result["memory_retrieved"].recall_at_5 == [1.0]
    # the order of memories is without meaning: they share one interval of positions
    assert result["memory_retrieved"].nll == pytest.approx(result["memory"].nll, abs=1e-4)


def test_recall_counts_the_rows_whose_reference_was_found(loaded: LoadedModel, tmp_path: Path) -> None:
    rows = [ROWS[0], Row("Nowhere\nArea: 9 km", "Nowhere?", "9 km")]
    scores = evaluation(loaded, rows, knowledge_base=knowledge_base(tmp_path)).run(("memory_retrieved",))
    assert scores["memory_retrieved"].recall_at_5[1] == 0.0


def test_memories_are_written_once_for_all_conditions(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = loaded.writer.write
    monkeypatch.setattr(
        loaded.writer, "write", lambda texts, **options: written.extend(texts) or write(texts, **options)
    )
    run = evaluation(loaded)
    assert run.unwritten(("memory", "memory_exact")) == len(ROWS)
    run.run(("memory", "memory_exact"))
    assert run.unwritten(("memory", "memory_exact")) == 0
    run.run(("memory",))
    assert sorted(written) == sorted({row.knowledge for row in ROWS})


def test_counterfactual_and_unanswerable_rows_have_their_own_scores(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["The capital is Berlin.", "Paris", "I don't know."])
    monkeypatch.setattr(
        "memory_model.eval.conditions.greedy",
        lambda model, prompts, *_: [loaded.tokenizer.encode(next(answers)) for _ in prompts],
    )
    rows = [
        Row("France\nCapital: Berlin", "Capital?", "Berlin", believed_answer="Paris"),
        Row("Japan\nCapital: Rome", "Capital?", "Rome", believed_answer="Paris"),
        Row("Cuba\nCapital: Oslo", "Area?", REFUSAL, answerable=False),
    ]
    scores = evaluation(loaded, rows).run(("rag",))["rag"]
    assert scores.follows_memory == [1.0, 0.0]
    assert scores.says_belief == [0.0, 1.0]
    assert scores.refused == [0.0, 0.0, 1.0]
    assert scores.exact_values == [1.0, 0.0]  # a refusal has no values to get right


def test_a_plain_model_is_asked_without_prefix_and_reads_no_memories(loaded: LoadedModel) -> None:
    plain = Subject(MemoryBank(loaded, format_of(loaded)), ())
    tuned = Subject.of(loaded, format_of(loaded))
    scores = plain.evaluation(ROWS, ("none", "rag")).run(("none", "rag"))
    behind_prefix = tuned.evaluation(ROWS, ("none",)).run(("none",))
    assert scores["none"].nll != pytest.approx(behind_prefix["none"].nll, abs=1e-6)
    with pytest.raises(InvalidInput, match="reads no memories"):
        plain.evaluation(ROWS, ("memory",))


def test_wrong_conditions_and_rows_are_refused_by_name(loaded: LoadedModel) -> None:
    with pytest.raises(InvalidInput, match="unknown conditions"):
        evaluation(loaded).run(("memoryy",))
    with pytest.raises(InvalidInput, match="--knowledge-base"):
        evaluation(loaded).run(("memory_retrieved",))
    with pytest.raises(InvalidInput, match="distractors must be 0 to 4"):
        evaluation(loaded, distractors=5)
    for bad in (
        {"knowledge": "a", "question": "b"},
        {"knowledge": "a", "question": " ", "right_answer": "c"},
        {"knowledge": "a", "question": "b", "right_answer": 3},
        {"knowledge": "a", "question": "b", "right_answer": "c", "distractors": ["", "x"]},
        {"knowledge": "a", "question": "b", "right_answer": "c", "answerable": "no"},
        ["a"],
    ):
        with pytest.raises(InvalidInput):
            list(read_rows([bad]))
    with pytest.raises(InvalidInput, match="JSON list"):
        list(read_rows({"rows": []}))


def test_vectors_are_embedded_once_and_read_again_afterwards(tmp_path: Path) -> None:
    embedder = LetterEmbedder()
    first = knowledge_base(tmp_path, embedder)
    second = knowledge_base(tmp_path, embedder)
    assert embedder.embedded == len(TEXTS)
    assert np.array_equal(first.vectors, second.vectors)
    KnowledgeBase.of([*TEXTS, "new"], embedder, tmp_path)  # another block: not what was kept
    assert embedder.embedded == 2 * len(TEXTS) + 1


def test_nearest_references_are_those_of_the_largest_cosine(tmp_path: Path) -> None:
    base = knowledge_base(tmp_path)
    queries = ["Land3 3 3", "Area 7 km"]
    cosines = base.embedder.embed(queries) @ base.vectors.T
    for row, found in zip(cosines, base.nearest(queries, 3, candidates=0), strict=True):
        assert found == sorted(range(len(TEXTS)), key=lambda n: -row[n])[:3]
    assert base.nearest(["Land3"], 1, candidates=8) == [[3]]
    assert base.nearest(["What is the area of Land3?"], 5) == [[3]], (
        "the others are not of the land that is named"
    )


def test_a_question_asks_with_its_last_tokens_and_documents_are_split_as_the_service_splits(
    loaded: LoadedModel,
) -> None:
    assert query_of("x" * 20 + " end", loaded.tokenizer, 4) == "end"
    documents = [{"title": "T", "text": "One fact here.\nAnother fact there.\nA third one."}]
    references = references_of(documents, loaded.tokenizer, 32)
    assert len(references) > 1
    assert all(r.startswith("T\n") for r in references)


def test_windows_are_full_and_follow_the_texts() -> None:
    assert windows(["abcd", "efghij"], lambda t: [ord(c) for c in t], 5) == [
        [ord(c) for c in "abcd\n"],
        [ord(c) for c in "\nefgh"],
    ]
    assert len(windows(["a" * 100], lambda t: [1] * len(t), 5, limit=3)) == 3
    with pytest.raises(InvalidInput, match="give more text"):
        windows(["abc"], lambda t: [1] * len(t), 5)


def test_perplexity_is_the_exponential_of_the_mean_loss_of_all_tokens_but_the_first(
    loaded: LoadedModel,
) -> None:
    text, prefix = [5, 9, 30, 7, 12], [256]
    hidden, _ = loaded.model.hidden(
        torch.tensor([[*prefix, *text]]), torch.tensor([[0, *range(33, 38)]])
    )  # text follows the 32 positions of references
    logits = loaded.model.head(hidden)[0].log_softmax(-1)
    loss = -sum(float(logits[n, text[n]]) for n in range(1, 5)) / 4
    assert perplexity(loaded, [text, text], prefix) == pytest.approx(math.exp(loss), rel=1e-5)
