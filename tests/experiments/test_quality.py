"""Sections are measured again when their key changes; the page judges intervals, not means."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from docs.quality import BEGIN, END, Bar, page, taken_over
from experiments.answers.published import HALUEVAL
from experiments.answers.quality import SECTIONS, Measured, is_kept, keep, read_measured, selected, window_loss
from memory3.errors import CorruptFile, InvalidInput
from memory3.text.refusal import SENTENCE
from memory_model.eval.conditions import Scores
from memory_model.eval.subject import MemoryBank, Subject
from testing.programs import ROOT
from tests.edge_client.tiny_bundle import format_of, tiny_loaded

ABOUT = {"model": "tiny", "model_id": "m1", "codec_id": "c", "template": "t", "memory_bytes": 4000}
MARKED = f"# Quality\n\n{BEGIN}\nold\n{END}\n\nthe rest\n"


def measured(name: str = "same_field", part: str = "test", model_id: str = "m1", right: int = 30) -> Measured:
    """A section of 40 rows, `right` of them answered exactly with memory, 20 with the five texts."""
    rights = {
        condition: [1.0] * hits + [0.0] * (40 - hits)
        for condition, hits in (("memory", right), ("rag_five", 20), ("rag", 38))
    }
    scores = {condition: Scores(SENTENCE, exact_match=one, f1=one) for condition, one in rights.items()}
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
