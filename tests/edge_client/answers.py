"""What tests look at in the events of an answer."""

from collections.abc import Sequence

from edge_client import Event, Finished, Recalled, Token

QUESTION = "What is the code of Lima?"


def tokens_of(events: Sequence[Event]) -> list[int]:
    return [e.id for e in events if isinstance(e, Token)]


def recalls_of(events: Sequence[Event]) -> list[Recalled]:
    return [e for e in events if isinstance(e, Recalled)]


def finished(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]
