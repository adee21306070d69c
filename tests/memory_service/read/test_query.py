"""Filters of the wire mean in the service what they say there; what is wrong with one is named."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.errors import BadRequest
from memory_service.read.query import read_filter
from memory_service.stores.filters import matches
from protos.memory.v1.filter_pb2 import Filter

NAMES = st.sampled_from(["a", "b", "ä", ""])
VALUES = st.sampled_from(
    ["", "x", "é", "\uff5e", "\U00010400", "1", "9", "10", "-0.5", "1e3", "1e400", "nan", "inf", " 1", "1_0", "2026-01"]
)  # fmt: skip
METADATA = st.dictionaries(NAMES, VALUES, max_size=4)
NUMBERS = st.sampled_from([-0.5, 0.0, 1.0, 9.5, 10.0, 1000.0])
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?")


def within(name: str, values: list[str]) -> Filter:
    return Filter(is_in=Filter.In(name=name, values=values))


def joined(kind: str, *filters: Filter) -> Filter:
    return Filter(**{kind: Filter.List(filters=filters)})


@st.composite
def ranges(draw: st.DrawFn) -> Filter:
    by_number = draw(st.booleans())
    bounds = {
        name: Filter.Bound(number=draw(NUMBERS)) if by_number else Filter.Bound(text=draw(VALUES))
        for name in draw(st.sets(st.sampled_from(["at_least", "above", "at_most", "below"]), min_size=1))
    }
    return Filter(range=Filter.Range(name=draw(NAMES), **bounds))


CONDITIONS = st.one_of(
    NAMES.map(lambda name: Filter(exists=name)),
    st.builds(within, NAMES, st.lists(VALUES, min_size=1, max_size=3)),
    ranges(),
)
FILTERS = st.recursive(
    CONDITIONS,
    lambda inner: st.builds(
        lambda kind, filters: joined(kind, *filters),
        st.sampled_from(["all_of", "any_of", "none_of"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


def passes(message: Filter, metadata: Mapping[str, str]) -> bool:
    """What filter.proto says, straight from the message."""
    kind = message.WhichOneof("condition")
    if kind == "all_of":
        return all(passes(part, metadata) for part in message.all_of.filters)
    if kind == "any_of":
        return any(passes(part, metadata) for part in message.any_of.filters)
    if kind == "none_of":
        return not any(passes(part, metadata) for part in message.none_of.filters)
    if kind == "exists":
        return message.exists in metadata
    if kind == "is_in":
        return metadata.get(message.is_in.name) in list(message.is_in.values)
    value = metadata.get(message.range.name)
    return value is not None and lies_between(value, message.range)


def lies_between(value: str, bounds: Filter.Range) -> bool:
    for name, verdicts in {"at_least": {0, 1}, "above": {1}, "at_most": {-1, 0}, "below": {-1}}.items():
        if not bounds.HasField(name):
            continue
        bound = getattr(bounds, name)
        if bound.HasField("number"):
            if not _DECIMAL.fullmatch(value) or math.isinf(number := float(value)):
                return False
            order = (number > bound.number) - (number < bound.number)
        else:
            left, right = value.encode(), bound.text.encode()
            order = (left > right) - (left < right)
        if order not in verdicts:
            return False
    return True


@given(FILTERS, st.lists(METADATA, min_size=1, max_size=5))
def test_a_filter_passes_what_its_message_says(message: Filter, documents: list[dict[str, str]]) -> None:
    condition = read_filter(Filter.FromString(message.SerializeToString()))
    for metadata in documents:
        assert matches(condition, metadata) == passes(message, metadata)


def nested(depth: int) -> Filter:
    return Filter(exists="a") if depth == 1 else joined("none_of", nested(depth - 1))


def number_between(**bounds: Filter.Bound) -> Filter:
    return Filter(range=Filter.Range(name="n", **bounds))


def test_the_largest_filters_are_taken() -> None:
    read_filter(nested(8))
    read_filter(joined("any_of", *[Filter(exists=f"n{n}") for n in range(64)]))
    read_filter(within("a", [str(n) for n in range(1000)]))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Filter(), "filter"),
        (joined("all_of"), "filter.all_of.filters"),
        (joined("none_of", Filter(exists="a"), joined("any_of")), "filter.none_of.filters[1].any_of.filters"),
        (joined("all_of", Filter()), "filter.all_of.filters[0]"),
        (within("a", []), "filter.is_in.values"),
        (number_between(), "filter.range"),
        (number_between(above=Filter.Bound()), "filter.range.above"),
        (number_between(below=Filter.Bound(number=math.nan)), "filter.range.below"),
        (number_between(at_most=Filter.Bound(number=math.inf)), "filter.range.at_most"),
        (number_between(at_least=Filter.Bound(number=1), below=Filter.Bound(text="2")), "filter.range"),
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
