"""Questions about a whole document: read at once or in turns, in its order, and nothing else."""

from collections.abc import Iterator

import numpy as np
import pytest

from edge_client.generate import loop, whole
from edge_client.generate.whole import MOST_TURNS, turns_of
from edge_client.model import EdgeModel
from edge_client.retrieval import Hit
from edge_client.stream import Recalled, Result
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory3.formats import FileDocument

QUESTION = "What is this about?"
SHORT = "The mat is red. The key is blue."
LONG = " ".join(f"Row {n} of the list is no. {n * 7}." for n in range(1, 16))
"""More memories than a chunk reads."""
FEW = {"max_tokens": 6, "logit_bias": {257: -100.0}}
AT_ONCE = {"max_tokens": 40, "logit_bias": {257: 100.0}}
"""The answer ends at its first token."""


@pytest.fixture(scope="module")
def reader(tiny: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeModel]:
    """A model that has three documents, one of them of several pages."""
    local = tmp_path_factory.mktemp("whole")
    with EdgeModel.open(tiny.folder, local=local, offline=True, memory="exact") as opened:
        opened.remember(SHORT, key="/notes/short.txt", title="Short note")
        opened.remember(LONG, key="/notes/long.txt", title="List")
        pages = [FileDocument("/a.pdf", f"/a.pdf#page={n}", "", f"Page {n}.") for n in (2, 10, 1)]
        list(opened.remember_documents(pages))
        yield opened


def texts_of(result: Result) -> list[str]:
    return [memory.text or "" for memory in result.memories]


@pytest.mark.parametrize("name", ["/notes/short.txt", "short.txt", "short", "SHORT NOTE"])
def test_a_short_document_is_read_whole_in_its_order_and_nothing_else(reader: EdgeModel, name: str) -> None:
    result = reader.ask(QUESTION, about=name, **FEW)
    assert [memory.chunk_number for memory in result.memories] == list(range(len(result.memories)))
    assert {memory.document_key for memory in result.memories} == {"/notes/short.txt"}
    assert "blue" in " ".join(texts_of(result))
    assert len({tuple(recalled.recall.read) for recalled in result.recalls}) == 1, "every chunk reads the same"


def test_pages_of_a_file_are_one_document(reader: EdgeModel) -> None:
    assert texts_of(reader.ask(QUESTION, about="a.pdf", **FEW)) == ["Page 1.", "Page 2.", "Page 10."]


def test_a_long_document_is_read_in_turns(reader: EdgeModel) -> None:
    events = list(reader.generate(QUESTION, about="List", **AT_ONCE))
    recalls = [event for event in events if isinstance(event, Recalled)]
    assert [recalled.chunk for recalled in recalls] == list(range(len(recalls)))
    counts = [len(recalled.recall.read) for recalled in recalls]
    assert max(counts) == reader.bundle.config.memory.memories_per_chunk < sum(counts)
    result = reader.ask(QUESTION, about="List", **AT_ONCE)
    assert [memory.chunk_number for memory in result.memories] == list(range(len(result.memories)))
    assert result.statistics.recalls == len(result.recalls) == len(recalls)


def test_what_is_left_out_of_a_very_long_document_is_told(reader: EdgeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    every = reader.ask(QUESTION, about="List", **AT_ONCE)
    assert every.errors == ()
    monkeypatch.setattr(whole, "turns_of", lambda hits, slots: [hits[:slots]])
    result = reader.ask(QUESTION, about="List", **AT_ONCE)
    left_out = len(every.memories) - len(result.memories)
    assert left_out > 0
    assert result.errors[0].startswith(f"LEFT_OUT: {left_out} of the document's {len(every.memories)} memories")


def test_answers_of_turns_stand_below_each_other_without_refusals_and_repetitions(
    reader: EdgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = iter(["I don't know.", "One.", "One.", *["Two."] * MOST_TURNS])
    monkeypatch.setattr(loop.StreamText, "flush", lambda *_, **__: next(said))
    result = reader.ask(QUESTION, about="List", **AT_ONCE)
    assert (result.text, result.refused) == ("One.\n\nTwo.", False)
    monkeypatch.setattr(loop.StreamText, "flush", lambda *_, **__: "I don't know.")
    result = reader.ask(QUESTION, about="List", **AT_ONCE)
    assert (result.text, result.refused) == ("I don't know.", True)


class Letters:
    """A grammar of one "a" and the end of the turn."""

    def __init__(self) -> None:
        self.taken = 0

    def allow(self, logits: np.ndarray) -> np.ndarray:
        permitted = 257 if self.taken else 64
        return np.where(np.arange(len(logits)) == permitted, logits, -np.inf)

    def took(self, token: int) -> None:
        self.taken += 1


def test_a_grammars_answer_is_of_the_whole_document_or_refused(reader: EdgeModel) -> None:
    assert reader.ask(QUESTION, about="short", constraint=Letters()).text == "a"
    with pytest.raises(InvalidInput, match="29 memories, 5 are read at once"):
        reader.ask(QUESTION, about="List", constraint=Letters())


def test_a_document_that_is_not_there_is_named_with_those_that_are(reader: EdgeModel) -> None:
    with pytest.raises(InvalidInput, match=r"no document 'rent' .*/notes/short\.txt"):
        reader.ask(QUESTION, about="rent")
    with pytest.raises(InvalidInput, match="memory is off"):
        reader.ask(QUESTION, about="List", memory="off")


def test_a_question_about_a_document_goes_on_in_a_conversation_longer_than_the_context(reader: EdgeModel) -> None:
    turns = [{"role": role, "content": f"Turn {n}. " * 8} for n in range(20) for role in ("user", "assistant")]
    messages = [{"role": "system", "content": "Be brief."}, *turns, {"role": "user", "content": QUESTION}]
    assert len(reader.bundle.chat.prompt(messages).ids) > reader.engine.decoder.context
    result = reader.ask(messages, about="short", **FEW)
    assert {memory.document_key for memory in result.memories} == {"/notes/short.txt"}


def test_a_document_of_two_knowledge_bases_is_named_with_one(reader: EdgeModel) -> None:
    reader.remember("The door is green.", key="/notes/short.txt", knowledge_base="other")
    try:
        with pytest.raises(InvalidInput, match=r"name one of mine: /notes/short\.txt, other: /notes/short\.txt"):
            reader.ask(QUESTION, about="short.txt")
        assert "green" in " ".join(texts_of(reader.ask(QUESTION, about="other: /notes/short.txt", **FEW)))
    finally:
        reader.forget("/notes/short.txt", knowledge_base="other")


def test_a_long_document_without_memory_is_refused_and_not_left_out(reader: EdgeModel) -> None:
    with pytest.raises(InvalidInput, match="memory is off"):
        reader.ask(QUESTION, document="Row 1 of the list. " * 200, memory="off")


def test_knowledge_bases_of_a_service_share_one_writer_of_memories(reader: EdgeModel) -> None:
    others = [reader.engine.with_knowledge_base(name) for name in ("a", "b")]
    again = others[0].with_knowledge_base("c")
    assert {id(one.writer) for one in (*others, again)} == {id(reader.engine.writer)}


def test_groups_of_a_very_long_document_lie_at_even_distances() -> None:
    hits = [Hit(n, 1.0, "a", "", n, "", b"", 0) for n in range(500)]
    turns = turns_of(hits, 5)
    assert len(turns) == MOST_TURNS
    assert (turns[0][0].memory_id, turns[-1][-1].memory_id) == (0, 499)
    assert whole.turns_of(hits[:7], 5) == [hits[:5], hits[5:7]]
