"""What belongs to an embedder and not to a model: which hits count as near, measured on questions with their texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memory3.errors import InvalidInput
from memory3.runtime.embedder import Embedder
from memory3.text.references import split
from memory3.text.tokenizer import Tokenizer
from memory3.text.words import DEFAULT_RANKING, QueryWords, Ranking, query_words, ranked, text_words
from memory_model.data.rows import QuestionRow
from memory_model.eval.retrieval import CANDIDATES, ReferenceIndex

WORD_WEIGHTS = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05)
TITLE_WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
KEPT_SHARE = 0.99
READ = 5
LEAST_QUESTIONS = 30


@dataclass(frozen=True)
class Calibration:
    """What was measured. recall: the share of questions with a right reference among the first five.

    recall_by_vector: without words. recall_by_default: with the default ranking. others_below: the share of the best
    wrong references that lie below the minimum score, as what an unanswerable question finds would. read: memories that
    a question reads on average.
    """

    minimum_score: float
    ranking: Ranking
    questions: int
    recall_by_vector: float
    recall_by_default: float
    recall: float
    others_below: float
    read: float


@dataclass(frozen=True)
class _Question:
    """Its words, and of the nearest references, best first: cosines, words, words of titles, and which are right.

    right_cosine: the best one of a right reference, near or not.
    """

    words: Sequence[int]
    cosines: np.ndarray
    texts: Sequence[np.ndarray]
    titles: Sequence[Sequence[int]]
    right: np.ndarray
    right_cosine: float

    def ranked(self, ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
        """Scores of the first that are read, best first, and which of them are right."""
        words = QueryWords(self.words, (), ranking)
        found = ranked(words, self.cosines.tolist(), self.texts, self.titles)[:READ]
        return np.array([score for _, score in found]), self.right[[index for index, _ in found]]

    def best_scores(self, ranking: Ranking) -> tuple[float, float]:
        """The best score of a right reference, by its cosine where it is not near, and of a wrong one."""
        every = ranked(QueryWords(self.words, (), ranking), self.cosines.tolist(), self.texts, self.titles)
        right = [score for index, score in every if self.right[index]]
        wrong = [score for index, score in every if not self.right[index]]
        return max([self.right_cosine, *right]), max([-1.0, *wrong])

    def reciprocal_rank(self, ranking: Ranking) -> float:
        """1 / rank of the first right one; 0 where none is read."""
        right = np.flatnonzero(self.ranked(ranking)[1])
        return 1 / (1 + int(right[0])) if len(right) else 0.0


def calibrate_retrieval(
    rows: Sequence[QuestionRow],
    embedder: Embedder,
    tokenizer: Tokenizer,
    reference_tokens: int,
    *,
    others: Sequence[str] = (),
    kept: float = KEPT_SHARE,
    progress: Callable[[int], None] = lambda _: None,
) -> Calibration:
    """Measure on questions with the texts that answer them, searched among all texts of the rows and `others`.

    The weights are those with the best mean reciprocal rank, of equal ones the smallest. kept: share of the right
    references that score above the minimum, and of those that are read within the largest drop. progress: called with
    the number of references that are embedded. Raises InvalidInput for too few questions.
    """
    asked = [row for row in rows if row.answerable]
    if len(asked) < LEAST_QUESTIONS:
        raise InvalidInput(f"{len(asked)} answerable questions are too few to measure on: give {LEAST_QUESTIONS}")
    texts = {row: split(row.knowledge, row.title, tokenizer.count, reference_tokens) for row in asked}
    distractors = [text for row in rows for text in row.distractors or ()]
    references = list(dict.fromkeys([*(text for of_row in texts.values() for text in of_row), *distractors, *others]))
    found = _searched(texts, ReferenceIndex.of(references, embedder, progress))

    choices = [Ranking(words, title) for words in WORD_WEIGHTS for title in TITLE_WEIGHTS]
    best = max(choices, key=lambda choice: round(sum(one.reciprocal_rank(choice) for one in found), 3))
    drops = [scores[0] - scores[right].max() for scores, right in (one.ranked(best) for one in found) if right.any()]
    ranking = replace(best, largest_drop=_rounded(np.quantile(drops, kept), math.ceil))
    right, wrong = np.array([one.best_scores(ranking) for one in found]).T
    least = _rounded(np.quantile(right, 1 - kept), math.floor)
    scores = [one.ranked(ranking)[0] for one in found]
    read = [np.count_nonzero(of_one >= of_one[0] - ranking.largest_drop) for of_one in scores]

    def recall(ranking: Ranking) -> float:
        return float(np.mean([one.ranked(ranking)[1].any() for one in found]))

    return Calibration(
        minimum_score=least,
        ranking=ranking,
        questions=len(found),
        recall_by_vector=recall(Ranking(0, 0)),
        recall_by_default=recall(DEFAULT_RANKING),
        recall=recall(ranking),
        others_below=float(np.mean(wrong < least)),
        read=float(np.mean(read)),
    )


def _searched(texts: dict[QuestionRow, list[str]], index: ReferenceIndex) -> list[_Question]:
    words = [text_words(reference) for reference in index.references]
    titles = [query_words(title) if body else [] for title, _, body in (r.partition("\n") for r in index.references)]
    numbers = {reference: number for number, reference in enumerate(index.references)}
    questions = [row.question for row in texts]
    found = []
    for row, vector in zip(texts, index.embedder.embed(questions), strict=True):
        cosines = index.vectors @ vector
        right = [numbers[reference] for reference in texts[row]]
        near = np.argsort(-cosines, kind="stable")[:CANDIDATES]
        found.append(
            _Question(
                query_words(row.question),
                cosines[near],
                [words[n] for n in near],
                [titles[n] for n in near],
                np.isin(near, right),
                float(cosines[right].max()),
            )
        )
    return found


def _rounded(number: float, to: Callable[[float], int]) -> float:
    return to(round(float(number) * 100, 6)) / 100
