"""Filters of the wire mean in the service what they say there; what is wrong with one is named."""

from __future__ import annotations

import math

import pytest

from memory_service.errors import BadRequest
from memory_service.read.query import read_filter
from memory_service.stores.filters import matches
from protos.memory.v1.filter_pb2 import Filter
from tests.memory_service.filters import joined, within


def between(**bounds: float | str | Filter.Bound) -> Filter:
    limits = {
        name: bound
        if isinstance(bound, Filter.Bound)
        else Filter.Bound(text=bound)
        if isinstance(bound, str)
        else Filter.Bound(number=bound)
        for name, bound in bounds.items()
    }
    return Filter(range=Filter.Range(name="n", **limits))


def nested(depth: int) -> Filter:
    return Filter(exists="a") if depth == 1 else joined("none_of", nested(depth - 1))


@pytest.mark.parametrize(
    ("message", "passing", "failing"),
    [
        (Filter(exists="n"), ["", "x"], [None]),
        (within("n", ["a", "ä"]), ["a", "ä"], ["b", "", None]),
        (joined("none_of", within("n", ["a"]), within("n", ["b"])), ["c", None], ["a", "b"]),
        (joined("any_of", within("n", ["a"]), between(above=5.0)), ["a", "6"], ["5", "b", None]),
        (joined("all_of", Filter(exists="n"), joined("none_of", within("n", [""]))), ["a"], ["", None]),
        (between(at_least=-0.5, below=10.0), ["-0.5", "9", "1e0", ".5", "5."], ["10", "", "x", "nan", " 1", "1_0"]),
        (between(above=1.0), ["1e3"], ["1", "inf", "1e400", None]),
        (between(at_least="2026-01", below="2027"), ["2026-01", "2026-12-31"], ["2025", "2027", None]),
        (between(above="\uff5e"), ["\U00010400"], ["\uff5e", "a"]),  # by bytes of UTF-8, not by UTF-16
        (joined("any_of", nested(7), *[Filter(exists=f"n{n}") for n in range(63)]), [], [None]),  # the largest
    ],
)
def test_a_filter_passes_what_it_says(message: Filter, passing: list[str | None], failing: list[str | None]) -> None:
    condition = read_filter(Filter.FromString(message.SerializeToString()))
    for value in passing + failing:
        metadata = {"other": "x"} if value is None else {"n": value}
        assert matches(condition, metadata) == (value in passing), value


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Filter(), "filter"),
        (joined("all_of"), "filter.all_of.filters"),
        (joined("none_of", Filter(exists="a"), joined("any_of")), "filter.none_of.filters[1].any_of.filters"),
        (within("a", []), "filter.is_in.values"),
        (between(), "filter.range"),
        (between(above=Filter.Bound()), "filter.range.above"),
        (between(below=math.nan), "filter.range.below"),
        (between(at_most=math.inf), "filter.range.at_most"),
        (between(at_least=1.0, below="2"), "filter.range"),
        (nested(9), "filter" + ".none_of.filters[0]" * 7 + ".none_of"),
        (joined("any_of", *[Filter(exists="a")] * 65), "filter"),
        (within("a", ["b"] * 1001), "filter"),
        (within("a", ["b" * 65536]), "filter"),
    ],
)
def test_what_is_wrong_with_a_filter_is_named(message: Filter, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_filter(message)
    assert caught.value.field == field
