"""One answer of fixed length by the SDK, as its own statistics count it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from deploy.bench.scenario import ScenarioFailed, TargetSettings
from edge_client import EdgeModel, Finished, Recalled
from edge_client.retrieval import RetrievalResult
from edge_client.stream import Statistics
from edge_client.wire.client import MemoryClient
from memory3.text.tokenizer import Tokenizer

NEVER = -100.0
"""The bias that keeps an answer from ending by itself."""


class Endless:
    """A `TokenConstraint` with which an answer ends neither by itself nor because it repeats itself."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._ends = list(tokenizer.stop_ids)

    def allow(self, logits: np.ndarray) -> np.ndarray:
        """All but the tokens that end an answer."""
        logits[self._ends] = -np.inf
        return logits

    def took(self, token: int) -> None:
        """Nothing depends on it."""


NO_LOCAL = Path("build/none")
"""A folder without knowledge bases: what the user remembers is not read."""


class AnswerSettings(TargetSettings):
    """Settings of scenarios in which the SDK answers.

    prompt_tokens, answer_tokens: the paper's lengths by default (its table of throughputs).
    memory_cache_mb: memories that the device keeps; 0, so that every recall is a real one.
    """

    prompt_tokens: int = Field(default=128, ge=32, le=4096)
    answer_tokens: int = Field(default=128, ge=2, le=4096)
    memory_cache_mb: float = Field(default=0, ge=0)

    def open(self, address: str, bundle: Path | None = None) -> EdgeModel:
        """The bundle on the CPU, calling the service at `address`; raises a Memory3Error.

        Queries carry no words, by which the service leaves out weak hits: a cost is measured with five memories.
        """
        model = EdgeModel.open(
            bundle or self.bundle,
            address,
            threads=self.threads,
            provider="cpu",
            memory_cache_mb=self.memory_cache_mb,
            local=NO_LOCAL,
        )
        if model.engine.recaller.client is not None:
            model.engine.recaller.client = WithoutWords(model.engine.recaller.client)  # type: ignore[assignment]
        return model


class WithoutWords:
    """Stands before a client and keeps the words of queries from the service."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client

    def retrieve(self, vectors: np.ndarray, *, words: Sequence[Sequence[int]] = (), **rest: Any) -> RetrievalResult:
        """As the client's."""
        return self._client.retrieve(vectors, **rest)

    def close(self) -> None:
        """As the client's."""
        self._client.close()


@dataclass(frozen=True)
class Answered:
    """What one answer cost. total_s: from `send` to the end, prompt and its recall included."""

    statistics: Statistics
    recalls: tuple[Recalled, ...]
    total_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of decoding: the tokens after the first."""
        return self.statistics.tokens_per_s

    @property
    def end_to_end_tokens_per_s(self) -> float:
        """The paper's throughput: all tokens of the answer by all time."""
        return self.statistics.generated_tokens / self.total_s

    @property
    def generated(self) -> list[Recalled]:
        """The recalls of generated chunks, each as last reported."""
        return list({r.chunk: r for r in self.recalls if r.generated}.values())


def answer(model: EdgeModel, text: str, recall: str, tokens: int, *, citations: bool = False) -> Answered:
    """A new conversation that says `text` and hears exactly `tokens` tokens. Raises ScenarioFailed if it does not.

    recall: overlap, exact or off. The caches are made and the prefix is read before the clock starts.
    """
    session = model.session(memory=recall)
    recalls: list[Recalled] = []
    finished: Finished | None = None
    began = time.perf_counter()
    endless = Endless(model.bundle.tokenizer)
    for event in session.send(text, max_tokens=tokens, constraint=endless, citations=citations):
        if isinstance(event, Recalled):
            recalls.append(event)
        elif isinstance(event, Finished):
            finished = event
    total_s = time.perf_counter() - began
    if finished is None or finished.statistics.generated_tokens != tokens:
        raise ScenarioFailed(f"the answer has not {tokens} tokens: {finished and finished.reason}")
    return Answered(finished.statistics, tuple(recalls), total_s)


def require_memories(answers: Sequence[Answered]) -> None:
    """Raise ScenarioFailed unless every prompt chunk read memories: a figure without them would mean nothing."""
    for one in answers:
        wrong = [r.recall.error or "none was found" for r in one.recalls if not r.generated and not r.recall.memories]
        if wrong or not one.recalls:
            raise ScenarioFailed(f"no memories were read, so nothing was measured: {'; '.join(wrong) or 'no recall'}")
