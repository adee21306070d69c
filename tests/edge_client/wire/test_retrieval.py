"""Several knowledge bases read as one: what merging keeps, for any answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.wire.retrieval import MOST, Answer, Hit, merged, names_of
from memory_model.errors import InvalidInput
from memory_model.words import query_words

QUERIES = 2


def test_names_are_split_and_checked() -> None:
    assert names_of("atlas") == ("atlas",)
    assert names_of("firm, atlas,firm") == ("firm", "atlas")
    for wrong in ("", "a,", ",a", " "):
        with pytest.raises(InvalidInput, match="has no name"):
            names_of(wrong)
    with pytest.raises(InvalidInput, match=f"{MOST} can be read together"):
        names_of(",".join(f"b{n}" for n in range(MOST + 1)))


def hit(
    base: str, memory_id: int, score: float, *, text: str | None = None, title: str = "", payload: bytes = b""
) -> Hit:
    return Hit(memory_id, score, f"d{memory_id}", title, 0, text, payload, 0, not payload, base)


@st.composite
def answers(draw: st.DrawFn, name: str) -> Answer:
    """Of one knowledge base: the first hit of a memory carries its bytes, unless the device holds it."""
    held = draw(st.sets(st.integers(0, 12)))
    sent: set[int] = set()
    queries = []
    for _ in range(QUERIES):
        ids = draw(st.lists(st.integers(0, 12), max_size=5, unique=True))
        scores = sorted(draw(st.lists(st.floats(-1, 1), min_size=len(ids), max_size=len(ids))), reverse=True)
        hits = []
        for memory_id, score in zip(ids, scores, strict=True):
            new = memory_id not in held | sent
            hits.append(hit(name, memory_id, score, payload=b"%d" % memory_id if new else b""))
            sent.add(memory_id)
        queries.append(tuple(hits))
    return Answer(tuple(queries), draw(st.floats(0, 9)))


NAMES = ["b0", "b1", "b2"]


@given(st.tuples(*map(answers, NAMES)), st.integers(1, 5))
def test_the_best_of_all_are_kept_and_no_bytes_are_lost(found: tuple[Answer, ...], k: int) -> None:
    whole = merged(found, k)
    came = {h.memory_id: h.payload for answer in found for hits in answer.hits for h in hits if h.payload}
    carried: set[int] = set()
    for query, hits in enumerate(whole.hits):
        offered = {h.memory_id for answer in found for h in answer.hits[query]}
        best = sorted({h.score for answer in found for h in answer.hits[query]}, reverse=True)
        ids = [h.memory_id for h in hits]
        assert len(ids) == len(set(ids)) == min(k, len(offered))
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
        assert not hits or hits[0].score <= best[0]
        for h in hits:
            mine = found[NAMES.index(h.knowledge_base)].hits[query]
            assert h.memory_id in {other.memory_id for other in mine}
            assert h.payload == (b"" if h.memory_id in carried else came.get(h.memory_id, b""))
            assert h.held == (not h.payload)
            carried.add(h.memory_id)
    assert whole.server_ms == max(answer.server_ms for answer in found)


def test_words_decide_between_knowledge_bases_as_they_do_within_one() -> None:
    words = query_words("What is the capital of Benin?")
    atlas = Answer(((hit("atlas", 1, 0.50, title="Benin", text="Benin\nCapital: Porto-Novo", payload=b"1"),),), 1.0)
    firm = Answer(((hit("firm", 2, 0.55, title="Handbook", text="Handbook\nLeave: 31 days", payload=b"2"),),), 2.0)
    [best] = merged([firm, atlas], 5, [words]).hits
    assert [(h.memory_id, h.knowledge_base) for h in best] == [(1, "atlas")], "what is named leaves others far below"
    [by_cosine] = merged([firm, atlas], 5).hits
    assert [h.memory_id for h in by_cosine] == [2, 1]


def test_a_document_that_two_knowledge_bases_have_is_read_once() -> None:
    mine = Answer(
        ((hit("mine", 1, 0.5, text="Code 1", payload=b"1"), hit("mine", 3, 0.4, text="Code 3", payload=b"3")),)
    )
    yours = Answer(((hit("yours", 2, 0.5, text="Code 1", payload=b"2"),),))
    [found] = merged([mine, yours], 5).hits
    assert [(h.memory_id, h.payload) for h in found] == [(1, b"1"), (3, b"3")]
