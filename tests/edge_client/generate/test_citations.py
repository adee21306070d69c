"""Citations of an answer: shares of attention as the model computes them, spans of words, and what leaving out says."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edge_client.errors import Cancellation
from edge_client.generate import leaving_out, loop
from edge_client.generate.citations import LEAST_SHARE, spans_of
from edge_client.generate.leaving_out import Played
from edge_client.model import EdgeModel
from edge_client.recall.outcome import MemoryRead
from edge_client.stream import AnswerAttention, Finished, Remembered, Token
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory3.runtime.attention import AttentionShares
from memory3.text.tokenizer import Tokenizer
from tests.edge_client.fake_service import FakeService
from tests.edge_client.tiny_bundle import byte_tokenizer

QUESTION = "What is the code of Lima?"
LONG = {"max_tokens": 40, "logit_bias": {257: -100.0}}
"""Three chunks of the tiny model, whose answer would end at any token."""


def memory(number: int, text: str = "") -> MemoryRead:
    return MemoryRead(number, f"document {number}", "", 1, 0.5, text)


def attention(*rows: tuple[float, ...], texts: tuple[str, ...] = ("", "")) -> AnswerAttention:
    shares = np.array(rows, np.float32)
    tokens = np.zeros((*shares.shape, 32), np.float32)
    return AnswerAttention((((memory(1, texts[0]), memory(2, texts[1])), AttentionShares(shares, tokens)),))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_json(byte_tokenizer())


def test_adjoining_words_of_one_source_are_one_span(tokenizer: Tokenizer) -> None:
    texts = ["The", " code", " is", " 74", "."]
    found = attention((0, 0), (0.5, 0.1), (0.3, 0.1), (0.1, 0.4), (0.1, 0.2))
    spans = spans_of(found, texts, tokenizer)
    assert [("".join(texts)[s.start : s.end], s.memory.memory_id) for s in spans] == [("code is", 1), ("74.", 2)]
    assert spans[0].score == pytest.approx(0.4)


def test_a_number_of_several_tokens_has_one_source(tokenizer: Tokenizer) -> None:
    spans = spans_of(attention((0.5, 0.1), (0.0, 0.1), (0.4, 0.1)), ["11", "2,", "622"], tokenizer)
    assert [(s.start, s.end, s.memory.memory_id) for s in spans] == [(0, 7, 1)]


@pytest.mark.parametrize(
    ("texts", "pieces"),
    [
        (["부", "산", " 역"], ["부산", "역"]),
        (["नी", "ला"], ["नीला"]),
        (["東", "京", "。"], ["東", "京。"]),
        (["สี", "แดง"], ["สี", "แดง"]),
    ],
)
def test_a_word_ends_at_a_space_or_where_its_script_writes_none_at_a_token(
    tokenizer: Tokenizer, texts: list[str], pieces: list[str]
) -> None:
    rows = [(0.5, 0.0), *[(0.0, 0.3)] * (len(texts) - 1)]
    spans = spans_of(attention(*rows), texts, tokenizer)
    assert ["".join(texts)[s.start : s.end] for s in spans] == pieces


def test_no_source_is_named_where_little_was_read_or_two_were_read_alike(tokenizer: Tokenizer) -> None:
    few, alike = LEAST_SHARE / 2, (0.3, 0.29)
    assert spans_of(attention((few, 0), alike), ["one", " two"], tokenizer) == ()


@pytest.mark.parametrize(
    ("number", "expected"),
    [("45", [2]), ("€45,", [2]), ("45.0", [2]), ("30", [1]), ("60", [1])],
    ids=["of the second", "with signs", "written otherwise", "of both", "of none"],
)
def test_a_number_is_cited_from_a_text_that_has_it(tokenizer: Tokenizer, number: str, expected: list[int]) -> None:
    """The heads look for the closing time in the opening hours; what is copied is the delay of the alarm."""
    texts = ("Open on 30 Saturdays from 10:00 to 14:00.", "Delay when leaving: 45 seconds, or 30.")
    spans = spans_of(attention((0.5, 0.3), texts=texts), [number], tokenizer)
    assert [s.memory.memory_id for s in spans] == expected


def test_a_memory_whose_text_is_not_known_may_have_a_number(tokenizer: Tokenizer) -> None:
    spans = spans_of(attention((0.5, 0.3), texts=("", "Delay: 45 seconds")), ["45"], tokenizer)
    assert [s.memory.memory_id for s in spans] == [1]


def test_tokens_whose_text_is_held_back_count_for_the_text_that_they_bring(tokenizer: Tokenizer) -> None:
    spans = spans_of(attention((0.4, 0.0), (0.4, 0.0), (0.0, 0.4)), ["", "é", ""], tokenizer)
    assert [(s.start, s.end, s.memory.memory_id) for s in spans] == [(0, 1, 1)]


def test_the_passage_is_the_sentence_that_received_most(tokenizer: Tokenizer) -> None:
    text = "It is old. The code is 74."
    found = attention((0.5, 0.0), texts=(text, ""))
    found.parts[0][1].tokens[0, 0, text.index("74")] = 0.5
    (span,) = spans_of(found, ["74"], tokenizer)
    assert span.passage is not None
    assert text[slice(*span.passage)] == "The code is 74."


def test_an_answer_with_citations_is_the_answer_without_and_names_what_it_attended_to(model: EdgeModel) -> None:
    plain, cited = model.ask(QUESTION, **LONG), model.session().send(QUESTION, citations=True, **LONG).result()
    assert cited.text == plain.text
    assert plain.attention is None
    assert plain.spans == plain.contributions == ()
    assert cited.attention is not None
    shares = cited.attention.shares
    assert shares.shape == (40, len(cited.memories))
    assert sorted(m.memory_id for m in cited.attention.memories) == sorted(m.memory_id for m in cited.memories)
    assert (shares.sum(axis=1) > 0).all()
    assert (shares.sum(axis=1) < 1).all()
    for span in cited.spans:
        assert cited.text[span.start : span.end].strip()
        assert span.score >= LEAST_SHARE


def test_without_the_option_no_run_leaves_queries(model: EdgeModel) -> None:
    sequence = model.engine.sequence()
    model.ask(QUESTION, **LONG)
    runner = model.engine.decoder.scheduler._runner
    assert not any(records for *_, records in runner._bindings)
    assert sequence.record is None


def test_an_answer_without_memory_has_no_spans(model: EdgeModel) -> None:
    found = model.ask(QUESTION, memory="off", citations=True, explain=True, max_tokens=4)
    assert found.spans == found.contributions == ()


def test_the_answer_read_again_with_all_memories_is_as_likely_as_it_was(
    model: EdgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what differs where one is left out is that memory's doing."""
    found: list[Played] = []
    monkeypatch.setattr(loop, "contributions", lambda played, _: found.append(played) or ())
    tokens = [e for e in model.generate(QUESTION, explain=True, logprobs=0, **LONG) if isinstance(e, Token)]
    was = sum(token.logprob for token in tokens if token.logprob is not None)
    assert leaving_out._log_likelihood(found[0], None, Cancellation()) == pytest.approx(was, abs=1e-3)


def test_every_memory_of_an_answer_has_a_contribution(model: EdgeModel) -> None:
    found = model.ask(QUESTION, explain=True, **LONG)
    assert {c.memory.memory_id for c in found.contributions} == {m.memory_id for m in found.memories}
    nats = [c.nats for c in found.contributions]
    assert nats == sorted(nats, reverse=True)
    assert any(abs(n) > 1e-3 for n in nats)


def test_shares_are_the_same_where_other_conversations_take_the_slot(tiny: Bundle, service: FakeService) -> None:
    """A sequence that lost its slot, and one whose steps run together with others', attends as one that is alone."""
    options = {"memory": "exact", "deadline_s": 20, "parallel": 2}
    with EdgeModel.open(tiny.folder, service.address, **options) as model:
        questions = [f"What is the code of {town}?" for town in ("Lima", "Rome", "Oslo", "Quito")]
        alone = [model.session().send(q, citations=True, **LONG).result() for q in questions]
        with ThreadPoolExecutor(len(questions)) as threads:
            answers = [model.session().send(q, citations=True, **LONG) for q in questions]
            together = list(threads.map(lambda answer: answer.result(), answers))
    for one, other in zip(alone, together, strict=True):
        assert one.text == other.text
        assert one.attention is not None
        assert other.attention is not None
        np.testing.assert_allclose(one.attention.shares, other.attention.shares, atol=1e-5)


def test_turns_that_leave_the_cache_in_the_middle_leave_citations_right(tiny: Bundle, service: FakeService) -> None:
    """Text rows are numbered anew then; shares are of the rows as they were."""
    options = {"memory": "exact", "deadline_s": 20, "context": 256}
    with EdgeModel.open(tiny.folder, service.address, **options) as model:
        session = model.session()
        session.send(QUESTION, **LONG).result()
        *events, finished = list(session.send(QUESTION, citations=True, explain=True, **{**LONG, "max_tokens": 120}))
    assert any(isinstance(event, Remembered) for event in events)
    assert isinstance(finished, Finished)
    assert finished.attention is not None
    assert len(finished.attention.shares) == finished.statistics.generated_tokens
    assert finished.contributions == (), "what it read is not in the cache any more"


def test_a_bundle_whose_decoder_gives_no_queries_is_refused_by_name(
    model: EdgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.engine.decoder.backend, "records_queries", False)
    with pytest.raises(InvalidInput, match="export it again"):
        model.ask(QUESTION, citations=True)
    assert model.ask(QUESTION, max_tokens=2).spans == ()


def test_a_refusal_is_read_from_no_memory(model: EdgeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "is_refusal", lambda *_: True)
    found = model.ask(QUESTION, citations=True, **LONG)
    assert found.attention is not None
    assert found.spans == ()


def test_the_passage_is_a_sentence_also_where_no_space_follows_it(tokenizer: Tokenizer) -> None:
    text = "塔高。狗在码头上。"
    received = np.zeros((1, 1, len(text.encode())), np.float32)
    received[0, 0, len("塔高。".encode()) + 2] = 1.0
    shares = AttentionShares(np.full((1, 1), 0.5, np.float32), received)
    (span,) = spans_of(AnswerAttention((((memory(1, text),), shares),)), ["码头"], tokenizer)
    assert span.passage is not None
    assert text[slice(*span.passage)] == "狗在码头上。"
