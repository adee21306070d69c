"""What the device itself costs in answers: weights of fewer bits, and recall that begins early.

`int4`: held-out questions through the exported decoder in each precision, with the memories of the questions put into
the slots. `overlap`: the same questions over a real service in the modes `exact`, `overlap` and `off`.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edge_client.decoder.batching import BatchingDecoder
from edge_client.engine import Engine
from edge_client.model import EdgeModel
from edge_client.recall.embedding import QueryEmbedder
from edge_client.recall.outcome import Recall
from edge_client.recall.policy import RecallMode
from edge_client.recall.recaller import Recaller
from edge_client.settings import EdgeSettings
from experiments.answers.quality import MEASURED, Measured, file_key, keep
from experiments.corpus.preparing import write_rows
from memory3.codec.payload import ExplicitMemory
from memory3.files.bundle import MANIFEST, Bundle
from memory_model import terminal
from memory_model.data import factbook
from memory_model.data.factbook import FACTBOOK
from memory_model.data.rows import QuestionRow, open_rows
from memory_model.eval.conditions import EVALUATOR, Evaluation, Scores
from memory_model.eval.subject import Subject
from memory_model.export.bundle import export_bundle
from memory_model.export.weights import Precision
from memory_model.terminal import console, progress_bar
from testing.processes import PROGRAMS, ServiceProcess

QUESTIONS = Path("data/heldout_questions.json")
WORK = Path("build/device-quality")
PRECISIONS = ("float32", "int8", "int4-64-table-int8")
MODES = ("exact", "overlap", "off")
DEADLINE_S = 30.0
"""Of every recall: what is measured is what early text finds, not a slow machine."""


def device_quality(
    model: terminal.ModelOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of questions.")] = 100,
    out: Annotated[Path, typer.Option(help="JSONL for the sections int4 and overlap.")] = MEASURED,
) -> None:
    """Measure the effect of int4 weights and early recall on answers; `make quality` writes both to the page."""
    subject, rows = Subject.open(model), open_rows(QUESTIONS, limit)
    about = subject.about()
    key = {"evaluator": EVALUATOR, **{name: about[name] for name in ("model_id", "codec_id")}}
    key |= {"data": file_key(QUESTIONS), "rows": len(rows)}
    folder = WORK / about["model_id"][:12]
    folder.mkdir(parents=True, exist_ok=True)

    started, plan = time.monotonic(), Evaluation(subject, rows, ["memory"])
    scores = {}
    for precision in PRECISIONS:
        bundle = folder / precision
        there = (bundle / MANIFEST).is_file()
        opened = Bundle.open(bundle) if there else export_bundle(subject.loaded, bundle, Precision.parse(precision))
        scores[precision] = Scores.of(rows, with_given_memories(opened, plan), subject.refusal.sentence)
        console.print(precision, scores[precision].summary())
    pairs = [(name, PRECISIONS[0]) for name in PRECISIONS[1:]]
    keep(out, Measured.of("int4", "test", key, started, scores, about, pairs))

    started, bundle = time.monotonic(), folder / PRECISIONS[-1]
    with ServiceProcess.start(folder, bundle.resolve(), model=model) as service:
        ingest_held_out(service.address, folder)
        with EdgeModel.open(bundle, service.address, local=folder / "local", deadline_s=DEADLINE_S) as device:
            scores = in_every_mode(device, rows)
    key |= {"precision": PRECISIONS[-1]}
    keep(out, Measured.of("overlap", "test", key, started, scores, {}, [("exact", "overlap")]))


class GivenMemories(Recaller):
    """Gives every chunk the memories of the current question."""

    memories: Sequence[ExplicitMemory] = ()

    def recall(self, queries: Sequence[str], **_: object) -> list[Recall]:
        """The same memories for every query."""
        return [Recall(q, tuple(self.memories)) for q in queries]


def with_given_memories(bundle: Bundle, plan: Evaluation) -> list[str]:
    """Every question's answer from the bundle's decoder."""
    given = GivenMemories(QueryEmbedder(bundle.embedder()), None, bundle.memory_format)
    settings = EdgeSettings(memory=RecallMode.exact, local=bundle.folder / "none")
    model = EdgeModel(Engine(bundle, BatchingDecoder.open(bundle), given, settings))
    answers = []
    with progress_bar(f"{bundle.manifest.precision}: questions", len(plan.rows)) as advance:
        for row, reads in zip(plan.rows, plan.given, strict=True):
            given.memories = plan.bank.decoded(reads)
            answers.append(model.ask(row.question, max_tokens=48).text.strip())
            advance(1)
    return answers


def ingest_held_out(address: str, folder: Path) -> None:
    """The held-out countries; those that are in the store already cost nothing."""
    documents = folder / "documents.jsonl"
    write_rows(documents, [d for d in factbook.read_jsonl(FACTBOOK) if factbook.held_out(d["key"])])
    subprocess.run([PROGRAMS / "memory-service", "ingest", str(documents), "--address", address], check=True)


def in_every_mode(model: EdgeModel, rows: Sequence[QuestionRow]) -> dict[str, Scores]:
    """Every question in every mode, one mode after the other for each."""
    scores = {mode: Scores(model.bundle.manifest.refusal.sentence) for mode in MODES}
    with progress_bar("recall modes: questions", len(rows)) as advance:
        for row in rows:
            for mode, found in scores.items():
                found.add(row, model.session(memory=mode).send(row.question, max_tokens=48).result().text.strip())
            advance(1)
    for mode, found in scores.items():
        console.print(mode, found.summary())
    return scores
