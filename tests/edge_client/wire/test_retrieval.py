"""Several knowledge bases read as one: what merging keeps."""

from __future__ import annotations

from edge_client.wire.client import Answer, Hit, merged
from memory_model.words import query_words


def hit(
    base: str, memory_id: int, score: float, *, text: str | None = None, title: str = "", payload: bytes = b""
) -> Hit:
    return Hit(memory_id, score, f"d{memory_id}", title, 0, text, payload, 0, not payload, base)


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
