"""An evaluation reads the memories it says, retrieves what the knowledge base holds, and scores every condition."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from memory3.errors import InvalidInput
from memory3.text.refusal import SENTENCE
from memory3.text.words import DEFAULT_RANKING, Ranking
from memory_model.data.rows import QuestionRow, read_rows
from memory_model.eval.conditions import CONDITIONS, Evaluation, Scores, compared, parse_conditions, result_of
from memory_model.eval.report import open_knowledge_base
from memory_model.eval.retrieval import ReferenceIndex, query_of, references_of
from memory_model.eval.scores import contained, exact_match, token_f1
from memory_model.eval.subject import MemoryBank, Subject
from memory_model.models.load import LoadedModel
from tests.edge_client.tiny_bundle import format_of, probed, tiny_loaded

TEXTS = [f"Land{n}\nArea: {n} km" for n in range(8)]
ROWS = [QuestionRow(text, f"Area of Land{n}?", f"{n} km") for n, text in enumerate(TEXTS[:6])]


class LetterEmbedder:
    """Unit vectors of which letters and digits a text holds."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        counts = np.array([[t.lower().count(chr(c)) for c in range(48, 123)] for t in texts], np.float32)
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_loaded()


def evaluation(
    loaded: LoadedModel, conditions: Sequence[str], rows: Sequence[QuestionRow] = ROWS, **options: object
) -> Evaluation:
    return Evaluation(Subject.of(loaded), rows, conditions, batch=4, **options)  # type: ignore[arg-type]


def knowledge_base(texts: Sequence[str] = TEXTS) -> ReferenceIndex:
    return ReferenceIndex.of(texts, LetterEmbedder())  # type: ignore[arg-type]


def test_all_conditions_are_scored_for_every_row(loaded: LoadedModel) -> None:
    result = evaluation(loaded, CONDITIONS, knowledge_base=knowledge_base()).run()
    assert list(result) == list(CONDITIONS)
    for condition, scores in result.items():
        summary = scores.summary()
        assert len(scores.answers) == len(scores.nll) == len(ROWS)
        assert math.isfinite(summary["nll"])
        assert ("recall_at_5" in summary) == condition.endswith("_retrieved")
        assert {f"{name}_error" for name in scores.means()} < set(summary)
        assert "refused_wrongly" not in summary, "all rows are of one kind"


def test_retrieved_memories_equal_given_ones_when_the_same_references_are_read(loaded: LoadedModel) -> None:
    base = knowledge_base(TEXTS[:5])
    base.nearest = partial(base.nearest, candidates=0)  # type: ignore[method-assign]
    rows = [QuestionRow(TEXTS[0], "Land0?", "0 km", distractors=tuple(TEXTS[1:5]))]
    run = evaluation(loaded, ("memory", "memory_retrieved"), rows, knowledge_base=base)
    result = run.run()
    assert sorted(run.retrieved[0]) == sorted(run.given[0])
    assert result["memory_retrieved"].recall_at_5 == [1.0]
    # the order of memories is without meaning: they share one interval of positions
    assert result["memory_retrieved"].nll == pytest.approx(result["memory"].nll, abs=1e-4)


def test_a_part_of_the_knowledge_counts_as_found_where_it_holds_the_answer(loaded: LoadedModel) -> None:
    row = QuestionRow("One. Two is 7. Three.", "Two?", "7", title="T")
    for text, found in (("T\nTwo is 7.", 1.0), ("T\nThree.", 0.0), ("T\nOne. Two is 7. Three. Four.", 1.0)):
        scores = evaluation(loaded, ("rag_retrieved",), [row], knowledge_base=knowledge_base([text])).run()
        assert scores["rag_retrieved"].recall_at_5 == [found]


def test_text_conditions_prompt_with_what_memory_reads(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [QuestionRow("body", "Q?", "A", title="T", distractors=("other", "third"))]
    run, prompts = evaluation(loaded, ("memory", "rag_five", "rag", "none"), rows), []
    monkeypatch.setattr(Subject, "prompt", lambda _, text: prompts.append(text) or loaded.tokenizer.encode(text))
    run.run()
    five = run.given[0]
    assert sorted(five) == ["T\nbody", "T\nother", "T\nthird"], "its own distractors"
    assert prompts == ["Q?", "\n\n".join([*five, "Q?"]), "T\nbody\n\nQ?", "Q?"]


def test_long_knowledge_is_read_whole_in_several_references(loaded: LoadedModel) -> None:
    rows = [QuestionRow("First part is here.\nSecond part it is.", "Q?", "A", title="T", distractors=("x", "y"))]
    assert sorted(evaluation(loaded, (), rows).given[0]) == [
        "T\nFirst part is here.",
        "T\nSecond part it is.",
        "T\nx",
        "T\ny",
    ]


def test_any_of_several_right_answers_counts() -> None:
    rows = [QuestionRow("k", "Q?", "ten", answers=("10 men",)), QuestionRow("k", "Q?", SENTENCE, answerable=False)]
    scores = Scores.of(rows, ["10 men", "I don't know."], SENTENCE)
    assert scores.exact_match == [1.0, 1.0]
    assert scores.summary()["refused_rightly"] == 1.0
    assert scores.summary()["refused_wrongly"] == 0.0


def test_a_refusal_in_the_models_own_sentence_counts() -> None:
    row = QuestionRow("Land", "Area of Land?", "4 km")
    for sentence, refused in (("Das weiß ich nicht.", 1.0), ("I don't know.", 0.0)):
        scores = Scores(sentence)
        scores.add(row, "Das weiß ich nicht.")
        assert scores.summary()["refused"] == refused


def test_means_have_standard_errors_and_comparisons_are_row_by_row() -> None:
    rows = [QuestionRow("k", f"q{n}", "Paris") for n in range(4)]
    said = {"memory": ["Paris", "Rome", "Rome", "Paris"], "rag_five": ["Paris"] * 3 + ["Rome"]}
    told = {name: Scores.of(rows, answers, SENTENCE) for name, answers in said.items()}
    assert told["memory"].summary()["f1"] == 0.5
    assert told["memory"].summary()["f1_error"] == 0.2887
    found = compared(told)["memory - rag_five"]["f1"]
    assert (found.difference, found.error, found.n) == (-0.25, 0.4787, 4)
    result = result_of(told, rows)
    assert result["pairs"]["memory - rag_five"]["f1"]["difference"] == -0.25
    assert result["answers"][1] == {"question": "q1", "right_answer": "Paris", "memory": "Rome", "rag_five": "Paris"}


def test_a_plain_model_is_asked_without_prefix_and_reads_no_memories(loaded: LoadedModel) -> None:
    plain = Subject(MemoryBank(loaded, format_of(loaded)), ())
    scores = Evaluation(plain, ROWS, ("none", "rag")).run()
    behind_prefix = Evaluation(Subject.of(loaded), ROWS, ("none",)).run()
    assert scores["none"].nll != pytest.approx(behind_prefix["none"].nll, abs=1e-6)
    with pytest.raises(InvalidInput, match="reads no memories"):
        Evaluation(plain, ROWS, ("memory",))


def test_wrong_conditions_and_rows_are_refused_by_name(loaded: LoadedModel) -> None:
    with pytest.raises(InvalidInput, match="no condition is called memoryy: choose from none, memory"):
        parse_conditions("none, memoryy")
    with pytest.raises(InvalidInput, match="--kb"):
        evaluation(loaded, ("memory_retrieved",))
    with pytest.raises(InvalidInput, match="distractors must be 0 to 4"):
        evaluation(loaded, (), distractors=5)
    good = {"knowledge": "a", "question": "b", "right_answer": "c"}
    for changes in ({"question": " "}, {"right_answer": 3}, {"distractors": ["", "x"]}, {"answerable": "no"}):
        with pytest.raises(InvalidInput, match=r"q\.json, row 2"):
            read_rows([good, good | changes], name="q.json")
    with pytest.raises(InvalidInput, match="JSON list"):
        read_rows({"rows": []})


def test_nearest_references_are_those_of_the_largest_cosine() -> None:
    base = knowledge_base()
    queries = ["Land3 3 3", "Area 7 km"]
    cosines = base.embedder.embed(queries) @ base.vectors.T
    for row, found in zip(cosines, base.nearest(queries, 3, candidates=0), strict=True):
        assert found == sorted(range(len(TEXTS)), key=lambda n: -row[n])[:3]
    assert base.nearest(["Land3"], 1, candidates=8) == [[3]]
    assert base.nearest(["What is the area of Land3?"], 5) == [[3]], "the others are not of the land that is named"


def test_what_is_read_follows_from_the_numbers_of_the_embedder() -> None:
    references = ["Bero\nprinter in room 14", "Olm\nbakery on Main Street"]
    vectors, query = np.array([[0.70, 0.71], [0.75, 0.66]], np.float32), np.array([[1, 0]], np.float32)
    embedder: Any = LetterEmbedder()

    def read(least: float | None, ranking: Ranking, dropping: bool = True) -> list[int]:
        base = ReferenceIndex(references, vectors, embedder, ranking=ranking, minimum_score=least)
        return base.nearest(["Bero room"], vectors=query, dropping=dropping)[0]

    assert read(None, DEFAULT_RANKING) == [0], "the other one shares no word with the question"
    assert read(None, Ranking(0.0, 0.0, 0.3)) == [1, 0]
    assert read(None, Ranking(0.0, 0.0, 0.01)) == [1]
    assert read(None, Ranking(0.0, 0.0, 0.01), dropping=False) == [1, 0]
    assert read(0.72, Ranking(0.0, 0.0)) == [1]
    assert read(0.72, DEFAULT_RANKING) == [0], "its words lift it above the minimum"
    assert read(0.95, DEFAULT_RANKING) == []


def test_a_knowledge_base_is_read_by_the_numbers_of_the_folder_with_its_own_embedder(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    (tmp_path / "documents.jsonl").write_text(json.dumps({"title": "T", "text": "One fact here."}))
    ranking = Ranking(0.03, 0.1, 0.2)
    calibrated = replace(loaded, folder=replace(loaded.folder, minimum_score=0.4, ranking=ranking))
    subject, embedder = Subject.of(calibrated), cast(Any, LetterEmbedder())
    own = open_knowledge_base(subject, tmp_path / "documents.jsonl", embedder)
    assert (own.minimum_score, own.ranking) == (0.4, ranking)
    other = open_knowledge_base(subject, tmp_path / "documents.jsonl", embedder, tmp_path)
    assert (other.minimum_score, other.ranking) == (None, DEFAULT_RANKING)


@pytest.mark.parametrize("least", [0.9, 1.1])
def test_rows_that_find_nothing_are_asked_without_memories(least: float) -> None:
    model, base = probed(50.0), knowledge_base()
    base.minimum_score, base.ranking = least, Ranking(0.0, 0.0)
    rows = [QuestionRow(TEXTS[0], TEXTS[0], "0 km"), *ROWS[1:4]]
    run = evaluation(model, ("none", "memory_retrieved"), rows, knowledge_base=base)
    assert [bool(found) for found in run.retrieved] == [least < 1.0, False, False, False]
    scores = run.run()
    assert scores["memory_retrieved"].answers[1:] == scores["none"].answers[1:]


def test_a_question_asks_with_its_last_tokens_and_documents_are_split_as_the_service_splits(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    assert query_of("x" * 20 + " end", loaded.tokenizer, 4) == "end"
    document = {"title": "T", "text": "One fact here.\nAnother fact there.\nA third one."}
    (tmp_path / "documents.jsonl").write_text(json.dumps(document))
    references = references_of(tmp_path / "documents.jsonl", loaded.tokenizer, 32)
    assert len(references) > 1
    assert all(r.startswith("T\n") for r in references)


@pytest.mark.parametrize(
    ("answer", "right", "same", "f1", "inside"),
    [
        ("The  Eiffel Tower.", "eiffel tower", 1.0, 1.0, 1.0),
        ("28,748 sq km", "28748 sq. km", 1.0, 1.0, 1.0),
        ("red and blue", "blue", 0.0, 0.5, 1.0),
        ("blueish", "blue", 0.0, 0.0, 0.0),
        ("no", "yes", 0.0, 0.0, 0.0),
        ("", "", 1.0, 1.0, 1.0),
        ("", "yes", 0.0, 0.0, 0.0),
    ],
)
def test_scores_of_known_answers(answer: str, right: str, same: float, f1: float, inside: float) -> None:
    assert exact_match(answer, right) == same
    assert token_f1(answer, right) == pytest.approx(f1)
    assert contained(answer, right) == inside
