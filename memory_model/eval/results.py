"""The files under docs/data that the quality page is made of: what each holds, read and written in one way.

    quality.json       of `memory-model quality`, without the answers
    edge_quality.json  of `python -m deploy.edge_quality`
    overlap.json       of `python -m deploy.overlap_quality`

The commands that take long save after every point, so a file may hold a part of what was asked for.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from memory_model.errors import CorruptFile, MissingFile

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
