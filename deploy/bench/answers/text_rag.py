"""Text RAG on our own runtime, the peer of memory: the same references, read as text in the prompt.

once a query    embed, ask for five references, read them and the question, decode
every chunk     the same again after each chunk of the answer, which is our cadence; the prompt changes at its
                front, so nothing that was read before can be reused
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from deploy.bench.answers.answering import AnswerSettings, answer
from deploy.bench.answers.knowledge import prompts
from edge_client import EdgeModel
from memory3.text.words import query_words


class TextRag:
    """Answers with references as text, by the model's own embedder and client. Prompts are made before the clock."""

    def __init__(self, model: EdgeModel, questions: Sequence[str], settings: AnswerSettings) -> None:
        assert model.engine.recaller.client is not None
        self._embedder, self._client = model.engine.recaller.embedder, model.engine.recaller.client
        memory = model.bundle.config.memory
        self._model, self._questions, self._settings = model, questions, settings
        self._k, self._chunk = memory.memories_per_chunk, memory.chunk_tokens
        self._known: set[int] = set()
        self.read_tokens = self._k * memory.reference_tokens
        texts = [self._as_text(self.references(question)) for question in questions]
        # After every chunk the prompt has grown by it; a passage as long stands for what was generated.
        self._prompts = [
            prompts(model.bundle, len(questions), settings.prompt_tokens + self.read_tokens + generated, before=texts)
            for generated in range(0, settings.answer_tokens, self._chunk)
        ]
        for question in questions:  # all payloads are here then: only text is sent when it is timed
            self.references(question)

    def references(self, query: str) -> list[str]:
        """Texts, best first; no payload is sent twice. Raises a RetrievalError."""
        vectors, held_ids = self._embedder.embed([query]), sorted(self._known)
        (hits,) = self._client.retrieve(vectors, k=self._k, words=[query_words(query)], held_ids=held_ids).hits
        self._known.update(hit.memory_id for hit in hits)
        return [hit.text or "" for hit in hits]

    def retrieval_s(self, number: int) -> float:
        """How long retrieving takes."""
        began = time.perf_counter()
        self.references(self._questions[number])
        return time.perf_counter() - began

    def once(self, number: int) -> float:
        """Seconds of an answer with one retrieval."""
        return self.retrieval_s(number) + self._generate(self._prompts[0][number], self._settings.answer_tokens)

    def every_chunk(self, number: int) -> float:
        """Seconds of an answer with a retrieval for every chunk of it."""
        seconds, left = 0.0, self._settings.answer_tokens
        for generated in self._prompts:
            seconds += self.retrieval_s(number)
            seconds += self._generate(generated[number], min(left, self._chunk))
            left -= self._chunk
        return seconds

    def _generate(self, prompt: str, tokens: int) -> float:
        return answer(self._model, prompt, "off", tokens).total_s

    def _as_text(self, references: Sequence[str]) -> str:
        """The references one after the other, each repeated or cut to its share: as many tokens for every question."""
        tokenizer = self._model.bundle.tokenizer
        share = self.read_tokens // max(len(references), 1)
        parts = []
        for text in references or [""]:
            ids = tokenizer.encode(text + "\n") or tokenizer.encode("\n")
            parts.append(tokenizer.decode((ids * (share // len(ids) + 1))[:share]))
        return "".join(parts)
