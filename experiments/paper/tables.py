"""The paper's tables 7.1 and 7.3 with a model of one's own: `python -m experiments paper-tables`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from experiments.paper.scoring import SharedPrompts, common_prefix
from experiments.paper.tasks import PUBLISHED_MC2, TASKS, Question, is_right_number, questions_of, read_rows, scored
from memory3.errors import InvalidInput, MissingFile
from memory3.runtime.embedder import Embedder
from memory3.text.references import split
from memory_model import terminal
from memory_model.data.retrieved import overlaps
from memory_model.eval.retrieval import CANDIDATES, ReferenceIndex, query_of
from memory_model.eval.scores import Mean
from memory_model.eval.subject import Subject
from memory_model.eval.written import WrittenMemories
from memory_model.export.embedder_cache import open_embedder
from memory_model.nn.decoder import MemoryBatch
from memory_model.nn.serving import BatchedDecoder
from memory_model.terminal import PrecisionOption, console, count, progress_bar, use_threads

PROTOCOL = 1
"""Raised whenever prompts, retrieval or scores change: lines of another one are measured again."""
FILTERS = {"memory": 2 / 3, "memory_0.8": 0.8, "memory_all": None}
"""Conditions that read memories, and the share of a reference in the question above which it is left out (eq. 6)."""
CONDITIONS = ("none", *FILTERS)
_FACTS = ("knowledge_openbook_facts", "knowledge_worldtree_facts")
"""Facts that were written for the questions of ARC and OpenBookQA: an open book."""
_SEQUENCES, _LONGEST, _MOST_EXAMPLES = 8, 256, 1800


@dataclass(frozen=True)
class Line:
    """One question under one condition, as the file keeps it."""

    key: str
    task: str
    number: int
    condition: str
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, str, int, str]:
        """What is measured once."""
        return self.key, self.task, self.number, self.condition


def read_lines(path: Path) -> list[Line]:
    """The lines of a file that is there; the last one may be cut, where a run was stopped."""
    found = []
    for text in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            found.append(Line(**json.loads(text)))
        except (ValueError, TypeError):
            continue
    return found


class Textbooks:
    """References of textbooks, found by question, without those that the question itself contains."""

    def __init__(self, subject: Subject, index: ReferenceIndex) -> None:
        self.subject, self.index = subject, index
        self._ids: dict[int, list[int]] = {}

    @classmethod
    def open(cls, subject: Subject, folder: Path, embedder: Embedder, facts: bool, most: int | None) -> Textbooks:
        """Of all knowledge_*.jsonl of a folder; their vectors are kept in build/ for the next run."""
        loaded, texts = subject.loaded, list[str]()
        for path in sorted(folder.glob("knowledge_*.jsonl")):
            if path.stem not in _FACTS or facts:
                for row in read_rows(path)[:most]:
                    texts += split(
                        row["text"], row.get("title", ""), loaded.tokenizer.count, loaded.config.memory.reference_tokens
                    )
        if not texts:
            raise MissingFile(f"no knowledge_*.jsonl in {folder}")
        references = list(dict.fromkeys(texts))
        named = sha256("\0".join([embedder.embedder_id, *references]).encode()).hexdigest()[:16]
        kept = Path("build") / f"textbooks-{named}.npy"
        if kept.is_file():
            return cls(subject, ReferenceIndex(references, np.load(kept), embedder))
        with progress_bar("embedding textbooks", len(references)) as advance:
            index = ReferenceIndex.of(references, embedder, advance)
        kept.parent.mkdir(exist_ok=True)
        np.save(kept, index.vectors)
        return cls(subject, index)

    def found(self, question: Question, most: float | None) -> list[str]:
        """The nearest references, best first, as many as a chunk reads; most: share that a question may contain."""
        loaded = self.subject.loaded
        memory = loaded.config.memory
        query = query_of(question.query, loaded.tokenizer, memory.chunk_tokens)
        if not query:
            return []
        asked = " ".join([question.query, *(continuation for _, continuation in question.options)])
        own, chosen = loaded.tokenizer.encode(asked), list[str]()
        for number in self.index.nearest([query], CANDIDATES, dropping=False)[0]:
            if most is None or not overlaps(own, self._tokens(number), most):
                chosen.append(self.index.references[number])
            if len(chosen) == memory.memories_per_chunk:
                break
        return chosen

    def _tokens(self, number: int) -> list[int]:
        if number not in self._ids:
            text = self.index.references[number]
            self._ids[number] = self.subject.loaded.tokenizer.encode(text.partition("\n")[2] or text)
        return self._ids[number]


class Measuring:
    """Asks the questions of a group under several conditions."""

    def __init__(self, subject: Subject, books: Textbooks | None) -> None:
        self.subject, self.books = subject, books
        self._tokenizer = subject.loaded.tokenizer

    def ask(self, task: str, questions: Sequence[Question], missing: Mapping[str, set[int]]) -> Iterator[Line]:
        """Lines of the conditions' missing questions of a group, which have the same examples."""
        asked = [q for q in questions if any(q.number in numbers for numbers in missing.values())]
        if not asked:
            return
        generated = not asked[0].options
        options = {q.number: [self._tokens(q, *option) for option in q.options] for q in asked}
        prompts = {q.number: self._tokenizer.encode(q.examples + q.prompt) for q in asked}
        contexts = [c for own in options.values() for c, _ in own] if not generated else [*prompts.values()]
        shared = contexts[0][: min(common_prefix(contexts), min(map(len, contexts)) - 1)]
        longest = max(len(c) for c in contexts)
        longest += _LONGEST if generated else max(len(text) for own in options.values() for _, text in own)
        widest = max(len(c) for c in contexts) - len(shared)
        prefix, model = self.subject.prefix, self.subject.loaded.model
        sequences = min(_SEQUENCES, len(asked) if generated else max(len(own) for own in options.values()))
        prompt = SharedPrompts(BatchedDecoder(model, prefix, sequences, len(prefix) + longest + widest), shared)
        for condition, numbers in missing.items():
            own = [q for q in asked if q.number in numbers]
            if generated:
                for start in range(0, len(own), sequences):
                    part = own[start : start + sequences]
                    memories = [self._memories(q, condition) for q in part]
                    ids = [prompts[q.number] for q in part]
                    texts = prompt.greedy(ids, memories, self._tokenizer, "Question:", _LONGEST)
                    for q, text in zip(part, texts, strict=True):
                        yield Line("", task, q.number, condition, {"exact": is_right_number(text, str(q.right))})
            else:
                for q in own:
                    prompt.remember(self._memories(q, condition))
                    scores = scored(TASKS[task], q, prompt.likelihoods(options[q.number]))
                    yield Line("", task, q.number, condition, scores)

    def _tokens(self, question: Question, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Context and continuation, whose first space belongs to it, as lm-eval cuts them."""
        before = question.examples + context
        whole, ids = self._tokenizer.encode(before + continuation), self._tokenizer.encode(before.rstrip())
        return ids, whole[len(ids) :]

    def _memories(self, question: Question, condition: str) -> MemoryBatch | None:
        if condition == "none" or self.books is None:
            return None
        texts = self.books.found(question, FILTERS[condition])
        return self.subject.bank.read([texts]) if texts else None


def table_of(lines: Sequence[Line], conditions: Sequence[str], zero_shot: bool) -> Table:
    """Means in percent next to the paper's."""
    shots = "0-shot" if zero_shot else "few-shot"
    table = Table("task", "score", "rows", *conditions, "paper: without", "with", title=f"{shots}, percent; ±: error")
    for name, task in TASKS.items():
        own = [line for line in lines if line.task == name]
        for score in dict.fromkeys(s for line in own for s in line.scores):
            found = {c: [x.scores[score] for x in own if x.condition == c] for c in conditions}
            means = {c: Mean.of([100 * x for x in values]) for c, values in found.items() if values}
            cells = [f"{means[c].mean:.1f} ± {means[c].error:.1f}" if c in means else "" for c in conditions]
            paper = task.published_0_shot if zero_shot and task.examples else task.published
            paper = paper if score == task.score else (None, PUBLISHED_MC2.get(name) if score == "mc2" else None)
            rows = str(max(m.n for m in means.values()))
            table.add_row(name, score, rows, *cells, *("" if x is None else f"{x:.2f}" for x in paper))
    return table


def paper_tables(
    folder: Annotated[Path, typer.Argument(help="Benchmarks and textbooks as JSON lines (docs/data.md).")],
    out: Annotated[Path, typer.Option(help="JSON lines, one a question and condition.")] = Path("build/paper.jsonl"),
    tasks: Annotated[str, typer.Option(help="Names, separated by commas. Default: all whose file is there.")] = "",
    conditions: Annotated[str, typer.Option(help=f"Of {', '.join(CONDITIONS)}.")] = "none,memory",
    limit: Annotated[int | None, count(help="Rows of each task, drawn at random.")] = None,
    zero_shot: Annotated[bool, typer.Option(help="Without examples.")] = False,
    facts: Annotated[bool, typer.Option(help="Also search the facts that were written for ARC's questions.")] = False,
    references: Annotated[int | None, count(help="Only the first rows of each textbook.")] = None,
    model: terminal.ModelOption = None,
    adapter: terminal.AdapterOption = None,
    codec: terminal.CodecOption = None,
    embedder: terminal.EmbedderOption = None,
    precision: PrecisionOption = "auto",
    device: terminal.DeviceOption = "cpu",
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Score a model on the paper's benchmarks with and without memories of textbooks, next to the paper's results.

    Choices are compared by log likelihood as lm-eval does, GSM8k is generated. Examples before a question are read
    without memory. A reference is left out where the question contains more than two thirds of it (memory), 0.8
    (memory_0.8) or never (memory_all). A run that was stopped goes on: lines of the same model are kept.
    """
    use_threads(threads)
    names = [name.strip() for name in conditions.split(",") if name.strip()]
    if unknown := ", ".join(sorted({*names} - {*CONDITIONS})):
        raise InvalidInput(f"no condition is called {unknown}: choose from {', '.join(CONDITIONS)}")
    chosen = [name.strip() for name in tasks.split(",") if name.strip()]
    chosen = chosen or [name for name, task in TASKS.items() if (folder / f"{task.file}.jsonl").is_file()]
    subject = Subject.open(model, adapter, codec, device=device)
    subject.bank.written = WrittenMemories(subject.loaded)
    fits = _fits(subject)
    asked = {name: questions_of(name, folder, limit, zero_shot, fits) for name in chosen}
    books = None
    if {*names} & {*FILTERS}:
        opened = open_embedder(embedder, subject.loaded.folder.embedder)
        books = Textbooks.open(subject, folder, opened, facts, references)
    about = {"protocol": PROTOCOL, "zero_shot": zero_shot, "facts": facts, "references": references, **subject.about()}
    out.parent.mkdir(parents=True, exist_ok=True)
    wanted = {name: {q.number for q in own} for name, own in asked.items()}
    with subject.computing(precision) as computed, out.open("a", encoding="utf-8") as file:
        key = sha256(json.dumps(about | {"precision": computed}, sort_keys=True).encode()).hexdigest()[:16]
        lines = [line for line in read_lines(out) if line.key == key and line.condition in names]
        lines = [line for line in lines if line.number in wanted.get(line.task, ())]
        done = {line.identity for line in lines}
        measuring = Measuring(subject, books)
        with progress_bar("questions", len(names) * sum(map(len, asked.values()))) as advance:
            advance(len(done))
            for name, questions in asked.items():
                for _, group in groupby(questions, lambda q: q.group):
                    own = list(group)
                    missing = {c: {q.number for q in own if (key, name, q.number, c) not in done} for c in names}
                    for line in measuring.ask(name, own, missing):
                        lines.append(Line(key, line.task, line.number, line.condition, line.scores))
                        file.write(json.dumps(vars(lines[-1])) + "\n")
                        file.flush()
                        advance()
    console.print(table_of(lines, names, zero_shot))


def _fits(subject: Subject) -> Callable[[str], bool]:
    return lambda text: subject.loaded.tokenizer.count(text) <= _MOST_EXAMPLES
