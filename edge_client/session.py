"""`EdgeModel`: the SDK. One opened bundle, one conversation at a time, events as they happen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edge_client import flow
from edge_client.decoder import OnnxDecoder
from edge_client.errors import ContextFull, EdgeError
from edge_client.prompt import common_length, cut
from edge_client.recall import Recall, Recaller
from edge_client.retrieval_client import RetrievalClient
from edge_client.sampling import Sampler, Sampling
from edge_client.settings import EdgeSettings
from edge_client.stream_text import StreamText
from memory_model.bundle import Bundle
from memory_model.chat import Message, Prompt, prefix_ids
from memory_model.errors import CorruptFile, InvalidInput


@dataclass(frozen=True)
class Recalled:
    """A chunk got its memories, or none.

    chunk: number of the recall in this answer. generated: whether the chunk was generated, else it is part
    of the prompt. kept: after an error, how many memories are read on from before.
    """

    chunk: int
    generated: bool
    recall: Recall
    kept: int = 0


@dataclass(frozen=True)
class Token:
    """A token was generated, the end of the turn included. text: what may be shown now, often empty."""

    id: int
    text: str


@dataclass(frozen=True)
class Statistics:
    """What an answer cost. Times in milliseconds; tokens_per_s counts generated tokens after the first."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    first_token_ms: float = 0.0
    tokens_per_s: float = 0.0
    decoder_ms: float = 0.0
    overhead_ms: float = 0.0
    recalls: int = 0
    recall_ms: float = 0.0


@dataclass(frozen=True)
class Finished:
    """The answer is complete. reason: end, stop, length or context. without_memory: a recall failed."""

    text: str
    reason: str
    statistics: Statistics
    without_memory: bool


Event = Recalled | Token | Finished


@dataclass
class _Answering:
    """What one call of `generate` counts."""

    started: float
    recalls: list[Recalled] = field(default_factory=list)
    decoder_s: float = 0.0
    reported: int = 0


class EdgeModel:
    """Answers with memories from a service, or without. Not thread-safe: one answer at a time.

        with EdgeModel.open("build/bundle", service="127.0.0.1:7430") as model:
            for event in model.generate("What is the capital of Norway?"):
                ...

    A conversation that goes on keeps its key-values: only tokens that differ from the last prompt are read.
    """

    def __init__(self, bundle: Bundle, decoder: OnnxDecoder, recaller: Recaller | None) -> None:
        if decoder.config != bundle.config:
            raise CorruptFile(
                "decoder.onnx has another shape than the manifest says: export the bundle again"
            )
        self.bundle = bundle
        self.decoder = decoder
        self.recaller = recaller
        self._prefix = prefix_ids(bundle.tokenizer, bundle.config.memory)
        self._text_position = len(self._prefix) + bundle.config.memory.reference_tokens
        self._cached: list[int] = []
        self._with_memory = False
        self._prompt_length = 0
        self._memories = 0
        self._answer = 0
        decoder.run(self._prefix, 0)

    @classmethod
    def open(cls, bundle: str | Path | None = None, service: str | None = None, **settings: Any) -> EdgeModel:
        """Open a bundle and name a service (neither is needed if the environment says them).

        settings: fields of EdgeSettings. The service is not called before the first question. Raises
        MissingFile, CorruptFile and IdentityMismatch for the bundle.
        """
        given = {"bundle": bundle, "service": service, **settings}
        chosen = EdgeSettings(**{k: v for k, v in given.items() if v is not None})
        opened = Bundle.open(chosen.bundle)
        client = RetrievalClient(
            chosen.service, chosen.knowledge_base, opened.identity, opened.manifest.embedder_id,
            deadline_s=chosen.deadline_s, minimum_score=chosen.minimum_score,
        )  # fmt: skip
        embedder = opened.embedder(threads=chosen.embedder_threads)
        recaller = Recaller(embedder, client, opened.memory_format)
        return cls(opened, OnnxDecoder(opened.decoder, threads=chosen.threads), recaller)

    def close(self) -> None:
        """Close the connection to the service."""
        if self.recaller is not None:
            self.recaller.client.close()

    def __enter__(self) -> EdgeModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(
        self, messages: str | Sequence[Message], *, max_tokens: int = 256, temperature: float = 0.0, top_p: float = 1.0,
        seed: int | None = None, stop: Sequence[str] = (), memory: bool = True,
    ) -> Iterator[Event]:  # fmt: skip
        """Answer a question (str) or a conversation, event by event: Recalled, Token, and Finished at the end.

        memory: False answers without recalling. A service that is down, slow or wrong never raises here: its
        Recalled event carries the error and the answer goes on. Arguments are checked at once, before the
        first event is asked for. Raises InvalidInput, ContextFull.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        prompt = self.bundle.chat.prompt(messages)
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise InvalidInput(f"max_tokens must be a positive int, not {max_tokens!r}")
        room = self.decoder.capacity - len(self._prefix)
        if len(prompt.ids) >= room:
            raise ContextFull(
                f"the prompt has {len(prompt.ids)} tokens, {room - 1} fit: shorten the conversation"
            )
        sampler = Sampler(Sampling(temperature, top_p, seed))
        stream = StreamText(self.bundle.tokenizer, stop)
        return self._generate(prompt, max_tokens, sampler, stream, memory and self.recaller is not None)

    def _generate(
        self, prompt: Prompt, max_tokens: int, sampler: Sampler, stream: StreamText, memory: bool
    ) -> Iterator[Event]:
        state = _Answering(time.perf_counter())
        self._answer += 1
        answer = self._answer
        reused = self._rewind(prompt.ids, memory)
        recall = self.recaller.recall if memory and self.recaller else None

        def recalling(queries: Sequence[str]) -> list[Recall]:
            return recall(queries) if recall else [Recall(q) for q in queries]

        def inject(start: int, found: Recall) -> None:
            if recall:
                state.recalls.append(self._inject(found, len(state.recalls), generated=start < 0))

        def read(tokens: Sequence[int]) -> np.ndarray:
            if answer != self._answer:
                raise EdgeError("another answer was begun on this model: finish one before the next")
            begun = time.perf_counter()
            logits = self.decoder.run(tokens, self._text_position + len(self._cached))
            state.decoder_s += time.perf_counter() - begun
            self._cached.extend(tokens)
            return logits

        chunk_tokens = self.bundle.config.memory.chunk_tokens
        chunks = cut(prompt, self.bundle.tokenizer, chunk_tokens, reused)
        logits = flow.read_prompt(chunks, recalling, inject, read)
        yield from self._news(state)
        tokens = flow.decode(
            logits, sampler.pick, chunk_tokens, lambda ids: self.bundle.tokenizer.decode(ids).strip(),
            recalling, inject, read,
        )  # fmt: skip
        ends = {self.bundle.tokenizer.end_of_turn_id, self.bundle.tokenizer.eos_id}
        first_token, count, reason = 0.0, 0, ""
        for token in tokens:
            yield from self._news(state)
            first_token = first_token or time.perf_counter()
            count += 1
            text = "" if token in ends else stream.push(token)
            if token in ends:
                reason = "end"
            elif stream.stopped:
                reason = "stop"
            elif count >= max_tokens:
                reason = "length"
            elif self.decoder.length >= self.decoder.capacity:
                reason = "context"
            yield Token(token, text + stream.flush() if reason else text)
            if reason:
                break
        finished = time.perf_counter()
        decoding_s = max(finished - first_token, 1e-9)
        recall_ms = sum(_total(r) for r in state.recalls)
        total_ms = 1e3 * (finished - state.started)
        statistics = Statistics(
            prompt_tokens=len(prompt.ids), reused_tokens=reused, generated_tokens=count,
            first_token_ms=1e3 * (first_token - state.started), tokens_per_s=(count - 1) / decoding_s,
            decoder_ms=1e3 * state.decoder_s, overhead_ms=total_ms - 1e3 * state.decoder_s - recall_ms,
            recalls=len(state.recalls), recall_ms=recall_ms,
        )  # fmt: skip
        failed = any(r.recall.error for r in state.recalls)
        yield Finished(stream.text, reason, statistics, failed)

    def _rewind(self, ids: Sequence[int], memory: bool) -> int:
        """Keep what is cached of this prompt; returns how many of its tokens need not be read again.

        At least one token is read, for its logits. What was read with memories is kept only if this prompt
        continues that conversation: another question has other memories, and its first tokens read them too.
        A cache read without memories does not serve an answer with memories, nor the other way round.
        """
        same = common_length(self._cached, ids) if memory == self._with_memory else 0
        if memory and not self._prompt_length <= same < len(ids):
            same = 0
        same = min(same, len(ids) - 1)
        self._cached = self._cached[:same]
        self._with_memory, self._prompt_length = memory, len(ids)
        self.decoder.rewind(len(self._prefix) + same)
        if not same or not memory:
            self.decoder.inject([])
            self._memories = 0
        return same

    def _inject(self, found: Recall, chunk: int, *, generated: bool) -> Recalled:
        """Put a recall's memories into the slots; after an error in a generated chunk keep the old ones."""
        begun = time.perf_counter()
        kept = 0
        if found.error and generated:
            kept = self._memories
        else:
            self.decoder.inject(found.memories)
            self._memories = len(found.memories)
        inject_ms = 1e3 * (time.perf_counter() - begun)
        return Recalled(
            chunk, generated, replace(found, times=replace(found.times, inject_ms=inject_ms)), kept
        )

    @staticmethod
    def _news(state: _Answering) -> list[Recalled]:
        news = state.recalls[state.reported :]
        state.reported = len(state.recalls)
        return news


def _total(recalled: Recalled) -> float:
    times = recalled.recall.times
    return times.embed_ms + times.call_ms + times.decompress_ms + times.inject_ms
