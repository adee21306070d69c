"""A harness gets likelihoods and greedy answers that agree with the model's own, with memories or without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from memory_model.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.eval.memories import MemoryBank
from memory_model.eval.reading import Reader, Source, fixed
from memory_model.eval.subject import Subject
from memory_model.nn.generate import answer_nll, greedy
from tests.edge_client.tiny_bundle import format_of, tiny_loaded

REFERENCES = ["Benin\nCoastline: 121 km", "Togo\nCoastline: 56 km"]


@pytest.fixture(scope="module")
def subject() -> Subject:
    loaded = tiny_loaded()
    return Subject.of(loaded, format_of(loaded))


def both(queries: Sequence[str]) -> list[list[str]]:
    return [list(REFERENCES) for _ in queries]


def one_if_asked(queries: Sequence[str]) -> list[list[str]]:
    return [REFERENCES[:1] if q else [] for q in queries]


@pytest.mark.parametrize("source", [None, both])
def test_a_likelihood_is_that_of_the_tokens_after_the_context(
    subject: Subject, source: Source | None
) -> None:
    reader = Reader(subject, source, batch_size=2)
    pairs = [("How long?", " 121 km"), ("And", " so"), ("A longer context than these", " x")]
    scores = reader.likelihoods([reader.asked(*pair) for pair in pairs])
    memory = None
    if source is not None:
        subject.bank.write(REFERENCES)
        memory = subject.bank.read([REFERENCES])
    encode = subject.loaded.tokenizer.encode
    for (context, continuation), (total, _) in zip(pairs, scores, strict=True):
        ids = encode(continuation)
        nll = answer_nll(subject.loaded.model, [encode(context)], [ids], subject.prefix, memory)[0]
        assert total == pytest.approx(-nll * len(ids), rel=1e-4)


def test_the_greedy_continuation_is_recognised_and_any_other_is_not(subject: Subject) -> None:
    reader = Reader(subject)
    context = subject.loaded.tokenizer.encode("Once")
    told = greedy(subject.loaded.model, [context], subject.prefix, None, [], longest=3)[0]
    asked = reader.asked("Once")
    right = type(asked)(asked.context, told, "")
    wrong = type(asked)(asked.context, [*told[:2], (told[2] + 1) % 256], "")
    assert [is_greedy for _, is_greedy in reader.likelihoods([right, wrong])] == [True, False]


def test_white_space_between_context_and_continuation_belongs_to_the_continuation(subject: Subject) -> None:
    reader = Reader(subject)
    assert reader.asked("a ", "b") == reader.asked("a", " b", query="a")
    assert reader.asked("", "b").context == [subject.loaded.tokenizer.bos_id]
    assert reader.asked("", "b").query == ""


def test_a_request_that_has_nothing_to_ask_with_reads_no_memory(subject: Subject) -> None:
    with_memory, without = Reader(subject, one_if_asked), Reader(subject)
    asked = with_memory.asked("", "b")
    assert with_memory.likelihoods([asked])[0][0] == pytest.approx(
        without.likelihoods([asked])[0][0], abs=1e-5
    )
    spoken = with_memory.asked("a", "b")
    mixed = with_memory.likelihoods([asked, spoken])
    assert mixed[0][0] == pytest.approx(without.likelihoods([asked])[0][0], abs=1e-4)
    assert mixed[1][0] != pytest.approx(without.likelihoods([spoken])[0][0], abs=1e-6)


def test_generated_text_ends_before_the_first_stop_text(subject: Subject) -> None:
    reader = Reader(subject)
    whole = reader.generate(reader.asked("Tell"), longest=8)
    mark = whole[3]
    assert reader.generate(reader.asked("Tell"), 8, (mark, "never there")) == whole[: whole.index(mark)]
    assert reader.generate(reader.asked("Tell"), 8, ("never there",)) == whole


def test_long_contexts_are_cut_on_the_left(subject: Subject) -> None:
    reader = Reader(subject, max_tokens=12)
    long, short = reader.asked("x" * 100 + "tail", "end"), reader.asked(("x" * 100 + "tail")[-9:], "end")
    assert reader.likelihoods([long])[0][0] == pytest.approx(reader.likelihoods([short])[0][0], abs=1e-5)


def test_given_references_are_a_list_of_at_most_five_texts(tmp_path: Path) -> None:
    file = tmp_path / "references.json"
    with pytest.raises(MissingFile):
        fixed(file, 5)
    for content, error in (
        ("{", CorruptFile),
        ('["a", ""]', CorruptFile),
        (json.dumps(["a"] * 6), InvalidInput),
    ):
        file.write_text(content)
        with pytest.raises(error):
            fixed(file, 5)
    file.write_text(json.dumps(REFERENCES))
    assert fixed(file, 5)(["a", "b"]) == [REFERENCES, REFERENCES]


def test_a_plain_model_is_refused_memories() -> None:
    loaded = tiny_loaded()
    with pytest.raises(InvalidInput, match="reads no memories"):
        Reader(Subject(MemoryBank(loaded, format_of(loaded)), ()), both)
