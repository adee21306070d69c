"""References that are alike: what is read, what is refused, and that a refusal has a twin."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from experiments.corpus.preparing import write_rows
from memory3.config import MemoryConfig
from memory3.errors import InvalidInput, MissingFile
from memory3.text.references import split
from memory3.text.refusal import SENTENCE
from memory_model.data.batches import IGNORE, Batch
from memory_model.data.conversations import BRIEFLY, Sizes, references_of
from memory_model.data.dialogue import Dialogues
from memory_model.data.hard_negatives import Articles, HardFacts
from memory_model.data.mixture import Reader, TrainingFiles, codec_texts, mixture_of
from memory_model.data.passages import PASSAGE_QUESTIONS, PassageQuestion
from tests.edge_client.tiny_bundle import tiny_config, tiny_loaded
from tests.memory_model.data.small_negatives import COUNTRIES, REFUSING, ROWS, SIZES, TEXT, hard
from tests.memory_model.data.small_sources import PASSAGES

TOWNS = [{**d, "text": f"Capital - name: C{chr(97 + n)}ton\nLanguages: {d['title']}"} for n, d in enumerate(COUNTRIES)]


@dataclass(frozen=True)
class Document:
    key: str
    title: str
    text: str


def articles(sizes: Sizes = REFUSING) -> Articles:
    return Articles(ROWS, tiny_loaded().chat, 1, replace(sizes, longest=64))


def dialogues(sizes: Sizes = REFUSING) -> Dialogues:
    return Dialogues(TOWNS, tiny_loaded().chat, 1, sizes)


def texts(batch: Batch) -> list[str]:
    decode = tiny_loaded().tokenizer.decode
    return [decode(ids[:n].tolist()) for ids, n in zip(batch.reference_ids, batch.reference_lengths, strict=True)]


def answers(batch: Batch) -> list[str]:
    """The first answer of each conversation."""
    tokenizer = tiny_loaded().tokenizer
    learned = [[n for n in row.tolist() if n != IGNORE] for row in batch.labels]
    return [tokenizer.decode(ids[: ids.index(tokenizer.end_of_turn_id)]) for ids in learned]


@pytest.mark.parametrize("make", [hard, articles, dialogues])
def test_a_refusal_is_followed_by_a_question_that_the_same_references_answer(make) -> None:  # type: ignore[no-untyped-def]
    refused = 0
    source = make()
    for _ in range(6):
        batch = source.next()
        said, read = answers(batch), [{n for n in slots[0].tolist() if n >= 0} for slots in batch.memories]
        for number, answer in enumerate(said[:-1]):
            if answer.startswith(SENTENCE):
                refused += 1
                assert read[number] == read[number + 1]
                assert not said[number + 1].startswith(SENTENCE)
            else:
                assert any(answer in texts(batch)[n] for n in read[number])
    assert refused > 5


def test_a_refused_question_is_about_a_document_that_is_read_without_the_answer_beside_none_to_four_others() -> None:
    source, seen = hard(), set()
    for _ in range(80):
        written = source.draw()
        none = source.unanswered(written)
        if none is None:
            continue
        own = [n for n in none[0] if re.findall(r"L\d+", written[n].text)[0] in re.findall(r"L\d+", none[1].question)]
        assert own
        assert not any(none[1].line in written[n].text for n in none[0])
        seen.add((len({reference.family for reference in written}), len(none[0])))
    assert max(n for families, n in seen if families == 1) > 2, "several references of one document"
    assert {n for families, n in seen if families > 1} == {1, 2, 3, 4, 5}


def test_references_of_a_batch_are_of_one_kind_and_all_kinds_have_their_turn() -> None:
    references = references_of([*COUNTRIES, *TOWNS], tiny_loaded().tokenizer, limit=64)
    source, towns = HardFacts(references, tiny_loaded().chat, 1, SIZES), set()
    for _ in range(20):
        (town,) = {reference.family >= len(COUNTRIES) for reference in source.draw()}
        towns.add(town)
    assert towns == {False, True}


def test_every_kind_resumes_exactly() -> None:
    for make in (hard, articles, dialogues):
        first, second = make(), make()
        first.next()
        second.restore(first.state())
        assert second.drawn == 1
        assert second.next().ids.equal(first.next().ids)


def test_a_knowledge_base_or_questions_that_are_too_few_are_refused(tmp_path: Path) -> None:
    references = references_of(COUNTRIES[:5], tiny_loaded().tokenizer, limit=32)
    with pytest.raises(InvalidInput, match="12 documents"):
        HardFacts(references, tiny_loaded().chat, 1, SIZES)
    with pytest.raises(InvalidInput, match="12 short values"):
        Dialogues(COUNTRIES[:5], tiny_loaded().chat, 1, SIZES)
    with pytest.raises(InvalidInput, match="4 paragraphs"):
        Articles(ROWS[:4], tiny_loaded().chat, 1, SIZES)
    files = TrainingFiles(tmp_path, questions=tmp_path / "rows.json")
    with pytest.raises(MissingFile, match="split-questions"):
        mixture_of("articles", Reader.of(tiny_loaded()), files, 0, Sizes())


@pytest.mark.parametrize("task", ["facts", "hard", "dialogue", "questions", "keeping"])
def test_a_task_is_drawn_from_the_files_that_the_command_is_given(task: str, tmp_path: Path) -> None:
    data, corpus = tmp_path / "facts.jsonl", tmp_path / "corpus"
    write_rows(data, [Document(d["key"], d["title"], d["text"] + f"\n{TEXT.format(1)}") for d in TOWNS])
    write_rows(corpus / "s.jsonl", PASSAGES)
    write_rows(
        corpus / PASSAGE_QUESTIONS,
        [PassageQuestion("when?", "1801", f"{p.title} 1801", p.source, p.key) for p in PASSAGES],
    )
    memory = MemoryConfig(tiny_config().memory.heads, reference_tokens=96)
    loaded = tiny_loaded(config=tiny_config().with_memory(memory))
    assert mixture_of(f"{task}:1", Reader.of(loaded), TrainingFiles(data, corpus), 0, Sizes()).next().task == task


def test_half_of_what_a_codec_is_fitted_to_may_be_texts_of_questions(tmp_path: Path) -> None:
    data = tmp_path / "facts.jsonl"
    write_rows(data, [Document(d["key"], d["title"], d["text"] + f"\n{TEXT.format(1)}") for d in TOWNS])
    memory = MemoryConfig(tiny_config().memory.heads, reference_tokens=96)
    reader = Reader.of(tiny_loaded(config=tiny_config().with_memory(memory)))
    _, texts = codec_texts(reader, TrainingFiles(data), 12, 0, ROWS)
    asked = {f"{row.title}\n{row.knowledge}" for row in ROWS}
    assert (len(texts), len(asked.intersection(texts))) == (12, 6)
    assert 0 < len(asked.intersection(texts[-6:])) < 6, "the last ones, which measure, are of both kinds"


def test_a_text_without_a_title_begins_as_its_memory_does(tmp_path: Path) -> None:
    data = tmp_path / "facts.jsonl"
    write_rows(data, [Document(d["key"], d["title"], d["text"] + f"\n{TEXT.format(1)}") for d in TOWNS])
    memory = MemoryConfig(tiny_config().memory.heads, reference_tokens=96)
    reader = Reader.of(tiny_loaded(config=tiny_config().with_memory(memory)))
    rows = [replace(row, title="", article=row.title) for row in ROWS]
    (expected,) = split(rows[0].knowledge, "", reader.tokenizer.count, 96)
    assert expected in codec_texts(reader, TrainingFiles(data), 30, 0, rows)[1]
    articles = Articles(rows, reader.chat, 1, replace(SIZES, longest=96)).articles
    assert expected in {reference.text for held in articles.values() for reference, _ in held}


def test_paragraphs_of_short_articles_are_read_next_to_each_other() -> None:
    rows = [replace(row, title=f"{row.title} {number}") for number, row in enumerate(ROWS)]
    batch = Articles(rows, tiny_loaded().chat, 1, replace(SIZES, longest=64)).next()
    assert len(batch.reference_ids) > 3


def test_an_article_may_be_named_apart_from_the_titles() -> None:
    rows = [replace(row, title=f"{row.title} {number}", article=row.title) for number, row in enumerate(ROWS)]
    source = Articles(rows, tiny_loaded().chat, 1, replace(SIZES, written=5, longest=64))
    for _ in range(5):
        subjects = {re.findall(r"of (A\d) was", reference.text)[0] for reference in source.draw()}
        assert len(subjects) == 1


def test_the_teacher_reads_the_right_reference_as_text_and_predicts_the_same_answer() -> None:
    chat = tiny_loaded().chat
    batch = Articles(ROWS, chat, 1, replace(SIZES, longest=64, turns=1, distilled=1.0, all_as_text=0.0)).next()
    assert batch.kept is not None
    assert batch.taught is not None
    assert batch.teacher_ids is not None
    assert len(batch.kept) == len(batch.taught) > 0
    for (row, column), (taught_row, taught_column) in zip(batch.kept.tolist(), batch.taught.tolist(), strict=True):
        assert batch.ids[row, column + 1] == batch.teacher_ids[taught_row, taught_column + 1]
    assert BRIEFLY in chat.tokenizer.decode(batch.teacher_ids[0].tolist())
