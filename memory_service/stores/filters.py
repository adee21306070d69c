"""Filters over a document's metadata: conditions on one value, joined by and, or, not."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

MAX_CONDITIONS = 64
"""Most conditions of one filter."""
MAX_DEPTH = 8
"""Deepest nesting of one filter."""
NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
"""What a number looks like in metadata, in ASCII; every store uses this pattern."""
_NUMBER = re.compile(NUMBER)
_SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}


@dataclass(frozen=True)
class In:
    """The value is one of these; with one value, equality. A document without the name does not pass."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Exists:
    """The document has a value of this name, be it empty."""

    name: str


@dataclass(frozen=True)
class Range:
    """The value lies between bounds; an absent bound is open.

    Bounds that are numbers compare as doubles: a value that is not a `NUMBER`, or is too large for a double, does not
    pass, and integers above 2^53 are rounded. Bounds that are strings compare by their UTF-8 bytes, which orders
    ISO 8601 dates. Both bounds of a range have one type.
    """

    name: str
    at_least: float | str | None = None
    above: float | str | None = None
    at_most: float | str | None = None
    below: float | str | None = None

    @property
    def limits(self) -> dict[str, float | str]:
        """The bounds that are given, by what a value must be to them."""
        signs = {">=": self.at_least, ">": self.above, "<=": self.at_most, "<": self.below}
        return {sign: limit for sign, limit in signs.items() if limit is not None}

    @property
    def of_text(self) -> bool:
        """Whether values are compared as text."""
        return any(isinstance(limit, str) for limit in self.limits.values())


@dataclass(frozen=True)
class And:
    """All of the parts pass; without parts, every document."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class Or:
    """At least one of the parts passes; without parts, no document."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class Not:
    """The part does not pass; a document without the part's name passes."""

    part: Filter


Filter: TypeAlias = In | Exists | Range | And | Or | Not


def equal_to(values: Mapping[str, str]) -> Filter | None:
    """The filter that all of these values pass; None for no values."""
    parts = tuple(In(name, (value,)) for name, value in sorted(values.items()))
    return parts[0] if len(parts) == 1 else And(parts) if parts else None


def matches(condition: Filter, metadata: Mapping[str, str]) -> bool:
    """Whether metadata passes; the definition that every store's own search follows."""
    match condition:
        case In(name, values):
            return name in metadata and metadata[name] in values
        case Exists(name):
            return name in metadata
        case Range(name):
            return name in metadata and _within(condition, metadata[name])
        case And(parts):
            return all(matches(part, metadata) for part in parts)
        case Or(parts):
            return any(matches(part, metadata) for part in parts)
        case Not(part):
            return not matches(part, metadata)


def conditions(condition: Filter) -> Iterator[In | Exists | Range]:
    """The conditions on single values that a filter joins."""
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                yield from conditions(part)
        case Not(part):
            yield from conditions(part)
        case _:
            yield condition


def number(value: str) -> float | None:
    """The double nearest to a value that is a `NUMBER`; None for any other text and for what is not finite."""
    found = float(value) if _NUMBER.fullmatch(value) else math.nan
    return found if math.isfinite(found) else None


def _within(bounds: Range, value: str) -> bool:
    if bounds.of_text:
        return all(_SIGNS[sign](value.encode(), str(limit).encode()) for sign, limit in bounds.limits.items())
    found = number(value)
    return found is not None and all(_SIGNS[sign](found, limit) for sign, limit in bounds.limits.items())


def condition_sql(condition: Filter | None, of_one: Callable[[In | Exists | Range], str]) -> str:
    """A filter as SQL. of_one: a condition on one value."""
    match condition:
        case None:
            return "1"
        case And(parts):
            return f"({' AND '.join(condition_sql(part, of_one) for part in parts) or '1'})"
        case Or(parts):
            return f"({' OR '.join(condition_sql(part, of_one) for part in parts) or '0'})"
        case Not(part):
            return f"NOT {condition_sql(part, of_one)}"
        case _:
            return of_one(condition)
