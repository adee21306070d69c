"""GET /v1/suggestions: questions for an empty conversation, each of which the model has answered from its document.

document -> its first reference -> questions about its "label: value" lines -> asked -> kept where the value came back
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query

from edge_client.errors import RetrievalError
from edge_client.model import EdgeModel
from edge_client.retrieval import names_of
from edge_client.serve.completions import Answering
from edge_client.serve.requests import BASE_NAME
from edge_client.serve.schema import SuggestionList, ok
from edge_client.stream import Result
from memory3.errors import Memory3Error

MOST = 3
TRIES = 9
"""Questions that are asked for one list; each costs a short answer."""
VALUES = 2
"""Of a document about which is asked before the whole; the others come after it."""
DOCUMENTS = 6
TOKENS = 48
"""Of an answer."""
Documents = tuple[tuple[str, str, int], ...]
"""Key, title and number of references of each."""
_LABEL = re.compile(r"([^\W\d_][^:;|.?!]{0,38}): (\S[^|]{0,78})")
_BULLETS = " \t-*•"
_FEWEST, _SHARE = 3, 0.8
"""Words that an answer about a whole document has, and which of them are to stand in what was read."""
_LEAST_LETTERS = 4


@dataclass(frozen=True)
class Suggestion:
    """A question about a document. value: what the answer is to hold; empty for any answer from what was read."""

    question: str
    key: str
    value: str = ""

    def answered_by(self, result: Result) -> bool:
        """Whether the model answered from the document, with the value."""
        read = [memory for memory in result.memories if memory.document_key == self.key]
        if result.refused or not read:
            return False
        answer = _words(result.text)
        if value := _words(self.value):
            return any(answer[n : n + len(value)] == value for n in range(len(answer)))
        known = {word for memory in read for word in _words(memory.text or "")}
        told = {word for word in answer if len(word) >= _LEAST_LETTERS}
        return len(told) >= _FEWEST and len(told & known) >= _SHARE * len(told)


def suggestions_of(key: str, title: str, text: str) -> Iterator[Suggestion]:
    """Questions about a reference, whose first line is its title: about its values, then about the whole."""
    subject = title or key
    for line in text.split("\n"):
        line = line.lstrip(_BULLETS).replace("**", "")
        found = [match for part in line.split("; ") if (match := _LABEL.fullmatch(part.strip()))]
        if not found or len(found) != line.count("; ") + 1:
            continue
        of = found[0][2] if len(found) > 1 else subject  # a table's row begins with what it is about
        label, value = found[-1].groups()
        if len(label.split()) <= 5 and value.casefold() not in of.casefold():
            plain = label[0].lower() + label[1:] if label[1:2].islower() else label
            yield Suggestion(f"What is the {plain} of {of}?", key, value.rstrip("."))
    yield Suggestion(f"What is known about {subject}?", key)


def in_turn(documents: Iterable[Sequence[Suggestion]], suggested: Container[str]) -> Iterator[Suggestion]:
    """A question about each document in turn; about one whose key is in `suggested` when no other is left."""
    rest = [deque(of_one) for of_one in documents if of_one]
    while rest:
        rest.sort(key=lambda of_one: of_one[0].key in suggested)
        of_one = rest.pop(0)
        yield of_one.popleft()
        if of_one:
            rest.append(of_one)


def suggestion_routes(answering: Answering) -> APIRouter:
    """The route. Lists are made one at a time, only while nobody else waits for an answer, and kept."""
    router, one_at_a_time = APIRouter(), anyio.Lock()
    made: dict[object, list[str]] = {}

    @router.get("/v1/suggestions", responses=ok(SuggestionList))
    async def suggestions(
        knowledge_base: Annotated[str, Query(pattern=rf"^({BASE_NAME}(,{BASE_NAME})*)?$")] = "",
    ) -> dict[str, Any]:
        """Questions about documents of the first knowledge base, or of this device, that the model answers."""
        async with one_at_a_time:
            if knowledge_base:
                await anyio.to_thread.run_sync(answering.check, knowledge_base)
            model = answering.reading(knowledge_base)
            listed = await anyio.to_thread.run_sync(_documents_of_service, model)
            of_device = not listed
            if of_device:
                listed = await anyio.to_thread.run_sync(_documents_of_device, model)
            if listed in made:
                return {"data": made[listed]}
            with contextlib.ExitStack() as asked:
                if of_device:  # the service is told nothing of what is in them
                    model = asked.enter_context(EdgeModel(model.engine.without_service()))
                found, all_tried = await answered(model, listed)
            if all_tried:
                made.clear()
                made[listed] = found
            return {"data": found}

    async def answered(model: EdgeModel, listed: Documents) -> tuple[list[str], bool]:
        """Questions that were answered; and whether all were tried, because whoever asks goes first."""
        found: list[str] = []
        suggested = set[str]()
        of_each = [await anyio.to_thread.run_sync(_suggestions, model, key, title) for key, title, _ in listed]
        for suggestion in islice(in_turn(of_each, suggested), TRIES):
            if answering.queue.running or answering.queue.waiting:
                return found, False
            async with answering.queue.turn:
                kept = await anyio.to_thread.run_sync(_is_answered, model, suggestion)
            if kept:
                found.append(suggestion.question)
                suggested.add(suggestion.key)
            if len(found) == MOST:
                break
        return found, True

    return router


def _documents_of_service(model: EdgeModel) -> Documents:
    """Some documents of the first knowledge base; none where the service does not answer."""
    client = model.engine.recaller.client
    if client is None or model.engine.recaller.closed() is not None:
        return ()
    try:
        found, _ = client.documents(names_of(client.knowledge_base)[0], "", DOCUMENTS)
    except RetrievalError:
        return ()
    return tuple((one.key, one.title, one.references) for one in found)


def _documents_of_device(model: EdgeModel) -> Documents:
    local = (one for documents in model.local.documents().values() for one in documents)
    return tuple((one.key, one.title, one.references) for one in islice(local, DOCUMENTS))


def _suggestions(model: EdgeModel, key: str, title: str) -> list[Suggestion]:
    """Of the document's reference that is nearest to its title."""
    (found,) = model.engine.recaller.recall([title or key])
    text = next((memory.text for memory in found.read if memory.document_key == key and memory.text), "")
    *values, whole = suggestions_of(key, title, text)
    return [*values[:VALUES], whole, *values[VALUES:]] if text else []


def _is_answered(model: EdgeModel, suggestion: Suggestion) -> bool:
    """Asks in a conversation of its own, so that those that are kept stay."""
    try:
        return suggestion.answered_by(model.session().send(suggestion.question, max_tokens=TOKENS).result())
    except Memory3Error:
        return False


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
