"""Likelihoods and greedy answers of any texts, read with memories: what a benchmark harness asks of a model.

Every context reads one set of memories: those that its last tokens retrieve, the same few references for all,
or none. Contexts are cut on the left where they are too long, as harnesses do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.eval.retrieval import CANDIDATES, KnowledgeBase, query_of
from memory_model.eval.subject import Subject
from memory_model.nn.decoder import MemoryBatch
from memory_model.nn.generate import answer_scores, greedy

Source = Callable[[Sequence[str]], list[list[str]]]
"""Query texts to the references that each reads; an empty query has nothing to ask with."""


@dataclass(frozen=True)
class Asked:
    """One request: context and continuation as token ids, and the text to recall with."""

    context: list[int]
    continuation: list[int]
    query: str


class Reader:
    """Answers for one subject and one source of memories. One thread at a time."""

    def __init__(
        self, subject: Subject, source: Source | None = None, *, batch_size: int = 8, max_tokens: int = 1024
    ) -> None:
        if source is not None and not subject.prefix:
            raise InvalidInput("the plain model reads no memories: use memory=none, or give an adapter")
        self.subject, self.source, self.batch_size, self.max_tokens = subject, source, batch_size, max_tokens
        self.tokenizer = subject.loaded.tokenizer

    def asked(self, context: str, continuation: str = "", query: str | None = None) -> Asked:
        """Tokens of a request. White space at the context's end belongs to the continuation.

        query: by default the last tokens of the context, as many as a chunk has.
        """
        body = context.rstrip()
        whole = self.tokenizer.encode(context + continuation)
        ids = self.tokenizer.encode(body if continuation else context)
        if query is None:
            chunk = self.subject.loaded.config.memory.chunk_tokens
            query = query_of(context, self.tokenizer, chunk) if context.strip() else ""
        return Asked(ids or [self.tokenizer.bos_id], whole[len(ids) :] if continuation else [], query)

    def likelihoods(
        self, requests: Sequence[Asked], progress: Callable[[int], None] | None = None
    ) -> list[tuple[float, bool]]:
        """For each request the log likelihood of its continuation (nats), and whether it is the greedy one."""
        result: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        order = sorted(range(len(requests)), key=lambda n: len(requests[n].context))
        for start in range(0, len(order), self.batch_size):
            numbers = [n for n in order[start : start + self.batch_size] if requests[n].continuation]
            batch = [requests[n] for n in numbers]
            if batch:
                room = [max(1, self.max_tokens - len(r.continuation)) for r in batch]
                contexts = [r.context[-most:] for r, most in zip(batch, room, strict=True)]
                scores = answer_scores(
                    self.subject.loaded.model, contexts, [r.continuation for r in batch], self.subject.prefix,
                    self._memories(batch),
                )  # fmt: skip
                for n, score in zip(numbers, scores, strict=True):
                    result[n] = score
            if progress is not None:
                progress(len(order[start : start + self.batch_size]))
        return result

    def generate(self, request: Asked, longest: int, until: Sequence[str] = ()) -> str:
        """Greedy text after a context, at most `longest` tokens, cut before the first of `until`."""
        tokenizer = self.tokenizer
        stop = (tokenizer.eos_id, tokenizer.end_of_turn_id)
        context = request.context[-max(1, self.max_tokens - longest) :]
        ids = greedy(
            self.subject.loaded.model, [context], self.subject.prefix, self._memories([request]), stop, longest
        )  # fmt: skip
        text = tokenizer.decode(ids[0])
        ends = [text.find(mark) for mark in until if mark and mark in text]
        return text[: min(ends)] if ends else text

    def _memories(self, batch: Sequence[Asked]) -> MemoryBatch | None:
        if self.source is None:
            return None
        found = self.source([r.query for r in batch])
        if not any(found):
            return None
        self.subject.bank.write(text for texts in found for text in texts)
        return self.subject.bank.read(found)


def retrieved(base: KnowledgeBase, memories: int, candidates: int = CANDIDATES) -> Source:
    """What each query finds in a knowledge base."""

    def find(queries: Sequence[str]) -> list[list[str]]:
        asked = [q for q in queries if q]
        found = iter(base.nearest(asked, memories, candidates=candidates) if asked else [])
        return [[base.references[n] for n in next(found)] if q else [] for q in queries]

    return find


def fixed(path: Path, memories: int) -> Source:
    """The references of a JSON list of texts, read by every request. Raises MissingFile or CorruptFile."""
    if not path.is_file():
        raise MissingFile(f"no references at {path}: memory is none, retrieved, or a JSON list of texts")
    try:
        texts = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} is not JSON: {error}") from error
    if not isinstance(texts, list) or not all(isinstance(t, str) and t.strip() for t in texts):
        raise CorruptFile(f"{path} is no list of texts that are not empty")
    if not 1 <= len(texts) <= memories:
        raise InvalidInput(f"{path} holds {len(texts)} references, 1 to {memories} are read at once")
    return lambda queries: [list(texts) for _ in queries]
