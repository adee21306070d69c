"""What recalling early costs in answers: held-out questions over a real service, `exact` against `overlap`.

    python -m deploy.overlap_quality --limit 50

Two measurements. Answers in the modes `exact`, `overlap` and `off`, and how many of their chunks recalled: an answer
shorter than a chunk recalls before its first token only, alike in both. Long answers: the end of the turn is
forbidden for three chunks, and at every chunk boundary the memories found with the whole text are compared with those
found `lead_tokens` earlier. The knowledge base has the held-out countries, in a store that the next run uses again.
Writes the section `overlap` of build/quality.jsonl, which `make quality` puts on the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import track

from deploy.service_process import ServiceProcess
from edge_client import EdgeModel, Finished, Recalled, Token
from edge_client.recall.recaller import Recall
from experiments.quality import Measured, file_key, keep
from memory_model.digest import file_sha256
from memory_model.eval.conditions import EVALUATOR, Scores
from memory_model.eval.rows import Row, open_rows

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = ROOT / "data" / "heldout_questions.json"
MODES = ("exact", "overlap", "off")
LONG_CHUNKS = 3
DEADLINE_S = 30.0
"""Of every recall: what is measured is what early text finds, not a slow machine."""
console = Console(width=110)


def main() -> None:
    """Measure, keep and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--limit", type=int, default=50, help="questions, of several countries")
    arguments.add_argument("--long", type=int, default=15, help="of them, those answered at length")
    arguments.add_argument("--bundle", type=Path, default=ROOT / "build" / "bundle")
    arguments.add_argument("--out", type=Path, default=ROOT / "build" / "quality.jsonl")
    options = arguments.parse_args()
    started, rows = time.monotonic(), open_rows(QUESTIONS, options.limit)
    # Memories of another bundle would be refused: each has a folder of its own.
    work = ROOT / "build" / "overlap" / file_sha256(options.bundle / "manifest.json")[:12]
    work.mkdir(parents=True, exist_ok=True)
    service = ServiceProcess.start(work, options.bundle.resolve())
    try:
        ingest(service.address, work)
        with EdgeModel.open(options.bundle, service.address, deadline_s=DEADLINE_S) as model:
            scores = answered(model, rows)
            compare_early(model, rows[: options.long])
            manifest = model.bundle.manifest
    finally:
        service.kill()
    key = {"evaluator": EVALUATOR, "model_id": manifest.model_id, "codec_id": manifest.codec_id}
    key |= {"data": file_key(QUESTIONS), "rows": len(rows), "precision": manifest.precision}
    pairs = [("exact", "overlap")]
    keep(options.out, Measured.of("overlap", "test", key, started, scores, {}, pairs))


def ingest(address: str, work: Path) -> None:
    """The held-out countries; those that are there already cost nothing."""
    keys = {country["key"] for country in json.loads((ROOT / "data/heldout.json").read_text())}
    lines = (ROOT / "data" / "factbook.jsonl").read_text(encoding="utf-8").splitlines()
    documents = work / "documents.jsonl"
    documents.write_text("\n".join(line for line in lines if json.loads(line)["key"] in keys) + "\n")
    program = Path(sys.executable).parent / "memory-service"
    command = [program, "ingest", documents, "--address", address]
    subprocess.run([str(part) for part in command], check=True)


def answered(model: EdgeModel, rows: list[Row]) -> dict[str, Scores]:
    """Every question in every mode, one mode after the other for each."""
    scores = {mode: Scores() for mode in MODES}
    recalled = dict.fromkeys(MODES, 0)
    for row in track(rows, "questions", console=console):
        for mode in MODES:
            *events, finished = model.session(memory=mode).send(row.question, max_tokens=48)
            assert isinstance(finished, Finished)
            scores[mode].add(row, finished.text.strip())
            recalled[mode] += sum(isinstance(e, Recalled) and e.generated for e in events)
    for mode, found in scores.items():
        console.print(mode, found.summary(), f"{recalled[mode]} chunks of the answers recalled")
    return scores


def compare_early(model: EdgeModel, rows: list[Row]) -> None:
    """Print what the boundaries of long answers find with the whole text and with that of `lead_tokens` before."""
    tokenizer, lead = model.bundle.tokenizer, model.policy.lead_tokens
    chunk = model.bundle.config.memory.chunk_tokens
    goes_on = dict.fromkeys(tokenizer.stop_ids, -100.0)
    pairs: list[tuple[list[int], list[int]]] = []
    for row in track(rows, "long answers", console=console):
        stream = model.session(memory="exact").send(
            row.question, max_tokens=LONG_CHUNKS * chunk, logit_bias=goes_on, repetition_penalty=1.1
        )
        ids = model.bundle.chat.encode_content(row.question)
        before = len(ids)
        ids = [*ids, *(event.id for event in stream if isinstance(event, Token))]
        for end in range(before + chunk, len(ids) + 1, chunk):
            texts = [tokenizer.decode(ids[:at][-chunk:]).strip() for at in (end, end - lead)]
            assert model.recaller is not None
            whole, early = model.recaller.recall(texts, deadline_s=DEADLINE_S)
            if found := read_ids(whole):
                pairs.append((found, read_ids(early)))
    shared = fmean(len({*whole} & {*early}) / len(whole) for whole, early in pairs)
    best = fmean(whole[0] == (early or [-1])[0] for whole, early in pairs)
    console.print(
        f"long answers, {len(pairs)} chunk boundaries, recalled {lead} tokens early: {shared:.2f} of the memories are "
        f"the same, the best one in {best:.2f}"
    )


def read_ids(recall: Recall) -> list[int]:
    """Memories that are read, best first; exits where the service failed, which is not what is measured."""
    if recall.error:
        raise SystemExit(f"the service failed under the measurement: {recall.error}")
    return [memory.memory_id for memory in recall.read if not memory.refused]


if __name__ == "__main__":
    main()
