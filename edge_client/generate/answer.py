"""One answer from its prompt to its last event: the loop around `edge_client.generate.loop`, and what it counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from edge_client.cancellation import Cancellation
from edge_client.decoder.sequence import Sequence as Text
from edge_client.events import Blocked, Event, Finished, Statistics, Token, TokenLogprob
from edge_client.generate import loop as flow
from edge_client.generate.chunk_recalls import ChunkRecalls
from edge_client.generate.options import Sampling
from edge_client.generate.prompt import cut
from edge_client.generate.sampling import Picked, Sampler
from edge_client.generate.text import StreamText
from edge_client.recall.worker import RecallPolicy, RecallWorker
from memory_model.chat import Prompt
from memory_model.tokenizer import Tokenizer


class _Cancelled(Exception):
    """Somebody wants no more of this answer."""


class Answer:
    """Reads a prompt and generates, in one iteration of `events`. One thread at a time.

    text: the caches; they keep what was read. worker: None answers without memories. cancellation: looked at
    before every run of the decoder and every token.
    """

    def __init__(
        self, text: Text, prompt: Prompt, sampling: Sampling, tokenizer: Tokenizer, worker: RecallWorker | None,
        policy: RecallPolicy, cancellation: Cancellation,
    ) -> None:  # fmt: skip
        self._text, self._prompt, self._sampling, self._tokenizer = text, prompt, sampling, tokenizer
        self._sampler = Sampler(sampling, text.decoder.config.vocabulary, prompt.ids)
        self._stream = StreamText(tokenizer, sampling.stop)
        self._worker, self._cancellation = worker, cancellation
        content = [t for t, said in zip(prompt.ids, prompt.content, strict=True) if said]
        self._recalls = ChunkRecalls(
            text, worker, policy, lambda ids: tokenizer.decode(ids).strip(), content, cancellation
        )
        self._ends = set(tokenizer.stop_ids)
        self._generated: list[int] = []
        self._reason = ""
        self._begun = time.perf_counter()
        self._away_s = 0.0
        self._first_token_s = 0.0

    @property
    def began(self) -> bool:
        """Whether a token was generated."""
        return bool(self._generated)

    @property
    def shown(self) -> str:
        """The text of all events so far."""
        return self._stream.text

    @property
    def said(self) -> list[int] | None:
        """The generated tokens that spell the shown text, or None where a stop string or a cancellation cut it."""
        tokens = [t for t in self._generated if t not in self._ends]
        return tokens if self._tokenizer.decode(tokens) == self.shown else None

    def events(self) -> Iterator[Event]:
        """Recalled and Token events as they happen, then Finished, which also ends a cancelled answer.

        Whoever closes the iterator early leaves nothing running, and what was read stays cached.
        """
        decoder_s = self._text.decoder_s
        reused = self._text.begin(self._prompt.ids, memory=self._worker is not None)
        try:
            for event in self._reading(reused):
                left = time.perf_counter()
                yield event
                self._away_s += time.perf_counter() - left
        except _Cancelled:
            self._reason = "cancelled"
        finally:
            self._recalls.end()
            self._text.end()
        yield from self._news()
        statistics = self._statistics(reused, self._text.decoder_s - decoder_s)
        yield Finished(self.shown, self._reason, statistics, self._recalls.failed)

    def _reading(self, reused: int) -> Iterator[Event]:
        """Everything up to the last token; sets why that was the last one."""
        chunks = cut(
            self._prompt,
            self._tokenizer,
            self._recalls.chunk_tokens,
            reused,
            held=bool(self._text.held.memories),
        )
        logits = flow.read_prompt(chunks, self._recalls, self._read)
        yield from self._news()
        for picked in flow.decode(logits, self._sampler.pick, self._recalls, self._read):
            self._go_on()
            self._first_token_s = self._first_token_s or self._seconds()
            yield from self._news()
            token = self._token(picked)
            yield token
            if self._reason:
                return

    def _token(self, picked: Picked) -> Token:
        self._generated.append(picked.id)
        text = "" if picked.id in self._ends else self._stream.push(picked.id)
        if picked.id in self._ends:
            self._reason = "end"
        elif self._stream.stopped:
            self._reason = "stop"
        elif len(self._generated) >= self._sampling.max_tokens:
            self._reason = "length"
        elif self._text.full:
            self._reason = "context"
        if self._reason:
            text += self._stream.flush()
        top = tuple(TokenLogprob(i, self._spelled(i), logprob) for i, logprob in picked.top)
        return Token(picked.id, text, picked.logprob, top)

    def _spelled(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special=False)

    def _read(self, tokens: Sequence[int]) -> np.ndarray:
        self._go_on()
        return self._text.read(tokens)

    def _go_on(self) -> None:
        if self._cancellation.cancelled:
            raise _Cancelled

    def _news(self) -> list[Event]:
        news: list[Event] = [*self._recalls.news]
        self._recalls.news.clear()
        return news

    def _seconds(self) -> float:
        """Since the call, without the time in which the caller held an event."""
        return time.perf_counter() - self._begun - self._away_s

    def _statistics(self, reused: int, decoder_s: float) -> Statistics:
        seconds, number = self._seconds(), len(self._generated)
        told = list(self._recalls.told.values())
        prompt, blocked = Blocked(), Blocked()
        for recalled in told:
            if recalled.generated:
                blocked = blocked.plus(recalled.blocked)
            else:
                prompt = prompt.plus(recalled.blocked)
        decoding_s = max(seconds - self._first_token_s, 1e-9)
        return Statistics(
            prompt_tokens=len(self._prompt.ids), reused_tokens=reused, generated_tokens=number,
            first_token_ms=1e3 * self._first_token_s,
            tokens_per_s=(number - 1) / decoding_s if number > 1 else 0.0, decoder_ms=1e3 * decoder_s,
            overhead_ms=1e3 * (seconds - decoder_s) - prompt.total_ms - blocked.total_ms,
            recalls=len(told), states=dict(Counter(r.state for r in told)),
            generated_recalls=sum(r.generated for r in told), prompt_blocked=prompt, blocked=blocked,
        )  # fmt: skip
