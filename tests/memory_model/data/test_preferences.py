"""Pairs for DPO: what wins over what, with memories that are read, and that the loss is the formula's."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from experiments.questions.countries import invented_documents
from experiments.questions.paragraphs import paragraph_rows, part_of, write_paragraph_sets
from memory3.text.chat import ChatTemplate
from memory3.text.refusal import SENTENCE
from memory3.text.tokenizer import Tokenizer
from memory_model.data.batches import IGNORE
from memory_model.data.conversations import Sizes
from memory_model.data.factbook import held_out, read_jsonl
from memory_model.data.hard_negatives import Articles
from memory_model.data.mixture import Reader, TrainingFiles, mixture_of
from memory_model.data.preferences import Preferences
from memory_model.models.folder import ModelFolder
from memory_model.nn.adapter import collect, load_start
from memory_model.nn.decoder import Decoder
from memory_model.nn.generate import read
from memory_model.nn.writing import write_memories
from memory_model.train.losses import batch_gradients
from memory_model.train.tuner import Tuner, TuningPlan
from testing.programs import ROOT
from tests.edge_client.tiny_bundle import tiny_loaded
from tests.experiments.small_paragraphs import paragraphs
from tests.memory_model.data.small_negatives import REFUSING, ROWS, hard
from tests.memory_model.tiny import PREFIX
from tests.memory_model.train.tuned import gradients, tuned

DATA = ROOT / "data"
TESTS = [p for name in ("*_test", "heldout*", "unanswerable", "unanswerable_twins") for p in DATA.glob(f"{name}.json")]
UNREAD = {row.question: "Napoleon" for row in ROWS}


def preferences() -> Preferences:
    rows = [row if row.answerable else replace(row, plausible=f"B{row.question[14]}") for row in ROWS]
    return Preferences(hard(), Articles(rows, tiny_loaded().chat, 1, replace(REFUSING, longest=64)), UNREAD, 3)


def test_every_pair_prefers_what_the_references_say() -> None:
    source, kinds = preferences(), set()
    for _ in range(20):
        written = source.draw()
        for places, _, chosen, rejected in source.pairs(written):
            texts = [written[n].text for n in places]
            wrong = [text for text in texts if chosen not in text] if chosen != SENTENCE else texts
            assert chosen == SENTENCE or len(wrong) < len(texts)
            assert rejected in (SENTENCE, "Napoleon") or any(rejected in text for text in wrong)
            kinds.add((chosen == SENTENCE, rejected if rejected in (SENTENCE, "Napoleon") else "read"))
    assert kinds == {(True, "read"), (False, SENTENCE), (False, "Napoleon"), (False, "read")}


def test_pairs_hold_no_row_of_a_test_set(tmp_path: Path) -> None:
    """Built as training builds them, from files that hold what the tests are about too."""
    held = [title for title in (f"Article {n}" for n in range(60)) if part_of(title) != "training"][:8]
    tested = [p for title in held for p in paragraphs(title, subject=title)]
    tests = [row for path in TESTS for row in json.loads(path.read_text())] + paragraph_rows(tested)
    titles = {row.get("title") or row["knowledge"].partition("\n")[0] for row in tests}
    kept_out = {text for row in tests if "knowledge" in row for text in (row["knowledge"], *row.get("distractors", []))}
    (tmp_path / "squad.json").write_text(json.dumps(tested + paragraphs("Basel")))
    write_paragraph_sets([tmp_path / "squad.json"], tmp_path, tmp_path / "training.json", 1)
    real = read_jsonl(DATA / "factbook.jsonl")
    learned = [d for d in [*real[::9], *invented_documents(real, ["Siam", "Ostland"])] if not held_out(d["key"])]
    countries = [*(d for d in real if held_out(d["key"])), *learned]
    (tmp_path / "countries.jsonl").write_text("\n".join(map(json.dumps, countries)))
    folder = ModelFolder.open()
    tokenizer = Tokenizer.from_json(folder.checkpoint.tokenizer_json, folder.checkpoint.special_tokens)
    config = folder.checkpoint.config(folder.name).with_memory(folder.memory)
    loaded = SimpleNamespace(tokenizer=tokenizer, config=config, chat=ChatTemplate(folder.chat_template, tokenizer))
    files = TrainingFiles(tmp_path / "countries.jsonl", questions=tmp_path / "training.json")
    built = mixture_of("preferences:1", Reader.of(loaded), files, 0, Sizes()).sources["preferences"][1]
    facts, articles = built.sources
    references = [*facts.references, *(r for held in articles.articles.values() for r, _ in held)]
    questions = {way.question for r in references for ways in r.questions for way in ways}
    questions |= {q.question for held in articles.articles.values() for _, asked in held for q in asked}
    assert not {r.text.partition("\n")[0] for r in references} & titles
    assert not questions & {row.get("question") for row in tests}
    for _ in range(40):
        written = built.draw()
        assert not any(text in r.text for r in written for text in kept_out)
        assert {question for _, question, *_ in built.pairs(written)} <= questions


def test_pairs_are_neighbouring_rows_and_go_on_exactly() -> None:
    first, second = preferences(), preferences()
    first.next()
    second.restore(first.state())
    batch = first.next()
    assert batch.preferences
    assert batch.ids.equal(second.next().ids)
    assert batch.memories[::2].equal(batch.memories[1::2])
    assert not batch.ids[0].equal(batch.ids[1])


def test_loss_and_gradient_are_those_of_the_formula() -> None:
    batch, (model, parameters) = preferences().next(), tuned()
    load_start(model, collect(model, model.config.memory, "base", {}))
    model.float()

    def likelihoods(model: Decoder) -> torch.Tensor:
        memory = write_memories(model, batch.reference_ids, batch.reference_lengths, PREFIX).select(batch.memories)
        log_p = model.head(read(model, batch.ids, PREFIX, memory, batch.chunks))[:, :-1].float().log_softmax(-1)
        labels = batch.labels[:, 1:]
        return (log_p.gather(2, labels.clamp_min(0)[..., None])[..., 0] * (labels != IGNORE)).sum(1)

    with torch.no_grad():
        start = likelihoods(model)
        for parameter in parameters:
            parameter += 0.1 * torch.randn_like(parameter)
    gained = likelihoods(model) - start
    loss = -F.logsigmoid(0.1 * (gained[::2] - gained[1::2])).mean()
    (0.5 * loss).backward()
    expected = gradients(parameters)
    for parameter in parameters:
        parameter.grad = None
    done = batch_gradients(model, batch, PREFIX, weight=0.5, beta=0.1)
    assert done.answers == pytest.approx(float(loss.detach()), rel=1e-5)
    assert float((gradients(parameters) - expected).norm() / expected.norm()) < 1e-4


@pytest.mark.slow
def test_a_model_learns_to_prefer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TuningPlan(steps=8, learning_rate=3e-2, warmup=2, rank=4, first_layer=1, beta=0.1, cosine=True)
    start = collect(tuned()[0], tiny_loaded().config.memory, "base", {})
    source, losses = preferences(), list[float]()
    batch = source.next()
    monkeypatch.setattr(source, "next", lambda: batch)
    tuner = Tuner(tiny_loaded().model, PREFIX, source, plan, tmp_path, "base", start=start)
    tuner.run(lambda step: losses.append(step.loss))
    assert losses[0] == pytest.approx(0.6931, abs=1e-3), "with the noise of the start"
    assert losses[-1] < 0.4
    assert [plan.rate(0), plan.rate(2), plan.rate(8)] == pytest.approx([1.5e-2, 3e-2, 0])
