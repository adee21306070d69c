"""Filters of requests, by name."""

from __future__ import annotations

from protos.memory.v1.filter_pb2 import Filter


def within(name: str, values: list[str]) -> Filter:
    return Filter(is_in=Filter.In(name=name, values=values))


def joined(kind: str, *filters: Filter) -> Filter:
    return Filter(**{kind: Filter.List(filters=filters)})
