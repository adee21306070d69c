"""Questions about prose as training rows of the task `articles`: published sets and everyday notes, with refusals.

`refusal_training` is for `memory-model fit-refusal`: some of these rows, each with the references that are read next to
it, and rows about countries, records and introductions of tuning; nearly half of them are unanswerable. What a probe
has not seen the kind of, it refuses too often or too rarely.

A twin is a paragraph without the sentence that answers one of its questions: what remains answers the others. Where a
text has one question only, the refused one is a question of another text that has most words in common with it. Notes
are few, so each listing of them has values of its own: what is learnt is to copy, not this one note.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from experiments.questions.countries import holders, twin_rows, unanswerable_rows
from experiments.questions.paragraphs import RowData, read_paragraphs, row_data, write_sets
from experiments.questions.records import record_rows
from experiments.questions.values import redrawn
from memory3.text.references import split
from memory3.text.refusal import SENTENCE
from memory3.text.tokenizer import Tokenizer
from memory_model.data import factbook
from memory_model.data.tasks import INTRODUCTIONS
from memory_model.models.folder import ModelFolder
from memory_model.models.tensor_files import read_json
from memory_model.terminal import console

NOTES = Path("data/everyday_training.json")
_PART_TOKENS = 126
_DEVELOPMENT = 100  # rows of a development file
_QUESTIONS = 6  # of a part of a paragraph
_REFUSED = 4
_REVIEWS_A_PAGE = 9  # groups of reviews that are read next to each other
_NOTES_TIMES = 16  # how often notes are listed, each time in other versions: there are few
_TWIN = 0.5  # share of the notes that are listed as one of their twins
_NEAR_ROWS = 60  # rows within which two passages may be read next to each other
_ASKED = 200  # rows about paragraphs and notes with their neighbours, half of them refused
_ASKED_NATURAL = 60  # the same of Natural Questions
_ASKED_COUNTRIES, _ASKED_RECORDS, _ASKED_INTRODUCTIONS = 50, 60, 90  # the first with as many twins
_COUNTRIES = 60  # that those are about and read
_INTRODUCTIONS_READ = 120  # passages that those are about and read
_NEIGHBOURS = 4
_NEAR_TEXTS = 8  # texts before and after one that its neighbours are drawn from
_ADVICE = "docs/data.md says where published sets come from"


class _Set(NamedTuple):
    """A file in SQuAD's form. twins: share of its parts that have one; held: articles for development."""

    file: str
    twins: float
    held: int
    kept: float = 1.0
    group: Callable[[int, str], str] = lambda _, title: title


_WIKIPEDIA = _Set("squadshifts_wiki.json", 0.5, 4)
_REVIEWS = _Set(
    "squadshifts_amazon.json", 0.4, 8, 0.6, lambda n, _: f"Customer reviews, page {n // _REVIEWS_A_PAGE + 1}"
)
_SQUAD = (_Set("squad2_dev_12articles.json", 0.3, 0), _Set("xquad_en.json", 0.3, 0))


class _Rows:
    """Rows for training and, by set, for development; `count` counts the tokens of a text."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self.count, self.random = count, random.Random(5)
        self.training: list[RowData] = []
        self.natural: list[RowData] = []  # those of Natural Questions
        self.development: dict[str, list[RowData]] = defaultdict(list)

    def parts(self, title: str, text: str) -> list[str]:
        """Parts of a text that fit a reference with its title."""
        if self.count(f"{title}\n{text}") <= _PART_TOKENS:
            return [text]
        return [part.partition("\n")[2] for part in split(text, title, self.count, _PART_TOKENS)]

    def add_set(self, folder: Path, each: _Set) -> None:
        """All paragraphs of a file, those of the held articles for development."""
        articles: dict[str, list[dict[str, Any]]] = {}
        for paragraph in read_paragraphs(folder / each.file):
            articles.setdefault(paragraph["article"], []).append(paragraph)
        groups = list(articles.items())
        if each is _REVIEWS:
            self.random.shuffle(groups)
        for number, (title, paragraphs) in enumerate(groups):
            for paragraph in paragraphs:
                text, questions = paragraph["paragraph"], paragraph["questions"]
                if number < each.held:
                    name = title if each is _WIKIPEDIA else "Customer review"
                    self._hold(Path(each.file).stem, name, text, questions)
                elif each.kept == 1 or self.random.random() < each.kept:
                    self._add(each.group(number, title), text, questions, each.twins)

    def _hold(self, name: str, title: str, text: str, questions: Sequence[dict[str, Any]]) -> None:
        for part in self.parts(title, text):
            for question in questions:
                if question["answers"][0] in part:
                    self.development[name].append(_row(title, part, question["question"], question["answers"]))
                    break

    def _add(self, title: str, text: str, questions: Sequence[dict[str, Any]], twins: float) -> None:
        for part in filter(str.strip, self.parts(title, text)):
            asked = [q for q in questions if q["answers"] and q["answers"][0] in part][:_QUESTIONS]
            if not asked:
                continue
            refused = [q for q in questions if not q["answers"] and q["plausible"] and q["plausible"][0] in part]
            self.training += [_row(title, part, q["question"], q["answers"]) for q in asked]
            self.training += [_refused(title, part, q["question"], q["plausible"][0]) for q in refused[:_REFUSED]]
            if self.random.random() < twins and len(sentences(part)) >= 3:
                self.training += self._twin(f"{title} (extract)", part, asked)

    def _twin(self, title: str, part: str, asked: Sequence[dict[str, Any]]) -> list[RowData]:
        """Rows about a part without what answers one of its questions; none where that is not possible."""
        gone = self.random.choice(asked)
        answer = gone["answers"][0]
        left = " ".join(s for s in sentences(part) if answer not in s)
        rest = [q for q in asked if q["answers"][0] in left]
        if not rest or answer.lower() in left.lower() or self.count(left) <= 20:
            return []
        rows = [_row(title, left, q["question"], q["answers"][:1]) for q in rest[:3]]
        return [*rows, _refused(title, left, gone["question"], self.random.choice(rest)["answers"][0])]

    def add_natural_questions(self, path: Path) -> None:
        """Questions to a search engine with the passages that answer; every tenth for development."""
        rows = read_json(path, list, _ADVICE)
        words = [_words(f"{r['title']} {r['knowledge']}") for r in rows]
        weight = {w: math.log(len(rows) / n) for w, n in Counter(w for own in words for w in own).items()}
        fits = [self.count(f"{r['title']}\n{r['knowledge']}") <= 128 for r in rows]
        for number, row in enumerate(rows):
            if not fits[number]:
                continue
            item = _row(row["title"], row["knowledge"], row["question"], [row["right_answer"], *row["answers"]])
            if number % 10 == 0:
                self.development[path.stem].append(item)
                continue
            self.natural.append(item)
            wanted = _words(row["question"])
            near = max(
                (math.fsum(weight.get(w, 0) for w in wanted & words[n]), n)
                for n in range(len(rows))
                if n != number and rows[n]["title"] != row["title"]
            )[1]
            other = rows[near]
            text = f"{other['title']} {other['knowledge']}".lower()
            answers = (row["right_answer"], *row["answers"])
            apart = near % 10 and abs(near - number) > _NEAR_ROWS and fits[near]
            if apart and not any(answer.lower() in text for answer in answers):
                self.natural.append(
                    _refused(other["title"], other["knowledge"], row["question"], other["right_answer"])
                )
        self.training += self.natural

    def add_notes(self, path: Path) -> None:
        """Everyday notes and their twins, several times; those of a kind next to each other."""
        by_kind: dict[str, dict[str, list[RowData]]] = defaultdict(lambda: defaultdict(list))
        for row in read_json(path, list, "it is in this repository"):
            by_kind[row["kind"]][row["knowledge"]].append(row)
        kinds = [[_note_rows(note, own) for note, own in notes.items()] for notes in by_kind.values()]
        for time in range(_NOTES_TIMES):
            # One version of each note: a twin beside its original would be refused although another memory answers.
            self.random.shuffle(kinds)
            for notes in kinds:
                for whole, *twins in self.random.sample(notes, len(notes)):
                    rows = self.random.choice(twins) if twins and self.random.random() < _TWIN else whole
                    listed = redrawn(rows, self.random) if time else rows
                    self.training += [row | {"article": f"Notes, listing {time + 1}"} for row in listed]


def _note_rows(note: str, own: Sequence[RowData]) -> list[list[RowData]]:
    """Rows of a note, and of each of its twins."""
    title, _, text = note.partition("\n")
    answered = [row for row in own if row["answerable"]]
    first = answered[0]["right_answer"]
    found = [[_row(title, text, r["question"], [r["right_answer"], *r["answers"]]) for r in answered]]
    found[0] += [_refused(title, text, r["question"], first) for r in own if not r["answerable"]]
    for sentence in sentences(text):
        left = " ".join(s for s in sentences(text) if s != sentence)
        gone = [r for r in answered if _holds(sentence, r)]
        rest = [r for r in answered if r not in gone and _holds(left, r)]
        gone = [r for r in gone if not _holds(left, r)]
        if gone and rest:
            rows = [_row(title, left, r["question"], [r["right_answer"], *r["answers"]]) for r in rest]
            found.append(rows + [_refused(title, left, r["question"], rest[0]["right_answer"]) for r in gone])
    return found


def refusal_rows(rows: _Rows) -> list[RowData]:
    """What a probe of refusals is fitted on, of every kind of question that tuning has."""
    countries = [d for d in factbook.read_jsonl(factbook.FACTBOOK) if not factbook.held_out(d["key"])]
    held = holders(rows.random.sample(countries, _COUNTRIES), rows.count)
    lacking = unanswerable_rows(held, _ASKED_COUNTRIES)
    found = with_neighbours(rows.training, _ASKED, rows.random)
    found += with_neighbours(rows.natural, _ASKED_NATURAL, rows.random)
    found += [*lacking, *twin_rows(lacking, held), *record_rows("training", count=_ASKED_RECORDS)]
    found += introduction_rows(rows.count, rows.random)
    rows.random.shuffle(found)
    return found


def introduction_rows(count: Callable[[str], int], rng: random.Random) -> list[RowData]:
    """Questions about introductions of Wikipedia that tuning has; a third of them reads five others."""
    asked = factbook.read_jsonl(INTRODUCTIONS, ("question", "answer", "text"))
    drawn = rng.sample(sorted({row["text"] for row in asked}), 3 * _INTRODUCTIONS_READ)
    pool = [text for text in drawn if count(text) <= _PART_TOKENS][:_INTRODUCTIONS_READ]
    found = []
    for n, row in enumerate(rng.sample([row for row in asked if row["text"] in pool], _ASKED_INTRODUCTIONS)):
        others = rng.sample([text for text in pool if text != row["text"]], _NEIGHBOURS + 1)
        if n % 3 < 2:
            found.append(row_data(row["text"], row["question"], row["answer"], others[1:]))
        else:
            found.append(row_data(others[0], row["question"], SENTENCE, others[1:]) | {"answerable": False})
    return found


def with_neighbours(rows: Sequence[RowData], count: int, rng: random.Random) -> list[RowData]:
    """Rows, half of them refused, each with texts that stand near its own as distractors.

    Of a refused one none of these answers its question, nor is it another version of the row's text.
    """
    texts = list(dict.fromkeys((row["title"], row["knowledge"]) for row in rows))
    number = {text: n for n, text in enumerate(texts)}
    answering: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row["answerable"]:
            answering[row["question"]].add(row["knowledge"])
    kinds = [[row for row in rows if row["answerable"] is answerable] for answerable in (True, False)]
    found = []
    for row in (one for kind in kinds for one in rng.sample(kind, min(count // 2, len(kind)))):
        own, at = set(sentences(row["knowledge"])), number[row["title"], row["knowledge"]]
        near = [t for t in texts[max(0, at - _NEAR_TEXTS) : at + _NEAR_TEXTS + 1] if own.isdisjoint(sentences(t[1]))]
        near = [(title, text) for title, text in near if text not in answering[row["question"]]]
        if len(near) >= _NEIGHBOURS:
            others = [f"{title}\n{text}" for title, text in rng.sample(near, _NEIGHBOURS)]
            whole = {"title": "", "knowledge": f"{row['title']}\n{row['knowledge']}", "distractors": others}
            found.append({**row, **whole})
    return found


def sentences(text: str) -> list[str]:
    """Sentences and lines of a text."""
    return [s for s in re.split(r"(?<=[.!?;])\s+|\n", text) if s.strip()]


def _holds(text: str, row: RowData) -> bool:
    return any(answer in text for answer in (row["right_answer"], *row["answers"]))


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]{3,}", text.lower()))


def _row(title: str, text: str, question: str, answers: Sequence[str]) -> RowData:
    row = {"title": title, "knowledge": text, "question": question, "right_answer": answers[0]}
    return row | {"answers": list(answers[1:]), "answerable": True, "plausible": ""}


def _refused(title: str, text: str, question: str, plausible: str) -> RowData:
    row = _row(title, text, question, [SENTENCE])
    return row | {"answerable": False, "plausible": plausible}


def prose_questions(
    folder: Annotated[Path, typer.Argument(envvar="MEMORY3_DATA", help="Folder of published sets (docs/data.md).")],
    out: Annotated[Path, typer.Option(help="Folder for prose_training.json and the development files.")] = Path(
        "build/questions"
    ),
    model: Annotated[str | None, typer.Option(help="Model folder whose tokens are counted.")] = None,
    notes: Annotated[Path, typer.Option(help="Everyday notes with questions.")] = NOTES,
) -> None:
    """Make the questions of the task `articles` from published sets and everyday notes, with unanswerable twins.

    Reads SQuADShifts (Wikipedia, Amazon), SQuAD 2.0, XQuAD and Natural Questions, as docs/data.md names the files.
    """
    checkpoint = ModelFolder.open(model).checkpoint
    rows = _Rows(Tokenizer.from_json(checkpoint.tokenizer_json, checkpoint.special_tokens).count)
    rows.add_set(folder, _WIKIPEDIA)
    rows.add_set(folder, _REVIEWS)
    for each in _SQUAD:
        rows.add_set(folder, each)
    rows.add_natural_questions(folder / "nq_gold_train.json")
    rows.add_notes(notes)
    sets = {"prose_training": rows.training}
    sets["refusal_training"] = refusal_rows(rows)
    for name, held in rows.development.items():
        random.Random(3).shuffle(held)
        sets[f"{name}_dev"] = held[:_DEVELOPMENT]
    counts = write_sets(out, sets)
    console.print(", ".join(f"{json.dumps(count)} rows in {name}" for name, count in counts.items()))
