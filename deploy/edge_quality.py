"""What weights of fewer bits cost: held-out questions through the device's own decoder, for each precision.

    python -m deploy.edge_quality --limit 60

Memories are written and coded by the model as the service does it, five to a question with one right, and put
into the slots by the device's own code; only the network is left out. Bundles are exported under --folder, unless
--bundle has the precision. Answers are kept under the folder, so an interrupted run goes on. Writes the section
`int4` of build/quality.jsonl, which `make quality` puts on the page.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from docs.quality import DEVICE_PRECISION
from edge_client.decoder.batch import Decoder
from edge_client.model import EdgeModel
from edge_client.recall.policy import RecallMode, RecallPolicy
from edge_client.recall.recaller import Recall
from experiments.quality import Measured, file_key, keep
from memory_model.bundle import MANIFEST, Bundle
from memory_model.codec.payload import ExplicitMemory
from memory_model.eval.conditions import EVALUATOR, Evaluation, Scores
from memory_model.eval.rows import open_rows
from memory_model.eval.subject import Subject
from memory_model.export.bundle import export_bundle
from memory_model.export.weights import Precision

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = ROOT / "data" / "heldout_questions.json"


class GivenMemories:
    """In place of the recaller: the memories of the current question for every chunk."""

    def __init__(self) -> None:
        self.memories: Sequence[ExplicitMemory] = ()

    def recall(self, queries: Sequence[str], **_: object) -> list[Recall]:
        """The same memories for every query."""
        return [Recall(q, tuple(self.memories)) for q in queries]


def main() -> None:
    """Measure, keep and print."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--model", type=Path, help="model folder; default: the packaged one")
    arguments.add_argument("--limit", type=int, default=100, help="questions")
    arguments.add_argument("--precisions", default=f"float32,int8,{DEVICE_PRECISION}")
    arguments.add_argument("--folder", type=Path, default=ROOT / "build" / "edge-quality")
    arguments.add_argument("--bundle", type=Path, default=ROOT / "build" / "bundle")
    arguments.add_argument("--out", type=Path, default=ROOT / "build" / "quality.jsonl")
    arguments.add_argument("--threads", type=int, default=1)
    options = arguments.parse_args()
    started, subject = time.monotonic(), Subject.open(options.model)
    about, rows = subject.about(), open_rows(QUESTIONS, options.limit)
    plan = Evaluation(subject, rows, ["memory"])
    key = {"evaluator": EVALUATOR, **{name: about[name] for name in ("model_id", "codec_id")}}
    key |= {"data": file_key(QUESTIONS), "rows": len(rows)}
    scores: dict[str, Scores] = {}
    for precision in (Precision.parse(name).label for name in options.precisions.split(",")):
        kept = options.folder / f"answers-{precision}.json"
        found = json.loads(kept.read_text()) if kept.is_file() else {}
        if found.get("key") != key:
            answers = answered(
                bundle_of(subject, precision, options.bundle, options.folder), plan, options.threads
            )
            found = {"key": key, "answers": answers}
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(found))
        scores[precision] = Scores.of(rows, found["answers"])
    first, *others = scores
    pairs = [(name, first) for name in others]
    keep(options.out, Measured.of("int4", "test", key, started, scores, about, pairs))
    for name, found in scores.items():
        Console().print(name, found.summary())


def bundle_of(subject: Subject, precision: str, given: Path, folder: Path) -> Bundle:
    """The model's bundle in a precision: `given`, or one under `folder`, which is exported unless it is there."""
    about = subject.about()
    for candidate in (given, folder / f"bundle-{precision}"):
        if (candidate / MANIFEST).is_file():
            bundle = Bundle.open(candidate)
            found = bundle.manifest
            if (found.model_id, found.codec_id, found.precision) == (
                about["model_id"], about["codec_id"], precision,
            ):  # fmt: skip
                return bundle
    return export_bundle(subject.loaded, folder / f"bundle-{precision}", precision)


def answered(bundle: Bundle, plan: Evaluation, threads: int) -> list[str]:
    """Every question's answer from the bundle's decoder."""
    given = GivenMemories()
    decoder = Decoder.open(bundle, threads=threads)
    model = EdgeModel(bundle, decoder, given, RecallPolicy(RecallMode.exact))
    answers = []
    pairs = list(zip(plan.rows, plan.given, strict=True))
    for row, reads in track(pairs, f"{bundle.manifest.precision}: questions", console=Console(stderr=True)):
        given.memories = plan.bank.decoded(reads)
        answers.append(model.ask(row.question, max_tokens=48).text.strip())
    return answers


if __name__ == "__main__":
    main()
