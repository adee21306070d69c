"""The files of the studies under docs/data: bytes_curve.json and ablation.json.

Every study saves after each point, so an interrupted run goes on and a file may hold a part of its points.
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
"""Means by name: f1, exact_match, nll; f1_error is the standard error of f1."""
Result = TypeVar("Result", bound="ResultFile")


class Checked:
    """Read from JSON: exactly the declared fields."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class ResultFile(Checked):
    """One file of docs/data."""

    @classmethod
    def load(cls: type[Result], path: Path) -> Result:
        """Read a file; raises MissingFile, or CorruptFile naming the first field that is wrong."""
        if not path.is_file():
            raise MissingFile(f"no {path}: `python -m experiments --help` lists what makes it")
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in wrong["loc"]) or "the whole"
            raise CorruptFile(f"{path}: {where}: {wrong['msg']}; delete it and measure again") from error

    def save(self, path: Path) -> None:
        """Write the file, to a temporary name first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        content: Any = asdict(self)  # type: ignore[call-overload]
        partial.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)


def today() -> str:
    """The date that a measurement is kept with."""
    return time.strftime("%Y-%m-%d")


@dataclass(frozen=True)
class BytesPoint(Checked):
    """Answers with one budget. code_bytes: of a vector; bytes: codes in a full memory.

    read: through "codes", or as "exact" key-values whose bytes are what the codec would make of them.
    natural: scores of natural questions, where these were measured.
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

    model_id: str
    rows: int
    date: str
    points: tuple[BytesPoint, ...] = ()
    natural_rows: int = 0

    @classmethod
    def begun(cls, path: Path, model_id: str, rows: int, natural_rows: int = 0) -> BytesCurve:
        """The curve in `path`, or an empty one; raises InvalidInput for points that do not compare."""
        found = cls.load(path) if path.is_file() else cls(model_id, rows, today())
        if (found.model_id, found.rows) != (model_id, rows) or (
            natural_rows and found.natural_rows not in (0, natural_rows)
        ):
            raise InvalidInput(
                f"{path} has points of {found.rows} questions, {found.natural_rows} natural ones and model "
                f"{found.model_id[:12]}, this is {rows}, {natural_rows} and {model_id[:12]}: delete it, or give "
                "another --out"
            )
        return replace(found, natural_rows=natural_rows or found.natural_rows)

    def with_point(self, point: BytesPoint) -> BytesCurve:
        """The curve with one more point, or one measured again in the place that its label had."""
        return replace(self, date=today(), points=_with(self.points, point, lambda p: p.label))


@dataclass(frozen=True)
class AblationStep(Checked):
    """One adapter after so many steps; scores by kind of question and condition."""

    name: str
    steps: int
    model_id: str
    date: str
    scores: dict[str, dict[str, Scores]]
    tuned_on: str = ""


@dataclass(frozen=True)
class Ablation(ResultFile):
    """What each step of tuning brought. rows: questions of each kind."""

    rows: int
    steps: tuple[AblationStep, ...] = ()

    def with_step(self, step: AblationStep) -> Ablation:
        """With a step measured (again), in the place that its name had."""
        return replace(self, steps=_with(self.steps, step, lambda s: s.name))


def _with(entries: Sequence[Any], entry: Any, name: Any) -> tuple[Any, ...]:
    names = [name(e) for e in entries]
    if name(entry) not in names:
        return (*entries, entry)
    place = names.index(name(entry))
    return (*entries[:place], entry, *entries[place + 1 :])
