"""How readily a model refuses: the margins of its refusals, and what each bias would refuse.

An answer is refused if the refusal's first token is the likeliest one. Its margin is that token's logit minus the
highest other one; a bias b refuses every question with a margin above -b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from memory_model.errors import InvalidInput
from memory_model.eval.conditions import Evaluation
from memory_model.eval.scores import Mean
from memory_model.nn.generate import prefilled

STEP, LOWEST, HIGHEST = 0.25, -3.0, 8.0


@dataclass(frozen=True)
class Question:
    """margin: of the refusal's first token, in nats. answerable: something that was read answers it."""

    margin: float
    answerable: bool


@dataclass(frozen=True)
class Point:
    """What a bias refuses: rightly of the unanswerable questions, wrongly of the answerable ones, by file."""

    bias: float
    rightly: Mapping[str, Mean]
    wrongly: Mapping[str, Mean]

    @property
    def most_wrong(self) -> float:
        """The highest share of wrong refusals of any file."""
        return max(mean.mean for mean in self.wrongly.values())


@torch.inference_mode()
def margins(run: Evaluation, condition: str, progress: Callable[[int], None] = lambda _: None) -> list[Question]:
    """Of every row of an evaluation, under `memory` or `memory_exact`."""
    subject, found = run.subject, []
    token = subject.refusal.first_token(run.loaded.tokenizer)
    for rows, prompts, memories in run.batches(condition):
        _, logits = prefilled(run.loaded.model, prompts, subject.prefix, memories)
        own = logits[:, token].clone()
        logits[:, token] = -torch.inf
        gaps = (own - logits.max(-1).values).tolist()
        found += [Question(gap, row.answerable) for gap, row in zip(gaps, rows, strict=True)]
        progress(len(rows))
    return found


def curve(questions: Mapping[str, Sequence[Question]]) -> list[Point]:
    """Points of rising bias, by the name of a file of questions; raises InvalidInput without both kinds."""
    kinds = [
        {name: [q.margin for q in found if q.answerable is answerable] for name, found in questions.items()}
        for answerable in (False, True)
    ]
    if not all(any(margins.values()) for margins in kinds):
        raise InvalidInput("calibrating needs questions that nothing answers and questions that something does")

    def refused(margins: Mapping[str, Sequence[float]], bias: float) -> dict[str, Mean]:
        return {name: Mean.of([float(m > -bias) for m in own]) for name, own in margins.items() if own}

    biases = (LOWEST + n * STEP for n in range(round((HIGHEST - LOWEST) / STEP) + 1))
    return [Point(bias, *(refused(margins, bias) for margins in kinds)) for bias in biases]


def chosen(points: Sequence[Point], most_wrong: float) -> Point:
    """The highest bias with at most so large a share of wrong refusals in every file; the lowest if there is none."""
    return max((p for p in points if p.most_wrong <= most_wrong), key=lambda p: p.bias, default=points[0])
