"""Which weights keep the answers: the held-out questions through the device's own decoder, for each precision.

    python -m deploy.edge_quality --limit 100

Memories are written and coded by the model as the service does it, five to a question with one right, and put
into the slots by the device's own code; only the network is left out. A bundle of the model that is there already
(`build/bundle`, or an earlier run's) is measured, a missing or another model's is exported. Answers are kept under the
folder, so an interrupted run goes on. Prints F1 and exact match, the share of answers equal to the first precision's,
and tokens per second of the same run; writes docs/data/edge_quality.json, of which `memory-model quality-report` makes
its part of the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.progress import track
from rich.table import Table

from edge_client.decoder_graph import DecoderGraph
from edge_client.events import Finished
from edge_client.model import EdgeModel
from edge_client.overlap import RecallMode, RecallPolicy
from edge_client.recall import Recall
from memory_model.bundle import MANIFEST, Bundle
from memory_model.chat import ChatTemplate
from memory_model.codec.faiss import FaissCodec
from memory_model.codec.payload import ExplicitMemory, MemoryFormat
from memory_model.eval.conditions import Evaluation
from memory_model.eval.memories import MemoryBank
from memory_model.eval.results import EdgeQuality, PrecisionQuality, today, write_json
from memory_model.eval.rows import read_rows
from memory_model.eval.scores import exact_match, token_f1
from memory_model.export.bundle import export_bundle
from memory_model.export.weights import Precision
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel, load_model

ROOT = Path(__file__).resolve().parents[1]


class GivenMemories:
    """Stands where the recaller stands and hands out the memories of the question that is asked."""

    def __init__(self) -> None:
        self.memories: Sequence[ExplicitMemory] = ()

    def recall(self, queries: Sequence[str], **_: object) -> list[Recall]:
        """The same memories for every chunk."""
        return [Recall(q, tuple(self.memories)) for q in queries]


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--limit", type=int, default=100, help="questions")
    arguments.add_argument("--precisions", default="float32,int8,int4-64-table-int8")
    arguments.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "edge-quality", help="where bundles are exported to"
    )
    arguments.add_argument(
        "--bundle",
        type=Path,
        default=ROOT / "build" / "bundle",
        help="taken for its own precision, if it fits",
    )
    arguments.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "data" / "edge_quality.json", help="figures to write"
    )
    arguments.add_argument("--threads", type=int, default=1)
    options = arguments.parse_args()
    precisions = [Precision.parse(name).label for name in options.precisions.split(",")]
    loaded = load_model()
    encoder = FaissCodec.load_encoder(ModelFolder.open().need_codec())
    rows = list(read_rows(json.loads((ROOT / "data/heldout_questions.json").read_text()), options.limit))
    template = ChatTemplate(loaded.chat_template, loaded.tokenizer)
    bank = MemoryBank(loaded, MemoryFormat(loaded.config, loaded.model_id, encoder))
    plan = Evaluation(bank, lambda q: template.prompt([{"role": "user", "content": q}]).ids, rows)
    results: dict[str, PrecisionQuality] = {}
    first: list[str] = []
    for precision in precisions:
        kept = options.folder / f"answers-{precision}.json"
        key = [loaded.model_id, encoder.codec_id, [[row.question, row.right_answer] for row in rows]]
        run = json.loads(kept.read_text()) if kept.is_file() else {}
        if run.get("key") != key:
            bundle = bundle_of(loaded, encoder.codec_id, precision, options.bundle, options.folder)
            answers, speed = answered(bundle, bank, plan, options.threads, precision)
            weights = sum(f.stat().st_size for f in bundle.folder.glob("decoder.onnx*"))
            run = {"key": key, "answers": answers, "tokens_per_s": speed, "bytes": weights}
            write_json(kept, run)
        said = run["answers"]
        first = first or said
        results[precision] = PrecisionQuality(
            f1=fmean(token_f1(a, r.right_answer) for a, r in zip(said, rows, strict=True)),
            exact_match=fmean(exact_match(a, r.right_answer) for a, r in zip(said, rows, strict=True)),
            same_as_first=fmean(a == b for a, b in zip(said, first, strict=True)),
            tokens_per_s=run["tokens_per_s"],
            decoder_mb=round(run["bytes"] / 1e6, 1),
        )
        EdgeQuality(loaded.model_id, today(), len(rows), results).save(options.out)
    names = ("f1", "exact_match", "same_as_first", "tokens_per_s", "decoder_mb")
    table = Table("weights", *names, title=f"{len(rows)} held-out questions, {options.threads} thread(s)")
    for precision, result in results.items():
        table.add_row(precision, *(f"{getattr(result, n):.3f}" for n in names))
    Console(width=110).print(table)


def bundle_of(loaded: LoadedModel, codec_id: str, precision: str, given: Path, folder: Path) -> Bundle:
    """The model's bundle in a precision: `given`, or one under `folder`, which is exported unless it is there."""
    place = folder / f"bundle-{precision}"
    for candidate in (given, place):
        if not (candidate / MANIFEST).is_file():
            continue
        bundle = Bundle.open(candidate)
        found = bundle.manifest
        if (found.model_id, found.codec_id, found.precision) == (loaded.model_id, codec_id, precision):
            return bundle
    return export_bundle(loaded, place, precision)


def answered(
    bundle: Bundle, bank: MemoryBank, plan: Evaluation, threads: int, name: str
) -> tuple[list[str], float]:
    """Every question's answer, and the median of tokens per second."""
    bank.write(plan.references(["memory"]))
    given = GivenMemories()
    graph = DecoderGraph.open(bundle.decoder, threads=threads)
    model = EdgeModel(bundle, graph, given, RecallPolicy(RecallMode.exact))
    answers, speeds = [], []
    pairs = list(zip(plan.rows, plan.given, strict=True))
    for row, reads in track(pairs, f"{name}: questions", console=Console(stderr=True)):
        given.memories = bank.decoded(reads)
        done = list(model.generate(row.question, max_tokens=48))[-1]
        assert isinstance(done, Finished)
        answers.append(done.text.strip())
        speeds.append(done.statistics.tokens_per_s)
    return answers, round(median(speeds), 2)


if __name__ == "__main__":
    main()
