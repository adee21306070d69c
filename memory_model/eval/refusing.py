"""How readily a model refuses: the margins of its refusals, and what each bias would refuse.

An answer is refused if the refusal's first token is the likeliest one. Its margin is that token's logit minus the
highest other one; a bias b refuses every question with a margin above -b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from memory_model.eval.conditions import Evaluation
from memory_model.eval.scores import Mean
from memory_model.nn.generate import last_queries, prefilled

BIASES = [n / 20 for n in range(-60, 161)]


class Margin(NamedTuple):
    """margin: of the refusal's first token, in nats. answerable: something that was read answers it."""

    margin: float
    answerable: bool


@dataclass(frozen=True)
class Point:
    """What a bias refuses: rightly of the unanswerable questions, wrongly of the answerable ones, by file."""

    bias: float
    rightly: Mapping[str, Mean]
    wrongly: Mapping[str, Mean]


class Signals(NamedTuple):
    """What a model shows of n questions before their answers' first tokens.

    margins: float32 [n] of the refusal, without any bias. memories: int [n], how many were read. queries: float32
    [n, width] of the prompts' last tokens, of the memory heads. answerable: bool [n].
    """

    margins: np.ndarray
    memories: np.ndarray
    queries: np.ndarray
    answerable: np.ndarray


@torch.inference_mode()
def signals(run: Evaluation, progress: Callable[[int], None] = lambda _: None, *, condition: str = "memory") -> Signals:
    """Of every row of an evaluation, under a condition."""
    subject, gaps, counts, queries = run.subject, [], list[int](), []
    token = subject.refusal.first_token(run.loaded.chat)
    for rows, prompts, memories in run.batches(condition):
        engine, logits = prefilled(run.loaded.model, prompts, subject.prefix, memories, records=True)
        own = logits[:, token].clone()
        logits[:, token] = -torch.inf
        counts += memories.valid.any(-1).sum((1, 2)).tolist() if memories else [0] * len(rows)
        gaps.append((own - logits.max(-1).values).cpu().numpy())
        queries.append(last_queries(engine))
        progress(len(rows))
    answerable = np.array([row.answerable for row in run.rows])
    return Signals(np.concatenate(gaps), np.array(counts), np.concatenate(queries), answerable)


def margins(run: Evaluation, progress: Callable[[int], None] = lambda _: None) -> list[Margin]:
    """Of every row of an evaluation, under `memory`, with what the model's probe adds."""
    found, probe = signals(run, progress), run.subject.probe
    biased = found.margins + (probe.biases(found.queries, found.memories) if probe is not None else 0)
    return [Margin(float(gap), bool(row)) for gap, row in zip(biased, found.answerable, strict=True)]


def curve(questions: Mapping[str, Sequence[Margin]]) -> list[Point]:
    """Points of rising bias, by the name of a file of questions; some are answerable, and some are not."""

    def refused(bias: float, answerable: bool) -> dict[str, Mean]:
        of_kind = {name: [q.margin for q in found if q.answerable is answerable] for name, found in questions.items()}
        return {name: Mean.of([float(m > -bias) for m in own]) for name, own in of_kind.items() if own}

    return [Point(bias, refused(bias, False), refused(bias, True)) for bias in BIASES]


def chosen(points: Sequence[Point], most_wrong: float) -> Point:
    """The highest bias with at most so large a share of wrong refusals over all files; the lowest if there is none."""
    rows = sum(m.n for m in points[0].wrongly.values())
    wrong = [sum(m.mean * m.n for m in p.wrongly.values()) / rows for p in points]
    return [points[0], *(p for p, share in zip(points, wrong, strict=True) if share <= most_wrong)][-1]
