"""From the wire's request to what a store searches: whatever a request can have wrong is refused here, by field."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from memory3.text.words import DEFAULT_RANKING, QueryWords, Ranking, query_words
from memory_service.encoder import read_vectors
from memory_service.errors import BadRequest
from memory_service.settings import MAX_HELD_IDS, MAX_HITS, MAX_QUERIES, Settings
from memory_service.stores.filters import (
    MAX_CONDITIONS,
    MAX_DEPTH,
    And,
    Exists,
    Filter,
    In,
    Not,
    Or,
    Range,
    conditions,
    equal_to,
)
from memory_service.stores.store import Query, WriterIdentity, require_readable
from protos.memory.v1 import filter_pb2, retrieval_pb2

_MAX_TEXTS, _MAX_TEXT_BYTES = 32, 8192
_MAX_FILTER_BYTES, _MAX_FILTER_VALUES = 65536, 1000
_MAX_EQUAL = 16
_MAX_WORDS = 512
_MAX_EARLIER = 8
_BOUNDS = ("at_least", "above", "at_most", "below")

Embed: TypeAlias = Callable[[list[str]], Awaitable[np.ndarray]]
"""Texts to unit vectors float32 [n, dimension]."""


async def read_query(
    request: retrieval_pb2.RetrieveRequest,
    identity: WriterIdentity,
    settings: Settings,
    memories_per_chunk: int,
    embed: Embed,
) -> Query:
    """The checked query of a request; raises the errors that retrieval.proto lists.

    identity: of the knowledge base. memories_per_chunk: k of a request without one. embed: is awaited once everything
    else is checked, for a request of texts.
    """
    require_readable(
        identity,
        request.dimension,
        model_id=request.model_id,
        codec_id=request.codec_id,
        memory_format_id=request.memory_format_id,
        embedder_id=request.embedder_id,
    )
    texts = _texts(request)
    vectors = None if texts else read_vectors(request.query_vectors, identity.dimension, declared=request.dimension)
    count = len(texts) if vectors is None else len(vectors)
    k = request.k or memories_per_chunk
    _require_at_most(MAX_QUERIES, count, "query vectors", "query_vectors")
    _require_at_most(settings.max_k, k, "memories for a query", "k")
    _require_at_most(MAX_HITS, k * count, f"hits ({count} queries for {k} memories each)", "k")
    _require_at_most(MAX_HELD_IDS, len(request.held_ids), "held_ids", "held_ids")
    ranking = _ranking(request)
    words = [QueryWords(query_words(text), (), ranking) for text in texts] or _words(request, count, ranking)
    drop, minimum_score = _bounds(request)
    filters = _filters(request)
    if vectors is None:
        embedded = np.ascontiguousarray(await embed(texts), "<f4")
        vectors = read_vectors(embedded.tobytes(), identity.dimension, field="query_texts")
    return Query(
        vectors=vectors,
        k=k,
        held_ids=frozenset(request.held_ids),
        minimum_score=minimum_score,
        filter=filters,
        return_text=request.return_text,
        return_metadata=request.return_metadata,
        words=words,
        candidates=settings.rerank_candidates,
        maximum_drop=drop,
    )


def read_filter(message: filter_pb2.Filter) -> Filter:
    """The filter of a request's field `filter`; raises BadRequest, which names the part of it that is wrong."""
    _require_at_most(_MAX_FILTER_BYTES, message.ByteSize(), "bytes of a filter", "filter")
    found = _condition(message, "filter", 1)
    parts = list(conditions(found))
    _require_at_most(MAX_CONDITIONS, len(parts), "conditions of a filter", "filter")
    values = sum(len(part.values) for part in parts if isinstance(part, In))
    _require_at_most(_MAX_FILTER_VALUES, values, "values of a filter", "filter")
    return found


def _require_at_most(most: int, found: int, what: str, field: str) -> None:
    if found > most:
        raise BadRequest(f"{found} {what}, at most {most} in one request", field=field)


def _texts(request: retrieval_pb2.RetrieveRequest) -> list[str]:
    """The texts to search with; empty for a request of vectors."""
    texts = list(request.query_texts)
    if texts and (request.query_vectors or request.dimension or request.query_words):
        raise BadRequest(
            "query_texts go without query_vectors, dimension and query_words: send either texts or vectors",
            field="query_texts",
        )
    _require_at_most(_MAX_TEXTS, len(texts), "query texts", "query_texts")
    for index, text in enumerate(texts):
        if not text.strip():
            raise BadRequest(f"query text {index} is empty", field=f"query_texts[{index}]")
        _require_at_most(_MAX_TEXT_BYTES, len(text.encode()), "bytes of a query text", f"query_texts[{index}]")
    return texts


def _ranking(request: retrieval_pb2.RetrieveRequest) -> Ranking:
    named = [name for name in ("word_weight", "title_weight") if request.HasField(name)]
    for name in named:
        if not (math.isfinite(weight := getattr(request, name)) and weight >= 0):
            raise BadRequest(f"{name} is {weight}, it must be finite and 0 or more", field=name)
    return replace(DEFAULT_RANKING, **{name: getattr(request, name) for name in named})


def _words(request: retrieval_pb2.RetrieveRequest, count: int, ranking: Ranking) -> list[QueryWords]:
    found = request.query_words
    words = [QueryWords(query.hashes, (turn.hashes for turn in query.earlier), ranking) for query in found]
    if words and len(words) != count:
        raise BadRequest(
            f"query_words of {len(words)} queries for {count} query vectors: send one entry each, or none",
            field="query_words",
        )
    turns = [turn for query in words for turn in (query, *query.earlier)]
    _require_at_most(_MAX_WORDS, max(map(len, turns), default=0), "words of a query", "query_words")
    _require_at_most(_MAX_EARLIER, max((len(w.earlier) for w in words), default=0), "earlier turns", "query_words")
    return words


def _bounds(request: retrieval_pb2.RetrieveRequest) -> tuple[float | None, float | None]:
    """(maximum_drop, minimum_score), None where absent."""
    drop = request.maximum_drop if request.HasField("maximum_drop") else None
    if drop is not None and not drop >= 0:
        raise BadRequest(f"maximum_drop is {drop}, it must be 0 or more", field="maximum_drop")
    minimum_score = request.minimum_score if request.HasField("minimum_score") else None
    if minimum_score is not None and math.isnan(minimum_score):
        raise BadRequest("minimum_score is NaN", field="minimum_score")
    return drop, minimum_score


def _filters(request: retrieval_pb2.RetrieveRequest) -> Filter | None:
    """`filter` and `metadata_filter`, joined by and. A store keeps the filters of late, so each has a size."""
    _require_at_most(_MAX_EQUAL, len(request.metadata_filter), "values of a filter", "metadata_filter")
    size = sum(len(text.encode()) for pair in request.metadata_filter.items() for text in pair)
    _require_at_most(_MAX_FILTER_BYTES, size, "bytes of a filter", "metadata_filter")
    equal = equal_to(request.metadata_filter)
    if not request.HasField("filter"):
        return equal
    typed = read_filter(request.filter)
    return typed if equal is None else And((equal, typed))


def _condition(message: filter_pb2.Filter, field: str, depth: int) -> Filter:
    kind = message.WhichOneof("condition")
    if kind is None:
        raise BadRequest(f"{field} has no condition", field=field)
    field = f"{field}.{kind}"
    if kind == "exists":
        return Exists(message.exists)
    if kind == "is_in":
        if not message.is_in.values:
            raise BadRequest(f"{field} has no values", field=f"{field}.values")
        return In(message.is_in.name, tuple(message.is_in.values))
    if kind == "range":
        return _range(message.range, field)
    filters = getattr(message, kind).filters
    if not filters:
        raise BadRequest(f"{field} joins no filters", field=f"{field}.filters")
    if depth == MAX_DEPTH:
        raise BadRequest(f"the filter is nested more than {MAX_DEPTH} deep", field=field)
    parts = tuple(_condition(part, f"{field}.filters[{n}]", depth + 1) for n, part in enumerate(filters))
    if kind == "all_of":
        return And(parts)
    return Or(parts) if kind == "any_of" else Not(parts[0] if len(parts) == 1 else Or(parts))


def _range(message: filter_pb2.Filter.Range, field: str) -> Range:
    bounds: dict[str, float | str] = {}
    for name in _BOUNDS:
        if message.HasField(name):
            bound = getattr(message, name)
            kind = bound.WhichOneof("value")
            if kind is None or (kind == "number" and not math.isfinite(bound.number)):
                raise BadRequest(f"{field}.{name} is no finite number and no text", field=f"{field}.{name}")
            bounds[name] = getattr(bound, kind)
    if not bounds:
        raise BadRequest(f"{field} has no bound; use `exists`", field=field)
    if len({type(bound) for bound in bounds.values()}) > 1:
        raise BadRequest(f"{field} has numbers and texts as bounds: use one of them", field=field)
    return Range(message.name, **bounds)
