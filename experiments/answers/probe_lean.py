"""How much more a rounded decoder's queries lean to a refusal than those that the probe was fitted on (decision 0071).

The same questions with the same memories are read by the model in bfloat16, as `memory-model fit-refusal` reads them,
and by a bundle's decoder, as a device does. What has to be taken off there, so that no more than a given share of the
answerable questions is refused, goes into the model folder's probe with `--save`: give development questions then.
Without it, the questions are read with what was saved.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from edge_client.decoder.batching import BatchingDecoder
from memory3.errors import InvalidInput
from memory3.files.bundle import DEFAULT_FOLDER, Bundle
from memory3.runtime.answerability import PROBE_FILE, AnswerabilityProbe
from memory3.runtime.attention import QueryRecord
from memory_model.data.rows import open_rows
from memory_model.defaults import ASSETS, MODEL
from memory_model.eval.conditions import Evaluation
from memory_model.eval.refusing import Signals, signals
from memory_model.eval.scores import Mean
from memory_model.eval.subject import Subject
from memory_model.eval.written import WrittenMemories
from memory_model.terminal import console, progress_bar


def probe_lean(
    data: Annotated[list[Path], typer.Argument(help="Questions: JSON lists of {knowledge, question, …}.")],
    bundle: Annotated[Path, typer.Option(help="Edge bundle of the model.")] = DEFAULT_FOLDER,
    model: Annotated[Path, typer.Option(help="Model folder with a probe.")] = ASSETS / MODEL,
    limit: Annotated[int | None, typer.Option(min=2, help="Questions of each file.")] = None,
    most_wrong: Annotated[float, typer.Option(min=0, max=1, help="Share of answerable questions refused.")] = 0.05,
    save: Annotated[bool, typer.Option(help="Write it into the model folder's probe.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Of the decoder.")] = 1,
) -> None:
    """Measure how far the rounded weights of a bundle move what its probe of refusals reads."""
    subject, opened = Subject.open(model, None, None, device="cpu"), Bundle.open(bundle)
    probe, decoder = subject.probe, BatchingDecoder.open(opened, provider="cpu", threads=threads)
    if probe is None or opened.manifest.model_id != probe.model_id:
        raise InvalidInput(f"{bundle} and {model} need one model with a probe: `memory-model fit-refusal` fits one")
    subject.bank.written = WrittenMemories(subject.loaded)
    exact, rounded, precision = list[Signals](), list[Signals](), decoder.backend.precision
    for path in data:
        run = Evaluation(subject, open_rows(path, limit), ["memory"])
        with progress_bar(f"{path.stem}, bfloat16", len(run.rows)) as advance, subject.computing("auto"):
            exact.append(signals(run, advance))
        with progress_bar(f"{path.stem}, {precision}", len(run.rows)) as advance:
            found = []
            for row, references in zip(run.rows, run.given, strict=True):
                found.append(read(decoder, subject, subject.prompt(row.question), references))
                advance(1)
        margins, queries = (np.stack(part) for part in zip(*found, strict=True))
        rounded.append(exact[-1]._replace(margins=margins, queries=queries))
    fitted = replace(probe, leans={})
    scores = np.concatenate([(of.margins + fitted.biases(of.queries, of.memories))[of.answerable] for of in rounded])
    found_here = round(max(0.0, float(np.quantile(scores, 1 - most_wrong))), 2)
    lean = found_here if save else probe.leans.get(precision, found_here)
    corrected = replace(fitted, leans={precision: lean}).at(precision)
    table = Table(
        "questions", "n", "more than in bfloat16", "refused wrongly, rightly: bfloat16", precision, "corrected"
    )
    for path, one, other in zip(data, exact, rounded, strict=True):
        more = fitted.biases(other.queries, other.memories) - fitted.biases(one.queries, one.memories)
        shares = [refused(by, of) for by, of in ((fitted, one), (fitted, other), (corrected, other))]
        own = Mean.of(more.tolist())
        table.add_row(path.stem, str(own.n), f"{own.mean:.2f} ± {own.error:.2f}", *shares)
    console.print(table)
    console.print(f"lean of {precision}: {lean:.2f}")
    if save:
        path = model / PROBE_FILE
        replace(probe, leans={**probe.leans, precision: lean}).save(path)
        console.print(f"written to [bold]{path}[/bold]; export the bundle again")


def refused(probe: AnswerabilityProbe, of: Signals) -> str:
    """The shares of the answerable questions and of the others that would be refused."""
    scores = of.margins + probe.biases(of.queries, of.memories)
    kinds = [scores[of.answerable == kind] > 0 for kind in (True, False)]
    return ", ".join(f"{kind.mean():.3f}" if len(kind) else "–" for kind in kinds)


def read(
    decoder: BatchingDecoder, subject: Subject, prompt: list[int], references: list[str]
) -> tuple[np.float32, np.ndarray]:
    """The refusal's margin and the memory heads' queries at the end of a prompt, as a device computes them."""
    token, sequence = subject.refusal.first_token(subject.loaded.chat), decoder.sequence()
    sequence.record = record = QueryRecord()
    reused = sequence.begin(prompt, memory=True)
    sequence.inject(subject.bank.decoded(references))
    logits = sequence.read(prompt[reused:])[-1].astype(np.float32)
    queries = record.at(sequence.length - 1)
    assert queries is not None
    sequence.end()
    own, logits[token] = logits[token], -np.inf
    return own - logits.max(), np.asarray(queries, np.float32)
