"""Answers with drafts are those without: tokens, events, log-probabilities and what the cache holds afterwards."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from edge_client import ChatSession, EdgeModel, Finished, Recalled, Token
from edge_client.generate import loop
from edge_client.generate.drafts import MOST, Drafter
from edge_client.serve.requests import Grammars
from edge_client.settings import EdgeSettings
from memory3.files.bundle import Bundle
from tests.edge_client.answers import QUESTION, finished, tokens_of
from tests.edge_client.fake_service import FakeService

Opened = Callable[..., EdgeModel]
ENDLESS = {256: -100.0, 257: -100.0}


@pytest.fixture
def opened(tiny: Bundle, service: FakeService) -> Iterator[Opened]:
    """Opens models that wait for their memories, closed at the end."""
    models: list[EdgeModel] = []

    def open_(speculation: bool, **options: Any) -> EdgeModel:
        given = {"memory": "exact", "deadline_s": 20, "threads": 1, "provider": "cpu", **options}
        models.append(EdgeModel.open(tiny.folder, service.address, speculation=speculation, **given))
        return models[-1]

    yield open_
    for model in models:
        model.close()


class Foreseeing(Drafter):
    """Drafts the tokens of a known answer, every fifth of them wrong, whatever matches; never more than permitted."""

    answer: ClassVar[list[int]] = []
    wrong_every: ClassVar[int] = 5

    def __init__(self, _: object) -> None:
        super().__init__([])
        self._number = 0

    def add(self, token: int) -> None:
        self._number += 1

    def draft(self, most: int) -> list[int]:
        following = list(enumerate(self.answer[self._number :], self._number))[: max(0, min(most, MOST))]
        return [token if n % self.wrong_every else (token + 1) % 256 for n, token in following]


@pytest.fixture
def foreseeing(monkeypatch: pytest.MonkeyPatch) -> type[Foreseeing]:
    monkeypatch.setattr(loop, "Drafter", Foreseeing)
    return Foreseeing


def seen(events: list[Any]) -> list[object]:
    """Everything of the events that does not depend on time, numbers rounded."""
    found: list[object] = []
    for event in events:
        if isinstance(event, Token):
            top = [(t.id, round(t.logprob, 3)) for t in event.top_logprobs]
            found.append((event.id, event.text, event.logprob and round(event.logprob, 3), top))
        elif isinstance(event, Recalled):
            found.append((event.position, event.recall.query, [m.memory_id for m in event.recall.read]))
        elif isinstance(event, Finished):
            s = event.statistics
            found.append((event.text, event.reason, s.prompt_tokens, s.generated_tokens, s.recalls))
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "with log-probabilities": {"logprobs": 3},
    "drawn": {"temperature": 1.5, "seed": 7, "top_k": 5},
    "with penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.1, "logit_bias": {70: 1.5}},
    "until it repeats itself": {"max_tokens": 400},
    "until it ends its turn": {"logit_bias": {257: 1.0}, "temperature": 1.0, "seed": 5, "max_tokens": 400},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("memory", ["exact", "off"])
def test_answers_with_drafts_equal_those_without(opened: Opened, options: dict[str, Any], memory: str) -> None:
    plain, drafting = opened(False), opened(True)
    accepted = 0
    for question in (QUESTION, "Fact 0: the code of Oslo is", "abc abc abc"):
        given = {"max_tokens": 70, "memory": memory, **options}
        want, got = (list(model.generate(question, **given)) for model in (plain, drafting))
        assert seen(got) == seen(want)
        assert finished(want).statistics.drafted_tokens == 0
        statistics = finished(got).statistics
        assert statistics.accepted_tokens <= statistics.drafted_tokens
        accepted += statistics.accepted_tokens
    assert accepted > 0 or "seed" in options, "equality must not come from never drafting"


@pytest.mark.parametrize("wrong_every", [1, 2, 5, 1000])
def test_whatever_is_drafted_at_a_chunks_end_or_where_the_context_is_full_the_answer_is_the_same(
    opened: Opened, foreseeing: type[Foreseeing], wrong_every: int
) -> None:
    plain, drafting = opened(False, context=100), opened(True, context=100)
    options: dict[str, Any] = {"max_tokens": 400, "logit_bias": ENDLESS}
    want = list(plain.generate(QUESTION, **options))
    foreseeing.answer, foreseeing.wrong_every = tokens_of(want), wrong_every
    got = list(drafting.generate(QUESTION, **options))
    assert seen(got) == seen(want)
    assert finished(got).reason == "context"
    assert sum(isinstance(e, Recalled) and e.generated for e in got) >= 2, "chunks ended in its midst"
    statistics = finished(got).statistics
    assert statistics.drafted_tokens >= statistics.accepted_tokens >= (0 if wrong_every == 1 else 20)


def test_a_stop_string_inside_a_draft_ends_the_answer(opened: Opened, foreseeing: type[Foreseeing]) -> None:
    plain, drafting = opened(False), opened(True)
    whole = list(opened(False).generate(QUESTION, max_tokens=30, logit_bias=ENDLESS))
    foreseeing.answer, foreseeing.wrong_every = tokens_of(whole), 1000
    stop = finished(whole).text[9:12]
    want, got = (
        list(model.generate(QUESTION, max_tokens=30, logit_bias=ENDLESS, stop=[stop])) for model in (plain, drafting)
    )
    assert seen(got) == seen(want)
    assert finished(got).reason == "stop"
    statistics = finished(got).statistics
    assert statistics.drafted_tokens > statistics.accepted_tokens > 0


def cancelled_after(session: ChatSession, tokens: int) -> list[Any]:
    events: list[Any] = []
    for event in session.send(QUESTION, max_tokens=40, logit_bias=ENDLESS):
        events.append(event)
        if len(tokens_of(events)) == tokens:
            session.cancel()
    return events


@pytest.mark.parametrize("tokens", [1, 4, 17])
def test_what_was_drafted_but_not_reached_before_a_cancellation_is_forgotten(
    opened: Opened, foreseeing: type[Foreseeing], tokens: int
) -> None:
    plain, drafting = opened(False), opened(True)
    foreseeing.wrong_every = 1000
    foreseeing.answer = tokens_of(list(opened(False).generate(QUESTION, max_tokens=40, logit_bias=ENDLESS)))
    sessions = plain.session(), drafting.session()
    want, got = (cancelled_after(session, tokens) for session in sessions)
    assert seen(got) == seen(want)
    assert sessions[0].conversation.sequence.tokens == sessions[1].conversation.sequence.tokens
    foreseeing.answer = []
    want, got = (list(session.send("And Rome?", max_tokens=20)) for session in sessions)
    assert seen(got) == seen(want)


def test_a_grammar_follows_what_is_chosen_and_not_what_is_drafted(opened: Opened, foreseeing: type[Foreseeing]) -> None:
    plain, drafting = opened(False), opened(True)

    def answer(model: EdgeModel) -> list[Any]:
        constraint = Grammars(model.bundle).of_schema({"const": "The code of Lima is 74."})
        return list(model.generate(QUESTION, max_tokens=60, constraint=constraint))

    want = answer(plain)
    foreseeing.answer, foreseeing.wrong_every = tokens_of(want), 4
    got = answer(drafting)
    assert seen(got) == seen(want)
    assert finished(got).reason == "end", "and the end of the turn was drafted"
    assert finished(got).statistics.accepted_tokens > 10


def test_citations_are_those_of_the_tokens_that_were_chosen(opened: Opened, foreseeing: type[Foreseeing]) -> None:
    plain, drafting = opened(False), opened(True)
    options: dict[str, Any] = {"max_tokens": 40, "logit_bias": ENDLESS, "citations": True}
    want = plain.generate(QUESTION, **options).result()
    foreseeing.answer = want_tokens = tokens_of(list(opened(False).generate(QUESTION, **options)))
    stream = drafting.generate(QUESTION, **options)
    assert tokens_of(list(stream)) == want_tokens
    got = stream.result()
    assert want.attention is not None
    assert got.attention is not None
    np.testing.assert_allclose(got.attention.shares, want.attention.shares, atol=1e-4)
    assert [(s.start, s.end, s.memory.memory_id) for s in got.spans] == [
        (s.start, s.end, s.memory.memory_id) for s in want.spans
    ]
    assert got.statistics.drafted_tokens > got.statistics.accepted_tokens > 10


def test_a_setting_switches_drafts_on(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not EdgeSettings().speculation
    monkeypatch.setenv("EDGE_CLIENT_SPECULATION", "true")
    assert EdgeSettings().speculation
    assert not opened(False).engine.drafts
    assert opened(True).engine.drafts
