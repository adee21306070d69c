"""Verdicts of answers, by hand and of a model, and answers that are withheld until their verdict is known."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from edge_client.generate import loop
from edge_client.generate.past import NAME, turn_key
from edge_client.generate.verdict import question_and_given, verdict_of
from edge_client.model import EdgeModel
from edge_client.recall.outcome import MemoryRead, Recall
from edge_client.stream import AnswerAttention, Finished, Recalled, Token
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle
from memory3.runtime.attention import AttentionShares
from memory3.text.references import turn_references
from memory3.text.refusal import SENTENCE
from memory3.text.verdict import Grounding, Verdict
from tests.edge_client.fake_service import FakeService
from tests.edge_client.tiny_bundle import edit_manifest

QUESTION = "What is the code of Lima?"
MEASURED = Grounding(share=0.25)


def read(*texts: str | None) -> list[Recalled]:
    memories = tuple(MemoryRead(n, f"document {n}", "", 0, 0.5, text) for n, text in enumerate(texts))
    return [Recalled(0, False, Recall(QUESTION, read=memories))]


def attention(share: float) -> AnswerAttention:
    shares = AttentionShares(np.full((3, 1), share, np.float32), np.zeros((3, 1, 8), np.float32))
    return AnswerAttention((((MemoryRead(0, "document 0", "", 0, 0.5, None),), shares),))


def verdict(
    answer: str,
    recalls: list[Recalled],
    *,
    share: float | None = None,
    refused: bool = False,
    asked: str = QUESTION,
    held: bool = False,
) -> Verdict | None:
    recorded = None if share is None else attention(share)
    return verdict_of(answer, refused, [{"role": "user", "content": asked}], recalls, recorded, MEASURED, held=held)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (verdict("74", read("The code is 74.")), Verdict.grounded),
        (verdict("12", read("The code is 74.")), Verdict.from_the_model),
        (verdict("12", read("The code is 74."), share=0.5), Verdict.grounded),
        (verdict("12", read(None)), None),
        (verdict("12", read(None), share=0.1), Verdict.from_the_model),
        (verdict("Lima", read("The code is 74.")), None),
        (verdict("12", []), Verdict.from_the_model),
        (verdict("12", [], held=True), None),
        (verdict(SENTENCE, read("The code is 74."), refused=True), Verdict.not_in_what_was_read),
        (verdict(SENTENCE, [], refused=True), Verdict.nothing_found),
        (verdict("74", [], asked=f"The code is 74.\n\n{QUESTION}"), Verdict.grounded),
    ],
)
def test_a_verdict_follows_from_what_was_read(found: Verdict | None, expected: Verdict | None) -> None:
    assert found is expected


@pytest.mark.parametrize(
    ("answer", "memories", "shares", "expected"),
    [
        ("Yes", 1, [0.17, 0.07], Verdict.grounded),
        ("No code of Lima.", 1, [0.17, 0.05, 0.05, 0.05, 0.05], Verdict.grounded),
        ("Yes", 1, [0.1, 0.07], Verdict.from_the_model),
        ("Yes", 5, [0.24, 0.17], Verdict.from_the_model),
        ("Yes", 5, [0.26, 0.17], Verdict.grounded),
        ("No, 12.", 1, [0.17, 0.05, 0.05], Verdict.from_the_model),
        ("The code of Lima.", 1, [0.17, 0.05, 0.05], Verdict.from_the_model),
    ],
)
def test_the_token_that_says_yes_or_no_tells_its_source(
    answer: str, memories: int, shares: list[float], expected: Verdict
) -> None:
    """Of memories that have nothing to do with it, several get more attention together than one."""
    found = read(*["The code is 74."] * memories)
    paid = np.repeat(np.array(shares, np.float32)[:, None] / memories, memories, axis=1)
    parts = AttentionShares(paid, np.zeros((len(shares), memories, 8), np.float32))
    recorded = AnswerAttention(((found[0].recall.read, parts),))
    asked = [{"role": "user", "content": QUESTION}]
    assert verdict_of(answer, False, asked, found, recorded, MEASURED) is expected
    assert verdict_of("Yes", False, asked, found, recorded, Grounding()) is None


def test_attention_does_not_count_where_it_was_not_measured() -> None:
    messages = [{"role": "user", "content": QUESTION}]
    found = verdict_of("12", False, messages, read("The code is 74."), attention(0.9), Grounding())
    assert found is Verdict.from_the_model


@pytest.mark.parametrize(
    ("content", "question", "given"),
    [
        ("When?", "When?", []),
        ("A long letter.\nIt ends.\n\nWhen?", "When?", ["A long letter.\nIt ends."]),
        ("A long letter.\r\n\r\nWhen?\r\n\r\n", "When?", ["A long letter."]),
        ("When?\n  \nA long letter.", "When?", ["A long letter."]),
        ("When?\n\nA long letter.\n\nIt ends here, at last.", "When?", ["A long letter.\n\nIt ends here, at last."]),
    ],
)
def test_a_text_that_stands_with_its_question_is_given(content: str, question: str, given: list[str]) -> None:
    assert question_and_given([{"role": "user", "content": content}]) == (question, given)


def test_what_the_model_said_is_no_evidence() -> None:
    said = [{"role": "user", "content": "It is red."}, {"role": "assistant", "content": "Blue."}]
    assert question_and_given([*said, {"role": "user", "content": "Sure?"}]) == ("Sure?", ["It is red."])


@pytest.mark.parametrize(
    ("earlier", "given"),
    [
        ("Is it Rome or Bern?", []),
        ("My sister is Anna. Where is she?", ["My sister is Anna."]),
        ("Is it free?\n\nFees: is parking free? Yes.", ["Fees: is parking free? Yes."]),
    ],
)
def test_what_was_asked_before_is_no_evidence(earlier: str, given: list[str]) -> None:
    messages = [{"role": "user", "content": earlier}, {"role": "user", "content": "Sure?"}]
    assert question_and_given(messages) == ("Sure?", given)


@pytest.mark.parametrize("share", [None, 0.5])
@pytest.mark.parametrize(("answer", "expected"), [("Anna", Verdict.grounded), ("Gustav", Verdict.from_the_model)])
def test_what_the_model_said_is_no_evidence_as_a_memory_either(
    answer: str, expected: Verdict, share: float | None
) -> None:
    (text,) = turn_references([("user", "My sister is\nAnna. Who keeps it?"), ("assistant", "It is\nGustav.")], len)
    turn = MemoryRead(0, turn_key(1), turn_key(1), 0, 0.5, text, knowledge_base=NAME)
    recorded = None
    if share is not None:
        shares = AttentionShares(np.full((3, 1), share, np.float32), np.zeros((3, 1, 8), np.float32))
        recorded = AnswerAttention((((turn,), shares),))
    asked = [{"role": "user", "content": "Who?"}]
    found = verdict_of(answer, False, asked, [Recalled(0, False, Recall("Who?", read=(turn,)))], recorded, MEASURED)
    assert found is expected


def test_an_answer_without_memory_is_the_models_own(model: EdgeModel) -> None:
    assert model.ask(QUESTION, memory="off", max_tokens=4).verdict is Verdict.from_the_model


def test_an_answer_of_the_model_itself_becomes_a_refusal_and_nobody_sees_it(
    model: EdgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "verdict_of", lambda text, refused, *_, **__: None if refused else Verdict.from_the_model)
    session = model.session()
    *events, finished = session.send(QUESTION, only_documents=True, max_tokens=20)
    assert isinstance(finished, Finished)
    assert (finished.text, finished.refused, finished.spans) == (SENTENCE, True, ())
    assert [event.text for event in events if isinstance(event, Token)] == [SENTENCE]
    assert session.messages[-1]["content"] == SENTENCE
    assert session.send("And of Rome?", max_tokens=4).result().text, "the conversation goes on"


def test_an_answer_from_documents_is_the_same_with_the_switch(
    model: EdgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = model.session().send(QUESTION, max_tokens=20).result()
    monkeypatch.setattr(loop, "verdict_of", lambda *_, **__: Verdict.grounded)
    only = model.session().send(QUESTION, only_documents=True, max_tokens=20)
    assert only.text() == plain.text
    assert only.result().attention is None


def test_where_nothing_is_found_the_switch_refuses_without_decoding(service: FakeService, model: EdgeModel) -> None:
    service.spoil = lambda response: [result.ClearField("hits") for result in response.results]
    found = model.ask(QUESTION, only_documents=True)
    assert (found.text, found.verdict) == (SENTENCE, Verdict.nothing_found)
    assert found.statistics.generated_tokens == 1
    session = model.session()
    for _ in range(2):
        again = session.send(QUESTION, only_documents=True).result()
        assert again.statistics.generated_tokens == 1, "what was asked before is nothing to answer from"


def test_a_models_own_sentence_is_a_refusal(tiny: Bundle, service: FakeService, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(tiny.folder, folder)
    edit_manifest(folder, refusal={"sentence": "Das weiß ich nicht."})
    service.spoil = lambda response: [result.ClearField("hits") for result in response.results]
    with EdgeModel.open(folder, service.address, memory="exact", deadline_s=20) as model:
        found = model.ask(QUESTION, only_documents=True)
    assert (found.text, found.verdict) == ("Das weiß ich nicht.", Verdict.nothing_found)


def test_a_cancelled_answer_has_no_verdict_and_is_not_shown(model: EdgeModel) -> None:
    session = model.session()
    stream = session.send(QUESTION, only_documents=True, max_tokens=20)
    next(stream)
    stream.cancel()
    assert (stream.result().text, stream.result().verdict, session.messages) == ("", None, [])


def test_a_grammar_and_the_switch_exclude_each_other(model: EdgeModel) -> None:
    with pytest.raises(InvalidInput, match="only_documents"):
        model.ask(QUESTION, only_documents=True, constraint=Mock())
