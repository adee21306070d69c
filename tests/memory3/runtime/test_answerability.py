"""A probe of queries: its file, its fit beside scikit-learn's, and questions that it has refused or answered."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory3.errors import CorruptFile, InvalidInput, ModelMismatch
from memory3.runtime.answerability import PROBE_FILE, AnswerabilityProbe, query_width
from memory3.text.refusal import SENTENCE
from memory_model.data.rows import QuestionRow
from memory_model.eval.conditions import Evaluation
from memory_model.eval.probe_fit import PENALTY, Separation, cross_validated, fit_probe, limited, of_requests
from memory_model.eval.refusing import Signals, margins, signals
from memory_model.eval.subject import Subject
from tests.edge_client.tiny_bundle import probe_of, probed, tiny_config, tiny_loaded

WIDTH, ROWS = 40, 120
LANDS = [QuestionRow(f"Land{n}\nArea: {n} km", f"Area of Land{n}?", f"{n} km") for n in range(4)]


FIVE = np.full(ROWS, 5)


def synthetic(seed: int = 0) -> Signals:
    """Unlike scales; what tells the kinds apart lies in a direction of the queries, a little of it in the margin."""
    rng = np.random.default_rng(seed)
    answerable = rng.random(ROWS) < 0.6
    queries = rng.standard_normal((ROWS, WIDTH)) * np.geomspace(0.1, 10, WIDTH) + 3
    queries[:, 5] += np.where(answerable, -1, 1) * 1.5 * np.geomspace(0.1, 10, WIDTH)[5]
    margins = rng.standard_normal(ROWS) + np.where(answerable, -0.5, 0.5)
    return Signals(margins.astype(np.float32), FIVE, queries.astype(np.float32), answerable)


def of_one_and_five() -> Signals:
    """Two sets of such questions; those of the second read one memory."""
    first, second = synthetic(), synthetic(2)
    both = Signals(*map(np.concatenate, zip(first, second, strict=True)))
    return both._replace(memories=np.repeat([5, 1], ROWS))


def test_a_probe_is_written_under_its_own_name_and_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config()
    path, zeros = tmp_path / "new folder" / "probe", np.zeros(query_width(config), np.float32)
    probe_of("ab", zeros).save(path)

    def interrupted(file: Any, **_: Any) -> None:
        file.write(b"PK")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probe_of("ab", zeros + 1).save(path)
    assert AnswerabilityProbe.load(path, config, "ab").weights.tolist() == zeros.tolist()


def test_a_probe_is_read_as_it_was_written(tmp_path: Path) -> None:
    config = tiny_config()
    weights = np.arange(query_width(config), dtype=np.float32)
    probe = replace(probe_of("ab", weights, {1: -2.5, 5: 1.5}), leans={"int4": 0.5})
    probe.save(tmp_path / PROBE_FILE)
    found = AnswerabilityProbe.load(tmp_path / PROBE_FILE, config, "ab")
    assert (found.weights.tolist(), found.numbers.tolist()) == (probe.weights.tolist(), [1, 5])
    assert (found.offsets.tolist(), found.digest) == ([-2.5, 1.5], probe.digest)
    nothing = np.zeros((4, len(weights)), np.float32)
    assert found.biases(nothing, [1, 2, 5, 7]).tolist() == [-2.5, -1.5, 1.5, 1.5], "between two numbers, interpolated"
    assert [found.at(precision).offsets.tolist() for precision in ("int4", "int8")] == [[-2.5, 1], [-2.5, 1.5]]
    with pytest.raises(ModelMismatch, match=r"answerability.npz is of model ab…, not cd….*fit-refusal"):
        AnswerabilityProbe.load(tmp_path / PROBE_FILE, config, "cd")


def test_a_request_is_never_made_a_refusal_only_less_of_one(tmp_path: Path) -> None:
    config = tiny_config()
    weights = np.zeros(query_width(config) + 1, np.float32)
    weights[0], weights[-1] = 1, -2
    probe = probe_of("ab", weights[:-1], 5.0)
    queries = np.outer([3.0, 2.0, -4.0], weights[:-1])
    assert probe.biases(queries, 0).tolist() == [0, 0, 0]
    with_requests = replace(probe, of_requests=weights)
    with_requests.save(tmp_path / PROBE_FILE)
    found = AnswerabilityProbe.load(tmp_path / PROBE_FILE, config, "ab")
    assert found.biases(queries, 0).tolist() == [0, 0, -6]
    assert found.biases(queries, [0, 5, 1]).tolist() == [0, 7, 1 - 6]
    assert found.digest == with_requests.digest != probe.digest
    replace(probe, of_requests=weights[1:]).save(tmp_path / PROBE_FILE)
    with pytest.raises(CorruptFile, match="weights of requests"):
        AnswerabilityProbe.load(tmp_path / PROBE_FILE, config, "ab")


@pytest.mark.parametrize("weights", [np.zeros(3), np.full(query_width(tiny_config()), np.nan), np.zeros((2, 2))])
def test_weights_of_another_shape_are_refused(weights: np.ndarray, tmp_path: Path) -> None:
    probe_of("ab", weights).save(tmp_path / PROBE_FILE)
    with pytest.raises(CorruptFile, match="finite ones"):
        AnswerabilityProbe.load(tmp_path / PROBE_FILE, tiny_config(), "ab")


@pytest.mark.parametrize(("numbers", "offsets"), [([], []), ([2, 1], [0, 0]), ([1, 2], [0]), ([1], [np.nan]), (1, 0)])
def test_offsets_that_do_not_fit_their_numbers_are_refused(numbers: object, offsets: object, tmp_path: Path) -> None:
    weights = np.zeros(query_width(tiny_config()), np.float32)
    AnswerabilityProbe("ab", weights, np.array(numbers), np.array(offsets, np.float32)).save(tmp_path / PROBE_FILE)
    with pytest.raises(CorruptFile, match="one finite offset for each"):
        AnswerabilityProbe.load(tmp_path / PROBE_FILE, tiny_config(), "ab")


def test_a_lean_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    weights = np.zeros(query_width(tiny_config()), np.float32)
    replace(probe_of("ab", weights), leans={"int4": np.nan}).save(tmp_path / PROBE_FILE)
    with pytest.raises(CorruptFile, match="finite lean"):
        AnswerabilityProbe.load(tmp_path / PROBE_FILE, tiny_config(), "ab")


def test_a_file_of_before_leans_were_measured_has_none(tmp_path: Path) -> None:
    weights, file = np.zeros(query_width(tiny_config()), np.float32), tmp_path / PROBE_FILE
    np.savez(file, model_id="ab", weights=weights, numbers=np.array([5]), offsets=np.zeros(1))
    assert AnswerabilityProbe.load(file, tiny_config(), "ab").leans == {}


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / PROBE_FILE).write_bytes(content)
    with pytest.raises(CorruptFile, match="no probe"):
        AnswerabilityProbe.load(tmp_path / PROBE_FILE, tiny_config(), "ab")


def test_a_fit_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression  # seconds, in every process that collects this file

    found, large = synthetic(), 1e3  # a large margin has a weight that no penalty matters to
    scaled = (found.queries - found.queries.mean(0)) / found.queries.std(0)
    inputs = np.column_stack([scaled, large * found.margins])
    reference = LogisticRegression(C=1 / PENALTY, class_weight="balanced", tol=1e-10, max_iter=10_000)
    reference.fit(inputs, ~found.answerable)
    probe = fit_probe("", found)
    weight = large * reference.coef_[0, -1]
    expected = reference.decision_function(inputs) / weight
    np.testing.assert_allclose(found.margins + probe.biases(found.queries, FIVE), expected, atol=2e-3)


def test_a_margin_that_says_the_opposite_does_not_turn_the_probe_round() -> None:
    found = synthetic()
    wrong = found._replace(margins=-found.margins)
    scores = wrong.margins + fit_probe("", wrong, 100.0).biases(found.queries, FIVE)
    assert Separation.of(scores, found.answerable).area > 0.9


def test_a_probe_separates_new_questions_better_than_the_logit() -> None:
    probe, new = fit_probe("", synthetic(), 100.0), synthetic(1)
    alone = Separation.of(new.margins, new.answerable).area
    assert Separation.of(new.margins + probe.biases(new.queries, FIVE), new.answerable).area > alone + 0.1
    rows = [QuestionRow(f"text {n}", "?", "a") for n in range(ROWS)]
    assert Separation.of(cross_validated(new, rows, 100.0), new.answerable).area > alone + 0.05


@pytest.mark.parametrize("most_wrong", [0.05, 0.2])
def test_a_limited_probe_refuses_the_share_of_answerable_questions_that_is_given(most_wrong: float) -> None:
    """For every number of memories that enough questions read; a single question belongs to the nearest."""
    found = of_one_and_five()
    found.memories[0] = 4
    probe = fit_probe("", found, 100.0)
    assert probe.numbers.tolist() == [1, 5]
    scores = found.margins + probe.biases(found.queries, found.memories)
    shifted = limited(probe, found, scores, most_wrong)
    refused = found.margins + shifted.biases(found.queries, found.memories) > 0
    for number in (1, 5):
        own = found.answerable & (found.memories == number)
        assert refused[own].mean() == pytest.approx(most_wrong, abs=0.03)


@pytest.mark.parametrize("most_lost", [0.05, 0.3])
def test_requests_are_refused_less_at_the_cost_of_the_questions_refusals_that_is_given(most_lost: float) -> None:
    found = synthetic()
    found = found._replace(margins=found.margins + 1.5)  # most of both kinds are refused
    fitted = fit_probe("", found, 100.0)
    scores = found.margins + fitted.biases(found.queries, FIVE)
    readout = of_requests(fitted, found, scores, most_lost)
    probe = replace(fitted, of_requests=readout)
    before, after = found.margins > 0, found.margins + probe.biases(found.queries, 0) > 0
    assert not (after & ~before).any()
    questions = ~found.answerable & before
    assert 1 - after[questions].mean() == pytest.approx(most_lost, abs=0.03)
    assert after[found.answerable].mean() < 0.5 * before[found.answerable].mean()


def test_what_differs_by_the_number_of_memories_alone_is_no_sign_of_an_answer() -> None:
    """Queries of one memory are shifted along the direction that tells the kinds apart."""
    found, plain = of_one_and_five(), synthetic()
    found.queries[found.memories == 1, 5] += 50
    scores = found.margins + fit_probe("", found, 100.0).biases(found.queries, found.memories)
    for number in (1, 5):
        own = found.memories == number
        assert Separation.of(scores[own], found.answerable[own]).area > 0.8
    assert (scores > 0).mean() == pytest.approx((~plain.answerable).mean(), abs=0.1)


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


def test_an_offset_is_that_of_the_number_of_memories_that_are_read() -> None:
    plain, strong = Subject.of(tiny_loaded()), Subject.of(probed({1: -90.0, 3: 90.0}))
    for distractors, offset in ((0, -90.0), (1, 0.0), (2, 90.0)):
        first, second = (margins(Evaluation(s, LANDS, ["memory"], distractors=distractors)) for s in (plain, strong))
        raised = [b.margin - a.margin for a, b in zip(first, second, strict=True)]
        assert raised == pytest.approx([offset] * len(LANDS), abs=1e-3)
        answers = Evaluation(strong, LANDS, ["memory"], distractors=distractors).run()["memory"].answers
        assert offset <= 0 or all(answer.startswith(SENTENCE[0]) for answer in answers)
