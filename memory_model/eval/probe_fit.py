"""Fit an `AnswerabilityProbe`: logistic regression of whether a question has an answer on the queries that ask it.

The refusal's margin and the queries of all memory heads are the inputs; the queries' weights are penalised, because
there are more of them than questions. The margin's weight turns the odds of having no answer into logits that are added
to the refusal's: an answer is refused where they are even, up to the constants of `limited`.

The readout of requests is fitted alike, with them in place of questions that have an answer, and no memories.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from memory3.errors import InvalidInput
from memory3.runtime.answerability import LARGEST_BIAS, AnswerabilityProbe
from memory_model.data.rows import QuestionRow
from memory_model.eval.refusing import Signals

PENALTY = 1000.0
"""On squared weights of queries of unit variance, beside a loss that is summed over the questions."""
FOLDS = 5
LEAST_QUESTIONS = 20
"""Of each kind, with an answer and without."""
LEAST_WEIGHT = 0.2
"""Of the margin beside the odds: a model whose margin says nothing refuses by its queries alone."""
_STEPS = 50
_SMALL = 1e-6


@dataclass(frozen=True)
class Separation:
    """How well a score tells questions without an answer from others.

    area: under the ROC curve, 0.5 for chance. refused: share of the unanswerable ones above the score that a share of
    0.05 of the answerable ones exceeds.
    """

    area: float
    refused: float

    @classmethod
    def of(cls, scores: np.ndarray, answerable: np.ndarray) -> Separation:
        """Of scores [n] that are higher where nothing answers."""
        without, others = scores[~answerable], scores[answerable]
        above = (without[:, None] > others).mean() + 0.5 * (without[:, None] == others).mean()
        return cls(float(above), float((without > np.quantile(others, 0.95)).mean()))


def fit_probe(model_id: str, signals: Signals, penalty: float = PENALTY) -> AnswerabilityProbe:
    """Fit the probe of a model. Raises InvalidInput for too few questions of a kind, or useless ones."""
    least = min(np.count_nonzero(signals.answerable), np.count_nonzero(~signals.answerable))
    if least < LEAST_QUESTIONS:
        raise InvalidInput(
            f"{least} questions of a kind are too few to fit on: give {LEAST_QUESTIONS} with an answer in what is read,"
            ' and as many with `"answerable": false`'
        )
    # Queries differ by the number of memories, too; that is no sign of an answer, so each number has its own mean.
    queries, numbers = signals.queries.astype(np.float64), _numbers(signals)
    levels = (_nearest(numbers, signals.memories)[:, None] == numbers).astype(np.float64)
    means = levels.T @ queries / levels.sum(0)[:, None]
    centred = queries - levels @ means
    deviation = centred.std(0) + _SMALL
    scaled = centred / deviation
    # There are fewer questions than queries, so weights are sums of the questions' own: n unknowns instead of `width`.
    values, vectors = np.linalg.eigh(scaled @ scaled.T)
    kept = values > _SMALL * values[-1]
    size = np.sqrt(values[kept])
    inputs = np.column_stack([vectors[:, kept] * size, levels, signals.margins])
    penalties = np.r_[np.full(len(size), penalty), np.full(len(numbers) + 1, _SMALL)]
    found = _logistic(inputs, ~signals.answerable, penalties)
    if (of_margin := float(found[-1])) < LEAST_WEIGHT:
        of_margin = LEAST_WEIGHT
        found = _logistic(inputs[:, :-1], ~signals.answerable, penalties[:-1], of_margin * signals.margins)
    of_queries, offsets = found[: len(size)] / of_margin, found[len(size) : len(size) + len(numbers)] / of_margin
    weights = scaled.T @ (vectors[:, kept] @ (of_queries / size)) / deviation
    return AnswerabilityProbe(
        model_id, weights.astype(np.float32), numbers, (offsets - means @ weights).astype(np.float32)
    )


def limited(probe: AnswerabilityProbe, signals: Signals, scores: np.ndarray, most_wrong: float) -> AnswerabilityProbe:
    """The probe with the offsets at which this share of the answerable questions is refused.

    scores: [n], as `cross_validated` returns them; those of the questions that it was fitted on are too good.
    """
    read = _nearest(probe.numbers, signals.memories)
    highest = [np.quantile(scores[signals.answerable & (read == n)], 1 - most_wrong) for n in probe.numbers]
    return replace(probe, offsets=probe.offsets - np.asarray(highest, np.float32))


def of_requests(probe: AnswerabilityProbe, signals: Signals, scores: np.ndarray, most_lost: float) -> np.ndarray:
    """`AnswerabilityProbe.of_requests`, by a probe that was fitted on requests, as `answerable`, and questions.

    scores: as for `limited`. most_lost: share of the questions' refusals that may become answers.
    """
    refused = ~signals.answerable & (signals.margins > 0)
    least = np.quantile(-scores[refused], 1 - most_lost) if refused.any() else 0.0
    return np.append(probe.weights, np.float32(probe.offsets[0] + least))


def cross_validated(signals: Signals, rows: Sequence[QuestionRow], penalty: float = PENALTY) -> np.ndarray:
    """Of every question the margin with the bias of a probe that was fitted without its text, float32 [n]."""
    fold = np.array([int(hashlib.sha256(row.knowledge.encode()).hexdigest(), 16) % FOLDS for row in rows])
    found = signals.margins.astype(np.float32)
    for number in range(FOLDS):
        own = fold == number
        if own.any():
            probe = fit_probe("", Signals(*(part[~own] for part in signals)), penalty)
            found[own] += probe.biases(signals.queries[own], signals.memories[own])
    return found


def _numbers(signals: Signals) -> np.ndarray:
    """Numbers of memories, rising, that enough questions of each kind read for an offset; or the most frequent one."""
    numbers, counts = np.unique(signals.memories, return_counts=True)
    kinds = [signals.memories[signals.answerable == kind] for kind in (True, False)]
    enough = [all((kind == number).sum() >= LEAST_QUESTIONS for kind in kinds) for number in numbers]
    return numbers[enough] if any(enough) else numbers[[counts.argmax()]]


def _nearest(numbers: np.ndarray, memories: np.ndarray) -> np.ndarray:
    """Of these numbers the one that is nearest to each."""
    return np.asarray(numbers[np.abs(memories[:, None] - numbers).argmin(1)])


def _logistic(
    inputs: np.ndarray, refused: np.ndarray, penalties: np.ndarray, fixed: np.ndarray | float = 0.0
) -> np.ndarray:
    """Weights [columns] by Newton's method; both kinds of rows count alike. fixed: what is added to the odds."""
    weight = np.where(refused, 0.5 / refused.sum(), 0.5 / (~refused).sum()) * len(refused)
    found = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        odds = 1 / (1 + np.exp(-np.clip(inputs @ found + fixed, -LARGEST_BIAS, LARGEST_BIAS)))
        slope = inputs.T @ (weight * (odds - refused)) + penalties * found
        curvature = (inputs * (weight * odds * (1 - odds))[:, None]).T @ inputs + np.diag(penalties)
        step = np.linalg.solve(curvature, slope)
        found -= step
        if np.abs(step).max() < _SMALL:
            break
    return found
