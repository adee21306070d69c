"""The measured sections of docs/quality.md: a JSON line each, measured again when what they follow from changed.

A file may hold a part of the sections, so an interrupted run goes on with the next one. The section of prose is how
well a model still predicts ordinary text without memory: what tuning must not cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from pydantic import TypeAdapter, ValidationError

from experiments.answers.published import ARTICLES, HALUEVAL, QuestionsOption
from experiments.corpus.preparing import write_rows
from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput
from memory3.text.words import STEM
from memory_model import terminal
from memory_model.data import factbook
from memory_model.data.rows import QuestionRow, open_rows
from memory_model.eval.conditions import EVALUATOR, PAIRS, Evaluation, Scores, compared, result_of
from memory_model.eval.report import open_knowledge_base, scored, show
from memory_model.eval.retrieval import CANDIDATES
from memory_model.eval.scores import Mean, Paired
from memory_model.eval.subject import PLAIN, Subject
from memory_model.export.embedder_cache import open_embedder
from memory_model.nn.generate import read
from memory_model.terminal import PrecisionOption, console, progress_bar, write_json

MEASURED = Path("build/quality.jsonl")
PROSE = "prose"
GIVEN = ("memory", "rag_five", "rag", "none")
RETRIEVED = ("memory_retrieved", "rag_retrieved")
WINDOW_TOKENS = 512
FACTS, INTRODUCTIONS = "factbook.jsonl", "introductions_documents.jsonl"


@dataclass(frozen=True)
class Section:
    """One set of questions under some conditions. part: "test" or "dev".

    file, knowledge_base: in the folder of the data; published: the file is in the folder of published sets.
    answerable: only rows that are, or are not; None: all.
    """

    name: str
    part: str
    file: str
    conditions: tuple[str, ...]
    rows: int
    knowledge_base: str = ""
    answerable: bool | None = None
    published: bool = False

    @property
    def label(self) -> str:
        """NAME/PART."""
        return f"{self.name}/{self.part}"

    def path(self, data: Path, published: Path | None = None) -> Path | None:
        """Its file; None where the folder of published sets is needed and not given."""
        folder = published if self.published else data
        return folder / self.file if folder else None

    def read(self, path: Path, limit: int | None = None) -> list[QuestionRow]:
        """Its rows in the file; raises MissingFile, CorruptFile, InvalidInput."""
        rows = [r for r in open_rows(path) if self.answerable in (None, r.answerable)]
        return rows[: min(self.rows, limit or self.rows)]


SECTIONS = (
    Section("same_field", "test", "heldout_hard.json", GIVEN, 150),
    Section("facts", "test", "heldout_questions.json", (*GIVEN, "memory_exact"), 200),
    Section("unanswerable", "test", "unanswerable.json", ("memory", "rag_five"), 150),
    Section("unanswerable_twins", "test", "unanswerable_twins.json", ("memory", "rag_five"), 150),
    Section("records", "test", "records_test.json", GIVEN, 100, answerable=True),
    Section("records_unanswerable", "test", "records_test.json", ("memory", "rag_five"), 50, answerable=False),
    Section("introductions", "test", "introductions_test.json", GIVEN, 187),
    Section("halueval", "dev", HALUEVAL, (*GIVEN, "memory_exact"), 100, published=True),
    Section("facts_retrieved", "test", "heldout_questions.json", RETRIEVED, 100, FACTS),
    Section("same_field_retrieved", "test", "heldout_hard.json", RETRIEVED, 150, FACTS),
    Section("introductions_retrieved", "test", "introductions_test.json", RETRIEVED, 187, INTRODUCTIONS),
    Section("introductions", "dev", "introductions_dev.json", GIVEN, 100),
    Section("same_field", "dev", "hard_dev.json", GIVEN, 60),
    Section("records", "dev", "records_dev.json", GIVEN, 100, answerable=True),
    Section("records_unanswerable", "dev", "records_dev.json", ("memory", "rag_five"), 50, answerable=False),
    Section("unanswerable", "dev", "unanswerable_dev.json", ("memory", "rag_five"), 60),
    Section("unanswerable_twins", "dev", "unanswerable_dev_twins.json", ("memory", "rag_five"), 60),
    Section("facts", "dev", "facts_dev.json", GIVEN, 100),
)
"""What `python -m experiments quality` measures, the most important first."""


@dataclass(frozen=True)
class Measured:
    """A line of the file. key: everything that the numbers follow from; about: what the page says of the model."""

    name: str
    part: str
    key: dict[str, Any]
    date: str
    seconds: float
    rows: int
    conditions: dict[str, dict[str, Mean]]
    pairs: dict[str, dict[str, Paired]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        part: str,
        key: dict[str, Any],
        started: float,
        scores: dict[str, Scores],
        about: dict[str, Any],
        pairs: Sequence[tuple[str, str]] = PAIRS,
    ) -> Measured:
        """Of the scores of a run that began at `started` (time.monotonic). pairs: conditions to compare."""
        rows = len(next(iter(scores.values())).f1)
        means = {condition: found.means() for condition, found in scores.items()}
        shown: dict[str, Any] = {name: about[name] for name in ("model", "memory_bytes") if name in about}
        date, seconds = time.strftime("%Y-%m-%d"), round(time.monotonic() - started, 1)
        return cls(name, part, key, date, seconds, rows, means, compared(scores, pairs), shown)

    @property
    def label(self) -> str:
        """NAME/PART."""
        return f"{self.name}/{self.part}"

    def mean(self, condition: str, score: str) -> Mean | None:
        """A score, or None where it was not measured."""
        return self.conditions.get(condition, {}).get(score)

    def paired(self, first: str, second: str, score: str) -> Paired | None:
        """A comparison, or None where it was not measured."""
        return self.pairs.get(f"{first} - {second}", {}).get(score)


def selected(
    names: str, data: Path, natural: Path | None = None, published: Path | None = None
) -> list[tuple[Section, Path]]:
    """The sections of these names (comma-separated; "" for all) whose files exist, each with its file.

    A name takes both parts, NAME/dev or NAME/test one. natural: a file of rows that becomes a section "natural".
    Raises InvalidInput for a section that there is not.
    """
    paths = ((s, s.path(data, published)) for s in SECTIONS)
    found = [(s, path) for s, path in paths if path and path.is_file()]
    if natural is not None:
        found.append((Section("natural", "test", natural.name, (*GIVEN, "memory_exact"), 100), natural))
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    known = {PROSE} | {n for s, _ in found for n in (s.name, s.label)}
    if unknown := wanted - known:
        raise InvalidInput(f"no section {', '.join(sorted(unknown))}: choose from {', '.join(sorted(known))}")
    return [(s, path) for s, path in found if not wanted or wanted & {s.name, s.label}]


def key_of(
    section: Section,
    path: Path,
    about: dict[str, Any],
    data: Path,
    rows: int,
    embedder_id: str,
    order: Sequence[float | None],
    **settings: Any,
) -> dict[str, Any]:
    """What a section's numbers follow from.

    path: its file; data: folder of its knowledge base; about: `Subject.about`; order: the numbers of the
    folder's retrieval; settings: distractors, seed, ….
    """
    key = {
        "evaluator": EVALUATOR,
        **{name: about[name] for name in ("model_id", "codec_id", "template", "refusal")},
        "data": file_key(path),
        "rows": rows,
        "conditions": list(section.conditions),
        "answerable": section.answerable,
        **settings,
    }
    if section.knowledge_base:
        key |= {
            "embedder_id": embedder_id,
            "knowledge_base": file_key(data / section.knowledge_base),
            "order": [STEM, *order],
        }
    return key


def file_key(path: Path) -> str:
    """The beginning of a file's SHA-256."""
    return file_sha256(path)[:16]


def read_measured(path: Path) -> dict[str, Measured]:
    """Sections by NAME/PART, none where there is no file; raises CorruptFile naming the line."""
    found = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines() if path.is_file() else [], 1):
        try:
            one = TypeAdapter(Measured).validate_json(line)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            where = f"{path}, line {number}: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
            raise CorruptFile(f"{where}; delete the line and measure again") from error
        found[one.label] = one
    return found


def keep(path: Path, measured: Measured) -> None:
    """Add a line to the file, or replace the section's; the file is replaced as a whole."""
    write_measured(path, read_measured(path) | {measured.label: measured})


def write_measured(path: Path, found: dict[str, Measured]) -> None:
    """Write sections by NAME/PART, in the order of `SECTIONS`."""
    order = [s.label for s in SECTIONS]
    lines = sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    write_rows(path, [measured for _, measured in lines])


def is_kept(path: Path, label: str, key: dict[str, Any]) -> bool:
    """Whether `path` has the section NAME/PART with an equal key."""
    found = read_measured(path).get(label)
    return found is not None and found.key == key


def windows(texts: Sequence[str], encode: Callable[[str], list[int]], count: int) -> list[list[int]]:
    """The first `count` full windows of WINDOW_TOKENS tokens of the texts, which follow with two line breaks between.

    Raises InvalidInput when the texts do not fill one window.
    """
    tokens = encode("\n\n".join(texts))
    whole = min(count, len(tokens) // WINDOW_TOKENS)
    if not whole:
        raise InvalidInput(f"the prose has {len(tokens)} tokens, one window needs {WINDOW_TOKENS}: give more text")
    return [tokens[n * WINDOW_TOKENS : (n + 1) * WINDOW_TOKENS] for n in range(whole)]


@torch.inference_mode()
def window_loss(subject: Subject, window: Sequence[int]) -> float:
    """Mean negative log likelihood (nats a token) of all tokens of a window but the first.

    The text follows the subject's prefix (a plain model: BOS) and stands where text stands when memories are
    read, after the interval of reference positions.
    """
    loaded = subject.loaded
    prefix, ids = subject.prefix or (loaded.tokenizer.bos_id,), torch.tensor([window])
    hidden = read(loaded.model, ids, prefix, None, None)
    return float(F.cross_entropy(loaded.model.head(hidden[0, :-1]).float(), ids[0, 1:]))


def measure_prose(
    tuned: Subject, base: Subject, prose: Path, out: Path, count: int, progress: Callable[[int], None]
) -> None:
    """The section of prose into `out`, unless it is there. prose: JSONL of {text} that no training has.

    progress: called with the number of windows, two times `count` in all.
    """
    texts = [document["text"] for document in factbook.read_jsonl(prose, ("text",))]
    cut = windows(texts, tuned.loaded.tokenizer.encode, count)
    key = {"evaluator": EVALUATOR, **{k: tuned.about()[k] for k in ("model_id", "codec_id")}}
    key |= {"data": file_key(prose), "rows": len(cut), "precision": "float32"}
    if is_kept(out, f"{PROSE}/test", key):
        return
    started, losses = time.monotonic(), dict[str, list[float]]()
    for name, subject in (("tuned", tuned), ("base", base)):
        for window in cut:
            losses.setdefault(name, []).append(window_loss(subject, window))
            progress(1)
    means, seconds = {name: {"nll": Mean.of(v)} for name, v in losses.items()}, round(time.monotonic() - started, 1)
    pairs = {"tuned - base": {"nll": Paired.of(losses["tuned"], losses["base"])}}
    keep(out, Measured(PROSE, "test", key, time.strftime("%Y-%m-%d"), seconds, len(cut), means, pairs))


def quality(
    out: Annotated[Path, typer.Option(help="JSONL to write; sections it has are kept.")] = MEASURED,
    natural: Annotated[Path | None, typer.Option(help="Further section: natural questions, as for `eval`.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of the question sets.")] = Path("data"),
    limit: Annotated[int | None, typer.Option(min=1, help="Most rows per section.")] = None,
    sections: Annotated[str, typer.Option(help="Comma-separated NAME, NAME/test or NAME/dev; default: all.")] = "",
    model: terminal.ModelOption = None,
    adapter: terminal.AdapterOption = None,
    codec: terminal.CodecOption = None,
    precision: PrecisionOption = "auto",
    published: QuestionsOption = None,
) -> None:
    """Measure all sections of docs/quality.md, the most important first; run it again to resume.

    A section is kept if it was measured with the same evaluator, model, codec, prompt, data, sizes and retrieval. All
    answers are written to the folder `answers` next to the output. `make quality` writes the page.
    """
    todo, subject = selected(sections, data, natural, published), Subject.open(model, adapter, codec)
    about = subject.about()
    least, ranking = subject.loaded.folder.calibrated_for(None)
    order = [*vars(ranking).values(), least]
    opened = cache(lambda: open_embedder(None, subject.loaded.folder.embedder))
    open_base = cache(lambda name: open_knowledge_base(subject, data / name, opened()))
    with subject.computing(precision) as computed:
        settings = {"distractors": 4, "seed": 0, "candidates": CANDIDATES, "precision": computed}
        for section, path in todo:
            rows, base, started = section.read(path, limit), None, time.monotonic()
            embedder_id = opened().vectors_id if section.knowledge_base else ""
            key = key_of(section, path, about, data, len(rows), embedder_id, order, **settings)
            if is_kept(out, section.label, key):
                console.print(f"{section.label}: kept from an earlier run")
                continue
            if section.knowledge_base:
                base = open_base(section.knowledge_base)
            run = Evaluation(subject, rows, section.conditions, knowledge_base=base)
            scores = scored(run, section.label)
            keep(out, Measured.of(section.name, section.part, key, started, scores, about))
            result = result_of(scores, rows)
            write_json(out.parent / "answers" / f"{section.name}-{section.part}.json", {**about, **result})
            show(result["conditions"], f"{section.label}, {len(rows)} rows")
    if published is None:
        console.print("HaluEval and prose need published sets: --questions or MEMORY3_DATA (docs/data.md)")
    elif not sections or PROSE in sections.split(","):
        tuned, plain = Subject.open(model, adapter, codec), Subject.open(model, PLAIN)
        count = min(40, limit or 40)  # in float32: rounding would hide the difference
        with progress_bar("prose: windows", 2 * count) as advance:
            measure_prose(tuned, plain, published / ARTICLES, out, count, advance)
