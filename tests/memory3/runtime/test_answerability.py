"""A probe of queries: its file, its fit beside scikit-learn's, and questions that it has refused or answered."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from memory3.errors import CorruptFile, InvalidInput, ModelMismatch
from memory3.runtime.answerability import PROBE_FILE, AnswerabilityProbe, query_width
from memory3.text.refusal import SENTENCE
from memory_model.data.rows import QuestionRow
from memory_model.eval.conditions import Evaluation
from memory_model.eval.probe_fit import PENALTY, Separation, cross_validated, fit_probe, limited
from memory_model.eval.refusing import Signals, margins, signals
from memory_model.eval.subject import Subject
from tests.edge_client.tiny_bundle import probed, tiny_config, tiny_loaded

WIDTH, ROWS = 40, 120
LANDS = [QuestionRow(f"Land{n}\nArea: {n} km", f"Area of Land{n}?", f"{n} km") for n in range(4)]


def synthetic(seed: int = 0) -> Signals:
    """Unlike scales; what tells the kinds apart lies in a direction of the queries, a little of it in the margin."""
    rng = np.random.default_rng(seed)
    answerable = rng.random(ROWS) < 0.6
    queries = rng.standard_normal((ROWS, WIDTH)) * np.geomspace(0.1, 10, WIDTH) + 3
    queries[:, 5] += np.where(answerable, -1, 1) * 1.5 * np.geomspace(0.1, 10, WIDTH)[5]
    margins = rng.standard_normal(ROWS) + np.where(answerable, -0.5, 0.5)
    return Signals(margins.astype(np.float32), np.full(ROWS, 5), queries.astype(np.float32), answerable)


def test_a_probe_is_read_as_it_was_written(tmp_path: Path) -> None:
    config = tiny_config()
    probe = AnswerabilityProbe("ab", np.arange(query_width(config), dtype=np.float32), 1.5)
    probe.save(tmp_path / PROBE_FILE)
    found = AnswerabilityProbe.load(tmp_path / PROBE_FILE, config, "ab")
    assert (found.weights.tolist(), found.offset, found.digest) == (probe.weights.tolist(), 1.5, probe.digest)
    with pytest.raises(ModelMismatch, match=r"answerability.npz is of model ab…, not cd….*fit-refusal"):
        AnswerabilityProbe.load(tmp_path / PROBE_FILE, config, "cd")


@pytest.mark.parametrize("weights", [np.zeros(3), np.full(query_width(tiny_config()), np.nan), np.zeros((2, 2))])
def test_weights_of_another_shape_are_refused(weights: np.ndarray, tmp_path: Path) -> None:
    AnswerabilityProbe("ab", weights, 0).save(tmp_path / PROBE_FILE)
    with pytest.raises(CorruptFile, match="finite ones"):
        AnswerabilityProbe.load(tmp_path / PROBE_FILE, tiny_config(), "ab")


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / PROBE_FILE).write_bytes(content)
    with pytest.raises(CorruptFile, match="no probe"):
        AnswerabilityProbe.load(tmp_path / PROBE_FILE, tiny_config(), "ab")


def test_a_fit_is_that_of_scikit_learn() -> None:
    found, large = synthetic(), 1e3  # a large margin has a weight that no penalty matters to
    scaled = (found.queries - found.queries.mean(0)) / found.queries.std(0)
    inputs = np.column_stack([scaled, large * found.margins])
    reference = LogisticRegression(C=1 / PENALTY, class_weight="balanced", tol=1e-10, max_iter=10_000)
    reference.fit(inputs, ~found.answerable)
    probe = fit_probe("", found)
    weight = large * reference.coef_[0, -1]
    expected = reference.decision_function(inputs) / weight
    np.testing.assert_allclose(found.margins + probe.biases(found.queries), expected, atol=2e-3)


def test_a_margin_that_says_the_opposite_does_not_turn_the_probe_round() -> None:
    found = synthetic()
    wrong = found._replace(margins=-found.margins)
    scores = wrong.margins + fit_probe("", wrong, 100.0).biases(found.queries)
    assert Separation.of(scores, found.answerable).area > 0.9


def test_a_probe_separates_new_questions_better_than_the_logit() -> None:
    probe, new = fit_probe("", synthetic(), 100.0), synthetic(1)
    alone = Separation.of(new.margins, new.answerable).area
    assert Separation.of(new.margins + probe.biases(new.queries), new.answerable).area > alone + 0.1
    rows = [QuestionRow(f"text {n}", "?", "a") for n in range(ROWS)]
    assert Separation.of(cross_validated(new, rows, 100.0), new.answerable).area > alone + 0.05


@pytest.mark.parametrize("most_wrong", [0.05, 0.2])
def test_a_limited_probe_refuses_the_share_of_answerable_questions_that_is_given(most_wrong: float) -> None:
    found, probe = synthetic(), fit_probe("", synthetic())
    scores = found.margins + probe.biases(found.queries)
    shifted = limited(probe, scores, found.answerable, most_wrong)
    refused = found.margins + shifted.biases(found.queries) > 0
    assert refused[found.answerable].mean() == pytest.approx(most_wrong, abs=0.02)


def test_cross_validation_of_questions_about_one_text_does_not_know_it() -> None:
    """All rows have the same text, so that none is left to fit on."""
    with pytest.raises(InvalidInput, match="too few"):
        cross_validated(synthetic(), [QuestionRow("one text", "?", "a")] * ROWS)


def test_separation_counts_what_few_wrong_refusals_permit() -> None:
    answerable = np.array([True] * 100 + [False] * 4)
    found = Separation.of(np.r_[np.arange(100), 98, 50, 97, -1.0], answerable)
    assert found.refused == 0.5
    assert found.area == pytest.approx((98.5 + 50.5 + 97.5) / 400)


@pytest.mark.parametrize("few", ["answerable", "unanswerable"])
def test_too_few_questions_of_a_kind_are_refused(few: str) -> None:
    found = synthetic()
    kind = found.answerable if few == "answerable" else ~found.answerable
    kept = ~kind | (np.cumsum(kind) <= 3)
    with pytest.raises(InvalidInput, match="3 questions of a kind are too few"):
        fit_probe("", Signals(*(part[kept] for part in found)))


def test_a_question_is_refused_where_probe_and_margin_say_so() -> None:
    loaded = tiny_loaded()
    weights = np.random.default_rng(0).standard_normal(query_width(loaded.config)).astype(np.float32)
    run = Evaluation(Subject.of(loaded), LANDS, ["memory"], distractors=3)
    plain, biases = margins(run), weights @ signals(run).queries.T
    assert np.ptp(biases) > 1e-3, "the probe tells questions apart"
    for number, question in enumerate(plain):
        for more, begins in ((0.01, True), (-0.01, False)):
            subject = Subject.of(probed(-question.margin - float(biases[number]) + more, weights))
            again = Evaluation(subject, LANDS, ["memory"], distractors=3)
            assert margins(again)[number].margin == pytest.approx(more, abs=1e-4)
            assert again.run()["memory"].answers[number].startswith(SENTENCE[0]) is begins


def test_few_memories_do_not_use_a_probe() -> None:
    plain, strong = Subject.of(tiny_loaded()), Subject.of(probed(90.0))
    for distractors, uses in ((1, False), (2, True)):
        first, second = (margins(Evaluation(s, LANDS, ["memory"], distractors=distractors)) for s in (plain, strong))
        raised = [b.margin - a.margin for a, b in zip(first, second, strict=True)]
        assert raised == pytest.approx([90.0 * uses] * len(LANDS), abs=1e-3)
        answers = Evaluation(strong, LANDS, ["memory"], distractors=distractors).run()["memory"].answers
        assert all(answer.startswith(SENTENCE[0]) for answer in answers) is uses
