"""The paper's benchmarks: prompts as lm-eval has them, likelihoods as of whole texts, runs that go on."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from experiments.answers.scoring import answer_nll, greedy
from experiments.paper.scoring import SharedPrompts, common_prefix
from experiments.paper.tables import Line, Measuring, Textbooks, read_lines, table_of
from experiments.paper.tasks import TASKS, Question, is_right_number, questions_of, scored
from memory3.errors import InvalidInput, MissingFile
from memory_model.eval.retrieval import ReferenceIndex
from memory_model.eval.subject import Subject
from memory_model.nn.serving import BatchedDecoder
from tests.edge_client.tiny_bundle import tiny_loaded

TEXT = "A bee is a pollinating animal"


class WordEmbedder:
    """Unit vectors of a text's words."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), 64), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text.lower().split():
                row[sum(word.encode()) % 64] += 1
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    arc = [{"task": "test", "question": f"Which is {n}?", "choices": ["one", "two"], "answer": n % 2} for n in range(5)]
    mmlu = [{**row, "task": task} for row in arc[:2] for task in ("virology", "anatomy")]
    (tmp_path / "arc_challenge.jsonl").write_text("\n".join(map(json.dumps, arc)))
    (tmp_path / "arc_challenge.dev.jsonl").write_text("\n".join(map(json.dumps, arc[:3])))
    (tmp_path / "mmlu.jsonl").write_text("\n".join(map(json.dumps, mmlu)))
    (tmp_path / "mmlu.dev.jsonl").write_text("\n".join(map(json.dumps, mmlu)))
    return tmp_path


def fits(text: str) -> bool:
    return True


def test_prompts_are_those_of_lm_eval(folder: Path) -> None:
    first = questions_of("arc_challenge", folder, None, False, fits)[0]
    assert first.examples == "".join(f"Question: Which is {n}?\nAnswer: {('one', 'two')[n % 2]}\n\n" for n in range(3))
    assert first.options == (("Question: Which is 0?\nAnswer:", " one"), ("Question: Which is 0?\nAnswer:", " two"))
    virology = questions_of("mmlu", folder, None, False, fits)[-1]
    assert virology.examples.startswith(
        "The following are multiple choice questions (with answers) about virology.\n\n"
        "Which is 0?\nA. one\nB. two\nAnswer: A\n\nWhich is 1?\n"
    )
    assert virology.options[1] == ("Which is 1?\nA. one\nB. two\nAnswer:", " B")
    assert not questions_of("arc_challenge", folder, 2, True, fits)[0].examples
    short = questions_of("arc_challenge", folder, None, False, lambda text: len(text) < 60)[0]
    assert short.examples == "Question: Which is 2?\nAnswer: one\n\n"


def test_answers_of_truthfulqa_count_in_mc1_or_mc2(folder: Path) -> None:
    row = {
        "question": "Why\u2028or how?",
        "choices": ["So.", "No."],
        "answer": 1,
        "correct_answers": ["No"],
        "incorrect_answers": ["So."],
    }
    (folder / "truthfulqa.jsonl").write_text(json.dumps(row, ensure_ascii=False))
    found = questions_of("truthfulqa", folder, None, False, fits)[0]
    assert [continuation for _, continuation in found.options] == [" So.", " No.", " No"]
    assert (found.right, found.first, found.true, found.false) == (1, 2, (2,), (0,))


def test_missing_and_wrong_files_are_named(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="no task 'arc'"):
        questions_of("arc", folder, None, False, fits)
    with pytest.raises(MissingFile, match="no winogrande"):
        questions_of("winogrande", folder, None, False, fits)
    (folder / "gsm8k.jsonl").write_text('{"question": "1 + 1?"}')
    with pytest.raises(InvalidInput, match="row 0 is none of gsm8k"):
        questions_of("gsm8k", folder, None, True, fits)


def test_scores_are_counted_as_lm_eval_counts_them() -> None:
    options = (("Q", " a"), ("Q", " a much longer one"))
    question = Question(0, "", "", "Q", 1, options)
    assert scored(TASKS["arc_challenge"], question, [-2.0, -9.0]) == {"acc": 0.0, "acc_norm": 1.0}
    truthful = Question(0, "", "", "Q", 0, (*options, ("Q", " c")), first=2, true=(0, 2), false=(1,))
    found = scored(TASKS["truthfulqa"], truthful, [-1.0, -2.0, -1.0])
    assert found["mc1"] == 1.0
    assert found["mc2"] == pytest.approx(2 / (2 + 2.718281828**-1))
    assert is_right_number("so it is 1,\n#### 1,200.", "1200") == 1.0
    assert is_right_number("it is 1200", "1200") == 0.0


@pytest.mark.parametrize("with_memory", [False, True])
def test_what_questions_share_is_read_once_and_changes_nothing(with_memory: bool) -> None:
    loaded = tiny_loaded()
    subject = Subject.of(loaded)
    encode = loaded.tokenizer.encode
    memory = subject.bank.read([[TEXT]]) if with_memory else None
    contexts = [encode(f"Some examples. Which is {name}?") for name in ("it", "that one")]
    options = [(contexts[0], encode(" this")), (contexts[0], encode(" another")), (contexts[1], encode(" one"))]
    engine = BatchedDecoder(loaded.model, subject.prefix, 2, len(subject.prefix) + 80)
    shared = common_prefix(contexts)
    prompts = SharedPrompts(engine, contexts[0][:shared])
    for asked in (memory, None, memory):  # what one question read does not stay
        prompts.remember(asked)
        found = prompts.likelihoods(options)
        if asked is None:
            for sum_of, (context, continuation) in zip(found, options, strict=True):
                nll = answer_nll(loaded.model, [context], [continuation], subject.prefix, None)[0]
                assert sum_of == pytest.approx(-nll * len(continuation), abs=1e-3)
    text = prompts.greedy(contexts, [None, memory], loaded.tokenizer, "#", 5)
    plain = greedy(loaded.model, [contexts[0]], subject.prefix, None, loaded.tokenizer.stop_ids, 5)[0]
    assert text[0] == loaded.tokenizer.decode(plain).partition("#")[0]
    assert len(text) == 2


def test_a_reference_that_the_question_contains_is_left_out() -> None:
    subject = Subject.of(tiny_loaded())
    embedder = WordEmbedder()
    texts = [TEXT, "Water is wet in all of its forms"]
    books = Textbooks(subject, ReferenceIndex(texts, embedder.embed(texts), embedder))  # type: ignore[arg-type]
    question = Question(0, "", "", f"Which is one? {TEXT}", 0)
    assert set(books.found(question, None)) == set(texts)
    assert books.found(question, 2 / 3) == texts[1:]


def test_a_run_goes_on_where_it_was_stopped(folder: Path, tmp_path: Path) -> None:
    asked = questions_of("arc_challenge", folder, None, False, fits)
    measuring = Measuring(Subject.of(tiny_loaded()), None)

    def measured(missing: dict[str, set[int]]) -> Sequence[Line]:
        return list(measuring.ask("arc_challenge", asked, missing))

    whole = measured({"none": {0, 1, 2, 3, 4}})
    assert measured({"none": {3}}) == [line for line in whole if line.number == 3]
    assert measured({"none": set()}) == []
    path = tmp_path / "paper.jsonl"
    path.write_text("".join(json.dumps(vars(line)) + "\n" for line in whole) + '{"key": "cut')
    assert read_lines(path) == whole
    assert read_lines(tmp_path / "none.jsonl") == []
    cells = [list(column.cells) for column in table_of(whole, ["none"], False).columns]
    assert cells[0] == ["arc_challenge"] * 2
    assert cells[-1] == ["", "58.11"]
