"""What asking early costs in answers: held-out questions over a real service, `exact` against `overlap`.

    python -m deploy.overlap_quality --limit 50

Two measurements. Answers as they are: F1 and exact match of `exact`, `overlap` and `off`, and how many chunks of the
answers recalled at all; an answer shorter than a chunk recalls before its first token only, and alike in both. Long
answers: the turn's end is forbidden for three chunks, and for every boundary the memories found with the text at the
boundary are compared with those found `lead_tokens` before it. The knowledge base has the held-out countries, in a
store of its own that the next run uses again. Prints tables, writes build/overlap/overlap_quality.json, and the two F1
to docs/data/overlap.json, of which `memory-model quality-report` makes its part of the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from deploy.service_process import ServiceProcess
from edge_client import EdgeModel, Finished, Recall, Recalled, Token
from edge_client.prompt import generated_query
from memory_model.digest import file_sha256
from memory_model.eval.results import Overlap, today
from memory_model.eval.rows import Row, read_rows
from memory_model.eval.scores import exact_match, token_f1

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "overlap"
MODES = ("exact", "overlap", "off")
LONG_CHUNKS = 3
DEADLINE_S = 30.0
"""Of every recall: what is measured is what early text finds, not a slow machine."""
console = Console(width=110)


@dataclass(frozen=True)
class ModeScore:
    """Answers in one mode. generated_recalls: chunks of all answers that recalled; late: of them, late ones."""

    f1: float
    exact_match: float
    same_as_exact: float
    generated_recalls: int
    late: int


@dataclass(frozen=True)
class EarlyRecalls:
    """Boundaries of long answers. shared: mean share of the boundary's memories that asking early found too."""

    boundaries: int
    lead_tokens: int
    shared: float
    same_best: float
    same_set: float


def main() -> None:
    """Measure, print, write."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--limit", type=int, default=50, help="questions, of several countries")
    arguments.add_argument("--long", type=int, default=15, help="of them, those answered at length")
    arguments.add_argument("--bundle", type=Path, default=ROOT / "build" / "bundle")
    arguments.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "data" / "overlap.json", help="figures of the page"
    )
    options = arguments.parse_args()
    rows = list(read_rows(json.loads((ROOT / "data/heldout_questions.json").read_text()), options.limit))
    # Memories of another bundle would be refused: each has a folder of its own.
    work = WORK / file_sha256(options.bundle / "manifest.json")[:12]
    work.mkdir(parents=True, exist_ok=True)
    service = ServiceProcess.start(work, options.bundle.resolve())
    try:
        ingest(service.address, work)
        with EdgeModel.open(
            options.bundle,
            service.address,
            deadline_s=DEADLINE_S,
            chunk_deadline_s=DEADLINE_S,
            hedge_after_ms=1e6,
        ) as model:
            scores = answered(model, rows)
            early = early_recalls(model, rows[: options.long])
            model_id = model.bundle.manifest.model_id
    finally:
        service.kill()
    show(scores, early, len(rows))
    result = {
        "questions": len(rows),
        "modes": {m: asdict(s) for m, s in scores.items()},
        "long": asdict(early),
    }
    place = work / "overlap_quality.json"
    place.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    exact, overlap = scores["exact"], scores["overlap"]
    Overlap(model_id, today(), len(rows), exact.f1, overlap.f1, overlap.generated_recalls).save(options.out)
    console.print(f"wrote {place.relative_to(ROOT)} and {options.out}; next: memory-model quality-report")


def ingest(address: str, work: Path) -> None:
    """The held-out countries; those that are there already cost nothing."""
    keys = {country["key"] for country in json.loads((ROOT / "data/heldout.json").read_text())}
    lines = (ROOT / "data" / "factbook.jsonl").read_text(encoding="utf-8").splitlines()
    documents = work / "documents.jsonl"
    documents.write_text("\n".join(line for line in lines if json.loads(line)["key"] in keys) + "\n")
    program = Path(sys.executable).parent / "memory-service"
    command = [program, "ingest", documents, "--address", address, "--journals", work / "journals"]
    subprocess.run([str(part) for part in command], check=True)


def answered(model: EdgeModel, rows: list[Row]) -> dict[str, ModeScore]:
    """Every question in every mode, one mode after the other for each."""
    told: dict[str, list[tuple[str, list[Recalled]]]] = {mode: [] for mode in MODES}
    for row in track(rows, "questions", console=console):
        for mode in MODES:
            *events, finished = model.session(recall=mode).send(row.question, max_tokens=48)
            assert isinstance(finished, Finished)
            recalls = [e for e in events if isinstance(e, Recalled)]
            told[mode].append((finished.text.strip(), recalls))
    scores = {}
    for mode, answers in told.items():
        said = [text for text, _ in answers]
        generated = [r for _, recalls in answers for r in recalls if r.generated]
        right = [row.right_answer for row in rows]
        scores[mode] = ModeScore(
            f1=fmean(token_f1(a, r) for a, r in zip(said, right, strict=True)),
            exact_match=fmean(exact_match(a, r) for a, r in zip(said, right, strict=True)),
            same_as_exact=fmean(a == b for a, (b, _) in zip(said, told["exact"], strict=True)),
            generated_recalls=len(generated),
            late=sum(r.state == "late" for r in generated),
        )
    return scores


def early_recalls(model: EdgeModel, rows: list[Row]) -> EarlyRecalls:
    """What the boundaries of long answers find, with the text at hand there and with that of `lead_tokens` before."""
    tokenizer, lead = model.bundle.tokenizer, model.policy.lead_tokens
    chunk = model.bundle.config.memory.chunk_tokens
    goes_on = dict.fromkeys(tokenizer.stop_ids, -100.0)
    found: list[tuple[list[int], list[int]]] = []
    for row in track(rows, "long answers", console=console):
        stream = model.session(recall="exact").send(
            row.question, max_tokens=LONG_CHUNKS * chunk, logit_bias=goes_on, repetition_penalty=1.1
        )
        said = model.bundle.chat.encode_content(row.question)
        before = len(said)
        said = [*said, *(event.id for event in stream if isinstance(event, Token))]
        for end in range(before + chunk, len(said) + 1, chunk):
            texts = [tokenizer.decode(generated_query(said[:at], chunk)).strip() for at in (end, end - lead)]
            assert model.recaller is not None
            at_end, early = model.recaller.recall(texts, deadline_s=DEADLINE_S)
            found.append((ids(at_end), ids(early)))
    pairs = [(end, early) for end, early in found if end]
    return EarlyRecalls(
        boundaries=len(pairs),
        lead_tokens=lead,
        shared=fmean(len({*end} & {*early}) / len(end) for end, early in pairs),
        same_best=fmean(end[0] == (early or [-1])[0] for end, early in pairs),
        same_set=fmean({*end} == {*early} for end, early in pairs),
    )


def ids(recall: Recall) -> list[int]:
    """Memories that are read, best first; raises where the service failed, for that is not what is measured."""
    if recall.error:
        raise SystemExit(f"the service failed under the measurement: {recall.error}")
    return [memory.memory_id for memory in recall.read if not memory.refused]


def show(scores: dict[str, ModeScore], early: EarlyRecalls, questions: int) -> None:
    """Both tables."""
    columns: Any = ("f1", "exact_match", "same_as_exact", "generated_recalls", "late")
    table = Table("recall", *columns, title=f"{questions} held-out questions over a real service")
    for mode, score in scores.items():
        values = asdict(score)
        table.add_row(
            mode, *(f"{values[c]:.3f}" if isinstance(values[c], float) else str(values[c]) for c in columns)
        )
    console.print(table)
    console.print(
        f"long answers, {early.boundaries} chunk boundaries, asked {early.lead_tokens} tokens early:"
        f" {early.shared:.2f} of the memories are the same, the best one in {early.same_best:.2f},"
        f" all of them in {early.same_set:.2f}"
    )


if __name__ == "__main__":
    main()
