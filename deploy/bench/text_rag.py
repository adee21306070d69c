"""Text RAG on our own runtime, the peer of memory: the same references, read as text in the prompt.

once a query    embed, ask for five references, read them and the question, decode
every chunk     the same again after each chunk of the answer, which is our cadence; the prompt changes at its
                front, so nothing that was read before can be reused
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from deploy.bench.answering import AnswerSettings, answer
from deploy.bench.knowledge import prompts
from edge_client import EdgeModel
from edge_client.recall.recaller import Recaller
from memory_model.words import query_words


class TextRetrieval:
    """The references of a query as text, by the model's own embedder and client; no payload is sent twice."""

    def __init__(self, model: EdgeModel) -> None:
        assert isinstance(model.recaller, Recaller)
        assert model.recaller.client is not None
        self._embedder, self._client = model.recaller.embedder, model.recaller.client
        self._known: set[int] = set()
        self._k = model.bundle.config.memory.memories_per_chunk

    def references(self, query: str) -> list[str]:
        """Best first; raises a RetrievalError."""
        vectors = self._embedder.embed([query])
        held_ids = sorted(self._known)
        words = [query_words(query)]
        (hits,) = self._client.retrieve(vectors, k=self._k, words=words, held_ids=held_ids).hits
        self._known.update(hit.memory_id for hit in hits)
        return [hit.text or "" for hit in hits]

    def seconds(self, query: str) -> float:
        """How long asking takes."""
        began = time.perf_counter()
        self.references(query)
        return time.perf_counter() - began


class TextRag:
    """Answers with references as text. Making a prompt's text is not timed: it is prepared for each question."""

    def __init__(self, model: EdgeModel, questions: Sequence[str], settings: AnswerSettings) -> None:
        bundle = model.bundle
        memory = bundle.config.memory
        self._model, self._questions, self._settings = model, questions, settings
        self.retrieval = TextRetrieval(model)
        self.read_tokens = memory.memories_per_chunk * memory.reference_tokens
        self._chunk = memory.chunk_tokens
        texts = [self._as_text(self.retrieval.references(question)) for question in questions]
        # After every chunk the prompt has grown by it; a passage as long stands for what was said.
        lengths = range(0, settings.answer_tokens, self._chunk)
        self._prompts = [
            prompts(bundle, len(questions), settings.prompt_tokens + self.read_tokens + said, before=texts)
            for said in lengths
        ]
        for question in questions:  # all payloads are here then: only text is sent when it is timed
            self.retrieval.references(question)

    def once(self, number: int) -> float:
        """Seconds of an answer with one retrieval."""
        seconds = self.retrieval.seconds(self._questions[number])
        return seconds + self._say(self._prompts[0][number], self._settings.answer_tokens)

    def every_chunk(self, number: int) -> float:
        """Seconds of an answer with a retrieval for every chunk of it."""
        seconds, left = 0.0, self._settings.answer_tokens
        for said in self._prompts:
            seconds += self.retrieval.seconds(self._questions[number])
            seconds += self._say(said[number], min(left, self._chunk))
            left -= self._chunk
        return seconds

    def _say(self, prompt: str, tokens: int) -> float:
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
