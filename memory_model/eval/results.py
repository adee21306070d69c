"""The files under docs/data that the quality page is made of: what each holds, read and written in one way.

    quality.json       of `memory-model quality`, without the answers
    bytes_curve.json   of `memory-model budget-curve`
    ablation.json      of `memory-model ablation`
    heads.json         of `memory-model head-sight` and `memory-model rank-heads`, a part each
    codec_curve.json   of `memory-model codec-curve`
    edge_quality.json  of `python -m deploy.edge_quality`
    overlap.json       of `python -m deploy.overlap_quality`

The commands that take long save after every point, so a file may hold a part of what was asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from memory_model.errors import CorruptFile, InvalidInput, MissingFile

Scores = dict[str, float]
"""Means by name: f1, exact_match, nll, … (`memory_model.eval.conditions.Scores`); f1_error: of f1, standard."""
Result = TypeVar("Result", bound="ResultFile")


class Checked:
    """What is read from a file: its fields and no others."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class ResultFile(Checked):
    """One file of docs/data. made_by: the command that writes it."""

    made_by: ClassVar[str]

    @classmethod
    def load(cls: type[Result], path: Path) -> Result:
        """Read a file; raises MissingFile, or CorruptFile naming the first field that is wrong."""
        if not path.is_file():
            raise MissingFile(f"no {path}: make it with {cls.made_by}")
        try:
            return cls.of(json.loads(path.read_text(encoding="utf-8")), path)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CorruptFile(f"{path} is not JSON: {error}; delete it and measure again") from error

    @classmethod
    def of(cls: type[Result], content: Any, path: Path) -> Result:
        """Parsed JSON as this result; raises CorruptFile naming the first field that is wrong."""
        try:
            return TypeAdapter(cls).validate_python(content)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in wrong["loc"]) or "the whole"
            raise CorruptFile(
                f"{path} is no result of {cls.made_by}: {where}: {wrong['msg']}; delete it and measure again"
            ) from error

    def save(self, path: Path) -> None:
        """Write the file, to a temporary name first."""
        write_json(path, asdict(self))  # type: ignore[call-overload]


def write_json(path: Path, content: Any) -> None:
    """Write JSON that reads well, to a temporary name first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def today() -> str:
    """The date that a measurement is kept with."""
    return time.strftime("%Y-%m-%d")


@dataclass(frozen=True)
class SectionResult(Checked):
    """One section of a quality run. key: everything its result follows from, model and codec among it."""

    key: dict[str, Any]
    date: str
    seconds: float
    result: dict[str, Any]

    @property
    def conditions(self) -> dict[str, Scores]:
        """Means by condition; empty for a section of another kind."""
        return dict(self.result.get("conditions", {}))


@dataclass(frozen=True)
class Quality(ResultFile):
    """Who was measured last, and all sections, of which some may be of another model or codec."""

    made_by: ClassVar[str] = "`make eval`, then `memory-model quality-report`"
    model: str
    model_id: str
    codec_id: str
    base_id: str
    memory_heads: int
    memory_bytes: int
    machine: str
    date: str
    command: str
    sections: dict[str, SectionResult]

    def of_another(self, section: str) -> str:
        """What else than this model or codec a section was measured with; empty when it was this one."""
        key = self.sections[section].key
        if key.get("model_id") not in (self.model_id, self.base_id):
            return f"model {str(key.get('model_id'))[:12]}"
        if key.get("codec_id", self.codec_id) != self.codec_id:
            return f"codec {str(key['codec_id'])[:12]}"
        return ""


@dataclass(frozen=True)
class TokenLoss(Checked):
    """The answers' loss (nats a token) with one head at another number of tokens, the others whole."""

    layer: int
    head: int
    tokens: int
    loss: float


@dataclass(frozen=True)
class BytesPoint(Checked):
    """Answers with one budget. code_bytes: a vector; bytes: of codes in a full memory.

    read: through "codes", or "exact" key-values whose bytes are what the codec would make of them. f1_error:
    standard error; natural: scores of natural questions, where they were asked.
    """

    label: str
    heads: int
    tokens: str
    code_bytes: float
    bytes: int
    read: str
    f1: float
    exact_match: float
    nll: float
    shipped: bool = False
    f1_error: float | None = None
    natural: Scores | None = None


@dataclass(frozen=True)
class BytesCurve(ResultFile):
    """F1 against bytes a memory, same weights. rows, natural_rows: questions a point, of each kind."""

    made_by: ClassVar[str] = "`memory-model budget-curve`"
    model_id: str
    rows: int
    date: str
    token_losses: tuple[TokenLoss, ...] = ()
    points: tuple[BytesPoint, ...] = ()
    natural_rows: int = 0

    @classmethod
    def begun(cls, path: Path, model_id: str, rows: int, natural_rows: int = 0) -> BytesCurve:
        """What `path` has already, or an empty curve; raises InvalidInput for points that do not compare."""
        found = cls.load(path) if path.is_file() else cls(model_id, rows, today())
        if (found.model_id, found.rows) != (model_id, rows):
            raise InvalidInput(
                f"{path} has points of {found.rows} questions and model {found.model_id[:12]}, this is {rows} and "
                f"{model_id[:12]}: delete it, or give another --out"
            )
        if natural_rows and found.natural_rows not in (0, natural_rows):
            raise InvalidInput(
                f"{path} has points of {found.natural_rows} natural questions, this is {natural_rows}: give --limit "
                f"{found.natural_rows}, or another --out"
            )
        return replace(found, natural_rows=natural_rows or found.natural_rows)

    def with_point(self, point: BytesPoint) -> BytesCurve:
        """The curve with one more point, or one measured again in the place that its label had."""
        others = [p for p in self.points if p.label != point.label]
        place = next((n for n, p in enumerate(self.points) if p.label == point.label), len(others))
        return replace(self, date=today(), points=(*others[:place], point, *others[place:]))


@dataclass(frozen=True)
class AblationStep(Checked):
    """One adapter: how many steps of tuning it had, and scores by kind of question and condition.

    tuned_on: what its last steps were tuned on, in the words of whoever measured it.
    """

    name: str
    steps: int
    model_id: str
    date: str
    scores: dict[str, dict[str, Scores]]
    tuned_on: str = ""


@dataclass(frozen=True)
class Ablation(ResultFile):
    """What each step of tuning brought. rows: questions of each kind."""

    made_by: ClassVar[str] = "`memory-model ablation`"
    rows: int
    steps: tuple[AblationStep, ...] = ()

    def with_step(self, step: AblationStep) -> Ablation:
        """With a step measured (again), in the place that its name had."""
        others = [s for s in self.steps if s.name != step.name]
        place = next((n for n, s in enumerate(self.steps) if s.name == step.name), len(others))
        return replace(self, steps=(*others[:place], step, *others[place:]))

    def told_of(self, name: str, steps: int, tuned_on: str) -> Ablation:
        """With other words about the step of this name, its scores as they were."""
        told = (replace(s, steps=steps, tuned_on=tuned_on) if s.name == name else s for s in self.steps)
        return replace(self, steps=tuple(told))

    def ordered(self, names: Sequence[str]) -> Ablation:
        """The steps of these names in their order, then the others."""
        last = len(names)
        place = {name: number for number, name in enumerate(names)}
        return replace(self, steps=tuple(sorted(self.steps, key=lambda s: place.get(s.name, last))))


@dataclass(frozen=True)
class HeadEntry(Checked):
    """A KV head and a loss of the answers (nats a token) that was measured for it."""

    layer: int
    head: int
    loss: float


@dataclass(frozen=True)
class Sight(Checked):
    """Losses with one head short-sighted (paper, remark on heads); heads: how many are to be measured."""

    model: str
    model_id: str
    date: str
    reach: int
    batches: int
    heads: int
    loss_whole: float
    losses: tuple[HeadEntry, ...] = ()


@dataclass(frozen=True)
class Reading(Checked):
    """Losses with one head's memory left out, of other budgets, and with heads chosen one by one."""

    model_id: str
    date: str
    batches: int
    vectors: int
    heads: int
    loss_whole: float
    losses: tuple[HeadEntry, ...] = ()
    budgets: dict[str, float] | None = None
    chosen: tuple[HeadEntry, ...] = ()


@dataclass(frozen=True)
class Heads(ResultFile):
    """Which heads read, by both measures; shipped: (layer, head) of the shipped memory heads."""

    made_by: ClassVar[str] = "`memory-model head-sight` or `memory-model rank-heads`"
    shipped: tuple[tuple[int, int], ...]
    sight: Sight | None = None
    reading: Reading | None = None


@dataclass(frozen=True)
class CodecSettings(Checked):
    """What the points of a codec curve have in common."""

    model_id: str
    references: int
    points: int
    batches: int
    seed: int
    prose: bool


@dataclass(frozen=True)
class CodecPoint(Checked):
    """One codec's losses (`experiments.codec_curve` says what they are); scores: of answers, if asked."""

    name: str
    family: str
    title: str
    vector_bytes: int
    memory_bytes: int
    keys: float
    values: float
    output: float
    divergence: float
    divergence_error: float
    flips: float
    scores: Scores | None = None


@dataclass(frozen=True)
class CodecCurve(ResultFile):
    """Codecs by rate. rows: questions of the points that have scores; exact: the same without a codec."""

    made_by: ClassVar[str] = "`memory-model codec-curve`"
    settings: CodecSettings
    date: str
    shipped: str
    rows: int = 0
    exact: Scores | None = None
    points: tuple[CodecPoint, ...] = ()

    def with_point(self, point: CodecPoint) -> CodecCurve:
        """With a point measured (again), in order of family and bytes."""
        others = [p for p in self.points if p.name != point.name]
        ordered = sorted([*others, point], key=lambda p: (p.family, p.vector_bytes))
        return replace(self, date=today(), points=tuple(ordered))


@dataclass(frozen=True)
class PrecisionQuality(Checked):
    """The device's decoder with weights of one precision; same_as_first: share of equal answers."""

    f1: float
    exact_match: float
    same_as_first: float
    tokens_per_s: float
    decoder_mb: float


@dataclass(frozen=True)
class EdgeQuality(ResultFile):
    """Answers of the device's own decoder by precision of its weights."""

    made_by: ClassVar[str] = "`python -m deploy.edge_quality`"
    model_id: str
    date: str
    rows: int
    precisions: dict[str, PrecisionQuality]


@dataclass(frozen=True)
class Overlap(ResultFile):
    """F1 of the same questions when recall is waited for (exact) and when it runs beside decoding.

    generated_recalls: chunks of all the answers that recalled beside decoding; with none both modes do the same.
    """

    made_by: ClassVar[str] = "`python -m deploy.overlap_quality`"
    model_id: str
    date: str
    rows: int
    exact_f1: float
    overlap_f1: float
    generated_recalls: int | None = None
