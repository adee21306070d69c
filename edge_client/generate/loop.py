"""One answer from its prompt to its last event: the device's read path, as production runs it.

prompt   messages -> tokens -> chunks of 64          memory3.text.chat, generate.prompt
recall   chunk -> query vector -> hits -> memories   generate.chunk_recalls, recall.worker, recall.recaller
inject   memories -> slots of the caches             decoder.sequence, decoder.kv
decode   tokens -> logits -> token                   decoder.batching, generate.sampling, generate.drafts
stream   tokens -> text, events                      generate.sampling, stream

When a generated chunk's memories are requested, and when they reach the slots, is the mode's:
    exact     at a chunk's end request, wait (up to the deadline), swap
    overlap   `lead_tokens` before a chunk's end request; at its end swap if they are there, else when they come
    off       never
A prompt waits for its memories in both modes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from itertools import count
from typing import Any

from edge_client.decoder.sequence import CachedSequence
from edge_client.engine import Engine
from edge_client.errors import Cancellation, ContextFull
from edge_client.generate.chunk_recalls import ChunkRecalls, RecallSource
from edge_client.generate.citations import AttentionLog, spans_of
from edge_client.generate.conversation import Conversation
from edge_client.generate.drafts import Drafter
from edge_client.generate.leaving_out import Played, contributions
from edge_client.generate.repetition import Repetition
from edge_client.generate.sampling import Picked, Sampler, Sampling, StreamText
from edge_client.generate.verdict import question_and_given, verdict_of
from edge_client.recall.outcome import MemoryRead
from edge_client.recall.policy import RecallPolicy
from edge_client.stream import (
    AnswerAttention,
    AnswerStream,
    Contribution,
    Event,
    Finished,
    Recalled,
    Span,
    Statistics,
    Token,
    TokenLogprob,
)
from memory3.errors import InvalidInput
from memory3.runtime.attention import QueryRecord
from memory3.text.chat import Message, Prompt
from memory3.text.refusal import is_refusal
from memory3.text.verdict import Verdict

CUT = ("length", "context", "repetition", "cancelled")
"""Reasons with which an answer may end inside a character, whose bytes are kept for what goes on with it."""


class Answer:
    """Reads a prompt and generates, in one iteration of `events`. One thread at a time.

    sequence: the conversation's key-values; they keep what was read. cancellation: tested before every run of the
    decoder and every token. conversation: whose turns may leave the cache while the answer goes on, and whose own
    memories are read; None for an answer that nothing follows, with the `messages` that it answers. worker: what
    recalls, in place of the engine's.
    """

    def __init__(
        self,
        engine: Engine,
        sequence: CachedSequence,
        prompt: Prompt,
        sampling: Sampling,
        policy: RecallPolicy,
        cancellation: Cancellation,
        conversation: Conversation | None = None,
        *,
        messages: Sequence[Message] = (),
        worker: RecallSource | None = None,
    ) -> None:
        self._sequence, self._prompt, self._sampling = sequence, prompt, sampling
        self._tokenizer = tokenizer = engine.bundle.tokenizer
        self._sampler = Sampler(sampling, sequence.decoder.config.vocabulary, prompt.ids)
        self._repetition = Repetition()
        self._cancellation, self._conversation = cancellation, conversation
        self._messages = messages
        self._stream = self._text_stream(sampling.stop)
        self._recalls = ChunkRecalls(engine, sequence, prompt, policy, cancellation, worker=worker)
        records = sampling.citations or (sampling.only_documents and engine.decoder.backend.records_queries)
        self._attention = AttentionLog(sequence, lambda: self._recalls.read) if records else None
        self._grounding = engine.bundle.manifest.grounding
        self._drafter = Drafter(prompt.ids) if engine.drafts else None
        self._drafts_from: tuple[MemoryRead, ...] = ()
        self._ends = set(tokenizer.stop_ids)
        self._refusal = engine.bundle.manifest.refusal
        self._refusal_ids = engine.bundle.chat.encode_answer(self._refusal.sentence)
        self._refuses = self._refusal_ids[0]
        probe, backend = engine.bundle.probe, engine.decoder.backend
        self._probe = probe.at(backend.precision) if probe is not None and backend.records_queries else None
        self._asked = self._attention.record if self._attention is not None else QueryRecord()
        self._generated: list[int] = []
        self._texts: list[str] = []  # of the tokens' events, in parallel
        self._reason = ""
        self._begun = self._away_s = self._first_token_s = 0.0

    def events(self) -> Iterator[Event]:
        """Recalled and Token events as they happen, then Finished, which also ends a cancelled answer.

        Closing the iterator early leaves nothing running, and what was read stays cached.
        """
        self._begun = time.perf_counter()
        sequence, reused, withheld = self._sequence, 0, list[Token]()
        before = sequence.decoder_s, sequence.drafted_tokens, sequence.accepted_tokens
        try:
            if self._conversation is not None:
                self._conversation.settle(self._cancellation)
                self._recalls.also = self._conversation.memories
            reused = self._sequence.begin(self._prompt.ids, memory=self._recalls.worker is not None)
            if self._conversation is not None and (earlier := self._conversation.take_recalls()) is not None:
                self._recalls.take_over(earlier)  # the prompt was read for this answer, in the background
                reused = 0
            if self._attention is not None:
                self._attention.begin()
            elif self._probe is not None:
                sequence.record = self._asked
            for event in self._tokens():
                if self._sampling.only_documents and isinstance(event, Token):
                    withheld.append(event)
                    continue
                left = time.perf_counter()
                yield event
                self._away_s += time.perf_counter() - left
        except CancelledError:
            self._reason = "cancelled"
        finally:
            if self._attention is not None:
                self._attention.end()
            sequence.record = None
            self._recalls.end()
            self._sequence.end()
        yield from self._pending_events()
        whole = self._reason != "cancelled"
        attention = self._attention.result() if self._attention is not None and whole else None
        refused, verdict = self._refused, self._verdict(attention)
        if self._sampling.only_documents and not whole:
            self.keep(0)  # nobody saw a token of it
        elif self._sampling.only_documents and verdict in (Verdict.from_the_model, None):
            withheld = [self._refuse()]
            refused, verdict = True, self._verdict(attention)
        yield from withheld if whole else ()
        spans: tuple[Span, ...] = ()
        own = refused or verdict is Verdict.from_the_model  # read from no memory
        if self._sampling.citations and attention is not None and not own:
            spans = spans_of(attention, self._texts, self._tokenizer)
        reused = min(reused, self._recalls.kept)
        drafted, accepted = sequence.drafted_tokens - before[1], sequence.accepted_tokens - before[2]
        statistics = self._statistics(reused, sequence.decoder_s - before[0], drafted, accepted)
        contributed = self._contributions() if self._sampling.explain and whole else ()
        yield Finished(
            self.shown,
            self._reason,
            statistics,
            self._recalls.failed,
            refused,
            spans,
            attention if self._sampling.citations else None,
            contributed,
            verdict,
            self._recalls.error,
        )

    def _tokens(self) -> Iterator[Event]:
        """Read the prompt, then one token after the other; every 64 of them get the memories of the next 64.

        The first 64 read what the last chunk of the prompt read (paper 3.1). What a chunk reads is recalled
        `lead_tokens` before it begins, so that decoding need not stand still: 0 when it shall wait ("exact").
        """
        recalls = self._recalls
        logits = recalls.read_prompt()
        yield from self._pending_events()
        if self._sampling.only_documents and not self._read_anything:
            self._generated, self._texts, self._reason = [self._refuses], [""], "end"
            return
        for number in count(1):
            bias = self._refusal_bias() if number == 1 else 0.0
            picked = self._sampler.pick(logits[-1], (self._refuses, bias) if bias else None)
            self._cancellation.check()
            self._first_token_s = self._first_token_s or self._seconds()
            if self._attention is not None:
                self._attention.generated()
            yield from self._pending_events()
            yield self._token(picked)
            if self._conversation is not None and recalls.worker is not None:
                self._conversation.make_room(
                    self._cancellation, bool(self._reason) or number % recalls.chunk_tokens == 0
                )
                recalls.also = self._conversation.memories
            if self._reason:
                return
            recalls.generated(picked.id, number)
            self._cancellation.check()
            logits = self._sequence.read([picked.id], draft=self._draft(picked.id, number))

    def _refusal_bias(self) -> float:
        """What the refusal's first token gets as first token of the answer; nothing where an answer goes on."""
        sequence, probe = self._sequence, self._probe
        if self._attention is None:
            sequence.record = None  # the queries of the prompt's last token are all that a probe reads
        if self._prompt.begun:
            return 0.0
        bias = self._refusal.bias_for(len(sequence.memories))
        if probe is None or (queries := self._asked.at(sequence.length - 1)) is None:
            return bias
        return bias + float(probe.biases(queries, len(sequence.memories)))

    def _draft(self, token: int, number: int) -> list[int]:
        """What probably follows token `number` of the answer, up to its chunk's end: the next chunk reads others."""
        if (drafter := self._drafter) is None:
            return []
        recalls = self._recalls
        if recalls.read is not self._drafts_from:
            self._drafts_from = recalls.read
            texts = [m.text for m in recalls.read if m.text and not m.refused]
            refusal = [self._refusal_ids] * bool(texts)
            drafter.read([*map(self._tokenizer.encode, texts), *refusal])
        drafter.add(token)
        most = min(self._sampling.max_tokens - number, self._sequence.room) - 1
        if recalls.worker is not None:
            most = min(most, recalls.chunk_tokens - number % recalls.chunk_tokens - 1)
        return drafter.draft(most)

    def _token(self, picked: Picked) -> Token:
        """The event of a token; sets the reason if it is the last one."""
        text = "" if picked.id in self._ends else self._stream.push(picked.id)
        self._generated.append(picked.id)
        if picked.id in self._ends:
            self._reason = "end"
        elif self._stream.stopped:
            self._reason = "stop"
        elif len(self._generated) >= self._sampling.max_tokens:
            self._reason = "length"
        elif self._sequence.full:
            self._reason = "context"
        elif self._sampling.constraint is None and self._repetition.add(picked.id):
            self._reason = "repetition"
        if self._reason:
            text += self._stream.flush(cut=self._reason in CUT)
        self._texts.append(text)
        top = tuple(TokenLogprob(i, self._tokenizer.piece(i), logprob) for i, logprob in picked.top)
        return Token(picked.id, text, picked.logprob, top)

    def _contributions(self) -> tuple[Contribution, ...]:
        played = Played(self._sequence, self._prompt.ids, self._generated, list(self._recalls.last.values()))
        try:
            return contributions(played, self._cancellation)
        except CancelledError:  # the answer itself is complete
            return ()

    def _verdict(self, attention: AnswerAttention | None) -> Verdict | None:
        """None for an answer that is not complete, or that a grammar shapes."""
        if self._reason == "cancelled" or self._sampling.constraint is not None:
            return None
        recalls, held = self._recalls.last.values(), bool(self._sequence.memories)
        return verdict_of(self.shown, self._refused, self._said, recalls, attention, self._grounding, held=held)

    def _refuse(self) -> Token:
        """The event of a refusal in place of the whole answer."""
        self._texts = [self._refusal.sentence]
        return Token(self._refuses, self._refusal.sentence)

    @property
    def _refused(self) -> bool:
        return is_refusal(self.shown, self._refusal.sentence)

    def _pending_events(self) -> list[Event]:
        own = self._conversation.events if self._conversation is not None else []
        events: list[Event] = [*own, *self._recalls.events]
        own.clear()
        self._recalls.events.clear()
        return events

    @property
    def _read_anything(self) -> bool:
        """Whether a memory is in the slots, or people gave a text in the conversation."""
        return bool(self._sequence.memories or question_and_given(self._said)[1])

    @property
    def _said(self) -> Sequence[Message]:
        """The messages that are answered."""
        return self._conversation.messages if self._conversation is not None else self._messages

    @property
    def began(self) -> bool:
        """Whether a token was generated."""
        return bool(self._generated)

    @property
    def shown(self) -> str:
        """The text of all events so far."""
        return "".join(self._texts)

    @property
    def token_ids(self) -> list[int] | None:
        """The generated tokens of the shown text; None where a stop string or a cancellation cut it."""
        tokens = [t for t in self._generated if t not in self._ends]
        stream = self._text_stream()
        text = "".join(map(stream.push, tokens)) + stream.flush(cut=self._reason in CUT)
        return tokens if text == self.shown else None

    def _text_stream(self, stop: Sequence[str] = ()) -> StreamText:
        """Of an answer's tokens. A grammar, or a text that is continued as it is, may want white space in front."""
        begun = self._prompt.ids if self._prompt.begun else ()
        turn = bool(self._said) and not begun and self._sampling.constraint is None
        return StreamText(self._tokenizer, stop, begun, turn=turn)

    @property
    def recalled(self) -> tuple[Recalled, ...]:
        """The last event of every chunk, without the memories' keys and values, which are megabytes."""
        return tuple(replace(r, recall=replace(r.recall, memories=())) for r in self._recalls.last.values())

    def keep(self, tokens: int) -> None:
        """Forget all but the first so many tokens: the caller never received the others."""
        del self._generated[tokens:], self._texts[tokens:]

    def _seconds(self) -> float:
        """Since the call, without the time in which the caller held an event."""
        return time.perf_counter() - self._begun - self._away_s

    def _statistics(self, reused: int, decoder_s: float, drafted: int, accepted: int) -> Statistics:
        seconds, number = self._seconds(), len(self._generated)
        last = list(self._recalls.last.values())
        prompt = sum(r.blocked_ms for r in last if not r.generated)
        blocked = sum(r.blocked_ms for r in last if r.generated)
        decoding_s = max(seconds - self._first_token_s, 1e-9)
        return Statistics(
            prompt_tokens=len(self._prompt.ids),
            reused_tokens=reused,
            generated_tokens=number,
            first_token_ms=1e3 * self._first_token_s,
            tokens_per_s=(number - 1) / decoding_s if number > 1 else 0.0,
            decoder_ms=1e3 * decoder_s,
            overhead_ms=1e3 * (seconds - decoder_s) - prompt - blocked,
            recalls=len(last),
            states=dict(Counter(r.state for r in last)),
            reasons=dict(Counter(r.recall.reason for r in last if r.recall.reason)),
            generated_recalls=sum(r.generated for r in last),
            prompt_blocked_ms=prompt,
            blocked_ms=blocked,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
        )


def checked(engine: Engine, prompt: Prompt, options: Mapping[str, Any]) -> Sampling:
    """The options of an answer; raises InvalidInput for wrong ones and ContextFull for a prompt that leaves no room."""
    engine.check_open()
    sampling = Sampling.of(options)
    sampling.check_vocabulary(engine.bundle.config.vocabulary)
    if sampling.only_documents and sampling.constraint is not None:
        raise InvalidInput("only_documents: a refusal is no answer of a grammar: leave one of the two out")
    if sampling.citations and not engine.decoder.backend.records_queries:
        raise InvalidInput(
            "citations: this bundle's decoder does not give the queries that they are computed of: export it again with"
            " `memory-model export`, or fetch a newer one with `edge-client pull`"
        )
    if len(prompt.ids) >= engine.decoder.room:
        longer = "open the model with a longer context (EDGE_CLIENT_CONTEXT)"
        if engine.bundle.writer is None:
            help = (
                f"the bundle has no writer.onnx, with which old turns would become memories: export it again with"
                f" `memory-model export`, or {longer}"
            )
        else:
            help = f"give a long text as a document (ask --file, ChatSession.remember), or {longer}"
        raise ContextFull(f"the prompt has {len(prompt.ids)} tokens, {engine.decoder.room - 1} fit", help=help)
    return sampling


def answer_stream(
    engine: Engine,
    sequence: CachedSequence,
    prompt: Prompt,
    sampling: Sampling,
    policy: RecallPolicy,
    done: Callable[[Answer], None] = lambda _: None,
    conversation: Conversation | None = None,
) -> AnswerStream:
    """The answer to a checked prompt; nothing is computed before its first event is requested.

    done: called once, when the answer is over. conversation: see `Answer`.
    """
    cancellation = Cancellation()
    answer = Answer(engine, sequence, prompt, sampling, policy, cancellation, conversation)
    stream = AnswerStream(answer, cancellation, lambda: done(answer))
    engine.register(stream)
    return stream
