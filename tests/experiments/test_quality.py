"""Sections are measured again when their key changes; the page judges intervals, not means."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from docs.quality import BEGIN, END, Bar, page, taken_over
from experiments.answers.published import HALUEVAL
from experiments.answers.quality import SECTIONS, Measured, is_kept, keep, read_measured, selected, window_loss
from experiments.answers.scoring import answer_nll
from experiments.professional import DECISIONS, Choice, answered, draw, read_choices, summary
from memory3.errors import CorruptFile, InvalidInput
from memory_model.eval.conditions import Scores
from memory_model.eval.subject import MemoryBank, Subject
from memory_model.nn.generate import prefilled
from tests.edge_client.tiny_bundle import format_of, tiny_loaded

ROOT = Path(__file__).resolve().parents[2]
ABOUT = {"model": "tiny", "model_id": "m1", "codec_id": "c", "template": "t", "memory_bytes": 4000}
MARKED = f"# Quality\n\n{BEGIN}\nold\n{END}\n\nthe rest\n"


def measured(name: str = "same_field", part: str = "test", model_id: str = "m1", right: int = 30) -> Measured:
    """A section of 40 rows, `right` of them answered exactly with memory, 20 with the five texts."""
    scores = {
        condition: Scores(exact_match=[1.0] * hits + [0.0] * (40 - hits), f1=[1.0] * hits + [0.0] * (40 - hits))
        for condition, hits in (("memory", right), ("rag_five", 20), ("rag", 38))
    }
    key = {"evaluator": 2, "model_id": model_id, "codec_id": "c", "precision": "float32"}
    return replace(Measured.of(name, part, key, 0.0, scores, ABOUT), seconds=1.0)


def test_a_section_is_kept_only_under_an_equal_key(tmp_path: Path) -> None:
    path, one = tmp_path / "quality.jsonl", measured()
    keep(path, one)
    assert is_kept(path, "same_field/test", one.key)
    assert not is_kept(path, "same_field/dev", one.key)
    assert not is_kept(path, "same_field/test", one.key | {"evaluator": 3})


def test_a_line_of_another_form_is_named(tmp_path: Path) -> None:
    path = tmp_path / "quality.jsonl"
    keep(path, measured())
    path.write_text(path.read_text() + '{"name": "facts"}\n')
    with pytest.raises(CorruptFile, match="line 2: part: Field required"):
        read_measured(path)


def test_numbers_of_another_model_are_dropped_when_new_ones_are_taken_over(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept.jsonl", tmp_path / "new.jsonl"
    keep(kept, measured("facts", model_id="m0"))
    keep(kept, measured("introductions"))
    keep(new, measured())
    assert taken_over(kept, new) == ["facts/test"]
    assert list(read_measured(kept)) == ["same_field/test", "introductions/test"]
    keep(new, measured("facts", model_id="m0"))
    with pytest.raises(InvalidInput, match="several models"):
        taken_over(kept, new)


def test_sections_are_chosen_by_name_or_by_name_and_part() -> None:
    data = ROOT / "data"
    own = [s for s in SECTIONS if not s.published]
    assert [s for s, _ in selected("", data)] == own
    assert [s.label for s, _ in selected("facts,records/dev", data)] == ["facts/test", "records/dev", "facts/dev"]
    assert selected("prose", data) == []
    ((natural, path),) = selected("natural", data, data / "facts_dev.json")
    assert len(natural.read(path, limit=3)) == 3
    with pytest.raises(InvalidInput, match="no section natural"):
        selected("natural", data)


def test_published_sets_are_measured_from_the_folder_that_the_user_names(tmp_path: Path) -> None:
    (tmp_path / HALUEVAL).write_text((ROOT / "data" / "facts_dev.json").read_text())
    ((section, path),) = selected("halueval/dev", ROOT / "data", published=tmp_path)
    assert (section.label, path) == ("halueval/dev", tmp_path / HALUEVAL)
    with pytest.raises(InvalidInput, match="no section halueval/dev"):
        selected("halueval/dev", ROOT / "data")


@pytest.mark.parametrize(
    ("low", "high", "higher", "verdict"),
    [
        (0.96, 0.99, True, "aim reached"),
        (0.92, 0.99, True, "must reached"),
        (0.88, 0.99, True, "undecided"),
        (0.80, 0.89, True, "missed"),
        (0.80, 0.85, False, "aim reached"),
        (0.88, 0.92, False, "undecided"),
        (0.91, 0.92, False, "missed"),
    ],
)
def test_a_bar_is_reached_or_missed_by_a_whole_interval(low: float, high: float, higher: bool, verdict: str) -> None:
    aim = 0.95 if higher else 0.85
    assert Bar("x", "facts", ("memory",), "f1", 0.9, aim, higher).verdict(low, high) == verdict


def test_a_page_is_refused_without_numbers_without_marks_and_of_two_models() -> None:
    with pytest.raises(InvalidInput, match="experiments quality"):
        page(MARKED, {})
    with pytest.raises(CorruptFile, match="measured: begin"):
        page("# Quality", {"same_field/test": measured()})
    with pytest.raises(InvalidInput, match="several models"):
        page(MARKED, {"same_field/test": measured(), "facts/test": measured("facts", model_id="m0")})


def test_the_committed_page_is_what_the_committed_numbers_say() -> None:
    text = (ROOT / "docs/quality.md").read_text(encoding="utf-8")
    assert page(text, read_measured(ROOT / "docs/data/quality.jsonl")) == text, "run `make quality`"


def test_a_windows_loss_is_the_mean_of_all_tokens_but_the_first() -> None:
    loaded = tiny_loaded()
    text, subject = [5, 9, 30, 7, 12], Subject(MemoryBank(loaded, format_of(loaded)), (256,))
    hidden = loaded.model.hidden(
        torch.tensor([[256, *text]]), torch.tensor([[0, *range(33, 38)]])
    )  # text follows the 32 positions of references
    logits = loaded.model.head(hidden)[0].log_softmax(-1)
    loss = -sum(float(logits[n, text[n]]) for n in range(1, 5)) / 4
    assert window_loss(subject, text) == pytest.approx(loss, rel=1e-5)


# Memory beside RAG on questions with choices.

TEXT = "Paris is the capital of France"


@pytest.mark.parametrize("label", ["final_decision", "answer"])
def test_rows_of_both_kinds_are_read_and_others_refused(label: str, tmp_path: Path) -> None:
    medical = {"question": "Does it help?", "contexts": ["A.", "B."], label: "no"}
    natural = {"question": "Who?", "knowledge": "K.", "right_answer": "Ada", "hallucinated_answer": "Bob"}
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([medical, natural]))
    first, second = read_choices(file)
    assert (first.choices, first.right, first.texts) == (DECISIONS, 1, ("A.", "B."))
    assert (second.choices, second.right, second.texts) == (("Ada", "Bob"), 0, ("K.",))
    file.write_text(json.dumps([{**medical, label: "perhaps"}]))
    with pytest.raises(InvalidInput, match="row 0"):
        read_choices(file)


@pytest.mark.parametrize("memory", [False, True])
def test_the_likeliest_choice_is_the_answer(memory: bool) -> None:
    loaded = tiny_loaded()
    subject = Subject.of(loaded)
    memories = subject.bank.read([[TEXT]]) if memory else None
    prompt = subject.prompt(("" if memory else f"{TEXT}\n\n") + "Which city?")

    def nll(text: str) -> float:
        ids = [*loaded.tokenizer.encode_next(text), loaded.tokenizer.end_of_turn_id]
        return answer_nll(loaded.model, [prompt], [ids], subject.prefix, memories)[0]

    right = int(nll("Paris") > nll("Rome"))
    decisions = prefilled(loaded.model, [prompt], subject.prefix, memories)[1][0]
    decided = max(range(3), key=lambda n: float(decisions[loaded.tokenizer.encode_next(DECISIONS[n])[0]]))
    choices, ask = ("Paris", "Rome"), "Which city?"
    for row, score in (
        (Choice(ask, choices, right, ()), 1),
        (Choice(ask, choices, 1 - right, ()), 0),
        (Choice(ask, DECISIONS, decided, ()), 1),
    ):
        assert answered(subject, row, [TEXT], memory)[0] == score


def test_the_time_counts_reading_of_memories_and_not_their_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, loaded = [0.0], tiny_loaded()
    subject = Subject.of(loaded)

    def costs(seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        def slower(*given: Any) -> Any:
            clock[0] += seconds * len(given[0])
            return work(*given)

        return slower

    monkeypatch.setattr("time.process_time", lambda: clock[0])
    monkeypatch.setattr(subject.bank.format, "decode", costs(1, subject.bank.format.decode))
    monkeypatch.setattr(subject.loaded.writer, "write", costs(100, subject.loaded.writer.write))
    row = Choice("Which city?", DECISIONS, 0, ())
    assert answered(subject, row, [TEXT, "Rome is the capital of Italy"], memory=True)[1] == 2
    assert answered(subject, row, [TEXT], memory=False)[1] == 0


def test_arms_are_compared_on_the_same_questions_and_drawn(tmp_path: Path) -> None:
    measured = {name: [(0.0, 1.0), (1.0, 2.0)] for name in ("none", "rag_3", "rag_5", "rag_7")}
    found = summary({**measured, "memory": [(1.0, 0.5), (1.0, 0.5)]})
    assert found["rag_3"]["memory_higher"] == {"mean": 0.5, "error": 0.5, "n": 2}
    assert found["memory"]["seconds"] == {"mean": 0.5, "error": 0, "n": 2}
    draw(found, "rows", tmp_path / "rows.svg")
    assert (tmp_path / "rows.svg").read_text().count("LineCollection") >= 6
