"""Answers about a whole document: all of its memories are read, in their order, as many at a time as there are slots.

A document of few memories is read at once. A longer one is read in turns: the same question to each group of its
memories, of which the answers that are no refusals stand one below the other. Nothing is retrieved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from edge_client.engine import Engine
from edge_client.errors import Cancellation
from edge_client.generate.loop import Answer, checked
from edge_client.generate.sampling import Sampling
from edge_client.recall.outcome import Recall, without
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import LocalSource
from edge_client.recall.worker import Ticket
from edge_client.retrieval import Hit
from edge_client.stream import AnswerStream, Event, Finished, Recalled, Span, Statistics, Token
from memory3.errors import InvalidInput
from memory3.text.chat import Message, Prompt
from memory3.text.verdict import Verdict

MOST_TURNS = 12
"""Groups of memories that are read for one answer; of a longer document, so many at even distances."""
LEFT_OUT = "LEFT_OUT"
"""The reason of the recall that says how much of a longer document was not read."""
BETWEEN = "\n\n"
"""Between the answers of two turns."""


class GivenMemories:
    """Gives every chunk the same memories, where an answer would ask its `RecallWorker`."""

    def __init__(self, found: Recall) -> None:
        self._found = found

    def submit(self, queries: Sequence[str], *, deadline_s: float, also: LocalSource | None = None) -> Ticket:
        """A ticket that is done."""
        ticket = Ticket(queries)
        ticket.resolve([replace(self._found, query=query) for query in queries])
        return ticket


def turns_of(hits: Sequence[Hit], slots: int) -> list[Sequence[Hit]]:
    """The memories of a document in groups of at most `slots`, MOST_TURNS of them at most."""
    groups = [hits[start : start + slots] for start in range(0, len(hits), slots)]
    if len(groups) <= MOST_TURNS:
        return groups
    return [groups[round(n * (len(groups) - 1) / (MOST_TURNS - 1))] for n in range(MOST_TURNS)]


class DocumentAnswer:
    """The events of an answer about a document; an `EventSource`. One thread at a time."""

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        messages: Sequence[Message],
        sampling: Sampling,
        policy: RecallPolicy,
        cancellation: Cancellation,
        hits: Sequence[Hit],
    ) -> None:
        """hits: all memories of the document."""
        self._engine, self._prompt, self._messages = engine, prompt, messages
        self._sampling, self._policy, self._cancellation = sampling, policy, cancellation
        self._turns = turns_of(hits, engine.bundle.config.memory.memories_per_chunk)
        self._hits = len(hits)
        self.recalled: tuple[Recalled, ...] = ()
        self.shown = ""
        """What of it was shown: all of it, or the beginning of one that was cancelled."""

    def keep(self, tokens: int) -> None:
        """Nothing follows this answer."""

    @property
    def began(self) -> bool:
        """Whether a token was shown."""
        return bool(self.shown)

    @property
    def token_ids(self) -> None:
        """Not known: it is no answer to one prompt."""

    def events(self) -> Iterator[Event]:
        """As `Answer.events`. Of several turns, the text of each comes when it is complete."""
        for event in self._events():
            if isinstance(event, Token):
                self.shown += event.text
            yield event

    def _events(self) -> Iterator[Event]:
        parts: list[Finished] = []
        kept: list[Finished] = []
        alone = len(self._turns) == 1
        left = self._sampling.max_tokens
        for turn in self._turns:
            (found,) = self._engine.recaller.given([turn])
            answer = self._answer(found, left)
            tokens: list[Token] = []
            for event in answer.events():
                if isinstance(event, Recalled):
                    yield replace(event, chunk=event.chunk + len(self.recalled))
                elif isinstance(event, Token) and not alone:
                    tokens.append(event)
                elif isinstance(event, Finished):
                    parts.append(event)
                else:
                    yield event
            self.recalled += tuple(replace(r, chunk=r.chunk + len(self.recalled)) for r in answer.recalled)
            part, cancelled = parts[-1], parts[-1].reason == "cancelled"
            text, shown = part.text.strip(), {other.text.strip() for other in kept}
            if alone or (text and not cancelled and not part.refused and text not in shown):
                if kept and tokens:
                    tokens[0] = replace(tokens[0], text=f"{BETWEEN}{tokens[0].text}")
                yield from tokens
                kept.append(part)
                left -= part.statistics.generated_tokens
            if cancelled or left <= 0:
                break
        if not kept and parts[-1].reason != "cancelled":  # all of them refused
            kept = parts[:1]
            yield Token(self._refusal_id, parts[0].text)
        if (left_out := self._hits - sum(map(len, self._turns))) > 0:
            yield self._told(left_out)
        yield _joined(kept, parts)

    def _told(self, left_out: int) -> Recalled:
        """The event that says what was not read."""
        message = (
            f"{left_out} of the document's {self._hits} memories were not read: of a long one, {MOST_TURNS} groups at"
            " even distances are; ask about a part of it without naming it, and the nearest memories are read"
        )
        (recall,) = without([self._messages[-1]["content"]], LEFT_OUT, message, "skipped")
        told = Recalled(len(self.recalled), False, recall)
        self.recalled += (told,)
        return told

    @property
    def _refusal_id(self) -> int:
        bundle = self._engine.bundle
        return bundle.manifest.refusal.first_token(bundle.chat)

    def _answer(self, found: Recall, max_tokens: int) -> Answer:
        sequence = self._engine.sequence(object())  # its rows are of these memories alone
        sampling = replace(self._sampling, max_tokens=max_tokens)
        return Answer(
            self._engine,
            sequence,
            self._prompt,
            sampling,
            self._policy,
            self._cancellation,
            messages=self._messages,
            worker=GivenMemories(found),
        )


def _joined(kept: Sequence[Finished], parts: Sequence[Finished]) -> Finished:
    """One end of several. kept: those whose text is shown; parts: all that were computed."""
    text, spans = "", list[Span]()
    for one in kept:
        start = len(text) + len(BETWEEN) if text else 0
        spans += [replace(span, start=span.start + start, end=span.end + start) for span in one.spans]
        text = f"{text}{BETWEEN}{one.text}" if text else one.text
    verdicts = [one.verdict for one in kept]
    best = next((verdict for verdict in Verdict if verdict in verdicts), None)
    return Finished(
        text,
        parts[-1].reason,
        _summed([one.statistics for one in parts]),
        any(one.without_memory for one in parts),
        all(one.refused for one in kept) and bool(kept),
        tuple(spans),
        kept[0].attention if len(parts) == 1 and kept else None,
        kept[0].contributions if len(parts) == 1 and kept else (),
        best,
    )


def _summed(each: Sequence[Statistics]) -> Statistics:
    """Sums, of mappings by key; the time of the first token is the first one's, the rate that of all tokens."""
    sums: dict[str, Any] = {}
    for field in fields(Statistics):
        values = [getattr(one, field.name) for one in each]
        if isinstance(values[0], Mapping):
            sums[field.name] = {key: sum(one.get(key, 0) for one in values) for value in values for key in value}
        else:
            sums[field.name] = sum(values)
    decoding_s = sum((one.generated_tokens - 1) / one.tokens_per_s for one in each if one.tokens_per_s)
    generated = sum(one.generated_tokens - 1 for one in each if one.tokens_per_s)
    rate = generated / decoding_s if decoding_s else 0.0
    return replace(Statistics(**sums), first_token_ms=each[0].first_token_ms, tokens_per_s=rate)


def document_stream(
    engine: Engine,
    name: str,
    messages: Sequence[Message],
    policy: RecallPolicy,
    options: Mapping[str, Any],
    done: Callable[[DocumentAnswer], None] = lambda _: None,
) -> AnswerStream:
    """The answer to the last question of a conversation, which is about a document of this device that is called so.

    options: see `Sampling`. done: called once, when the answer is over. Raises InvalidInput where memory is off, for
    no such document or several, and for a grammar where the document is read in turns: its texts are not put together.
    """
    if policy.mode is RecallMode.off:
        raise InvalidInput(f"memory is off: a question about {name!r} reads memories")
    base, keys = engine.local.document(name)
    messages, prompt = _latest(engine, messages)
    sampling = checked(engine, prompt, options)
    if not (hits := base.memories_of(keys)):
        raise InvalidInput(f"{name!r} has no memories yet: remember it again")
    slots = engine.bundle.config.memory.memories_per_chunk
    if sampling.constraint is not None and len(hits) > slots:
        raise InvalidInput(
            f"the document has {len(hits)} memories, {slots} are read at once, and several answers in JSON or another"
            " grammar do not make one: ask for text, or without naming the document, so that the nearest are read"
        )
    cancellation = Cancellation()
    source = DocumentAnswer(engine, prompt, messages, sampling, policy, cancellation, hits)
    stream = AnswerStream(source, cancellation, lambda: done(source))
    engine.register(stream)
    return stream


def _latest(engine: Engine, messages: Sequence[Message]) -> tuple[Sequence[Message], Prompt]:
    """The turns that the cache has room for, the system message and the last question among them."""
    system = list(messages[:1]) if messages[0]["role"] == "system" else []
    turns = messages[len(system) :]
    prompt = engine.bundle.chat.prompt(messages)
    while len(prompt.ids) >= engine.mark and len(turns) > 1:
        turns = turns[next(n for n in range(1, len(turns)) if n == len(turns) - 1 or turns[n]["role"] == "user") :]
        prompt = engine.bundle.chat.prompt([*system, *turns])
    return [*system, *turns], prompt
