"""Which weights keep the answers: the held-out questions through the device's own decoder, for each precision.

    python -m deploy.edge_quality --limit 100

Memories are written and coded by the model as the service does it, five to a question with one right, and put
into the slots by the device's own code; only the network is left out. Prints F1 and exact match, the share of
answers equal to the first precision's, and tokens per second of the same run; writes
docs/data/edge_quality.json, of which `memory-model quality-report` makes its part of the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from edge_client.decoder_graph import DecoderGraph
from edge_client.events import Finished
from edge_client.model import EdgeModel
from edge_client.overlap import RecallMode, RecallPolicy
from edge_client.recall import Recall
from memory_model.assets import asset
from memory_model.chat import ChatTemplate
from memory_model.evaluation.conditions import Evaluation
from memory_model.evaluation.memories import MemoryBank
from memory_model.evaluation.results import EdgeQuality, PrecisionQuality, today
from memory_model.evaluation.rows import read_rows
from memory_model.evaluation.scores import exact_match, token_f1
from memory_model.export.bundle import export_bundle
from memory_model.memory import ExplicitMemory, MemoryFormat
from memory_model.nn.load import DEFAULT_MODEL, load_model
from memory_model.training.faiss_codec import FaissCodec

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
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--limit", type=int, default=100, help="questions")
    arguments.add_argument("--precisions", default="float32,int8,int4-64-table-int8")
    arguments.add_argument(
        "--folder", type=Path, default=ROOT / "build", help="where bundles are exported to"
    )
    arguments.add_argument("--threads", type=int, default=1)
    options = arguments.parse_args()
    loaded = load_model()
    memory_format = MemoryFormat(
        loaded.config, loaded.model_id, FaissCodec.load_encoder(asset(DEFAULT_MODEL, "codec.npz"))
    )
    rows = list(read_rows(json.loads((ROOT / "data/heldout_questions.json").read_text()), options.limit))
    template = ChatTemplate(loaded.chat_template, loaded.tokenizer)
    bank = MemoryBank(loaded, memory_format)
    plan = Evaluation(bank, lambda q: template.prompt([{"role": "user", "content": q}]).ids, rows)
    bank.write(plan.references(["memory"]))
    results: dict[str, PrecisionQuality] = {}
    first: list[str] = []
    for precision in options.precisions.split(","):
        folder = options.folder / f"bundle-{precision}"
        bundle = export_bundle(loaded, folder, precision)
        given = GivenMemories()
        graph = DecoderGraph.open(bundle.decoder, threads=options.threads)
        model = EdgeModel(bundle, graph, given, RecallPolicy(RecallMode.exact))
        answers, speeds = [], []
        for row, reads in zip(rows, plan.given, strict=True):
            given.memories = bank.decoded(reads)
            done = list(model.generate(row.question, max_tokens=48))[-1]
            assert isinstance(done, Finished)
            answers.append(done.text.strip())
            speeds.append(done.statistics.tokens_per_s)
        first = first or answers
        results[precision] = PrecisionQuality(
            f1=fmean(token_f1(a, r.right_answer) for a, r in zip(answers, rows, strict=True)),
            exact_match=fmean(exact_match(a, r.right_answer) for a, r in zip(answers, rows, strict=True)),
            same_as_first=fmean(a == b for a, b in zip(answers, first, strict=True)),
            tokens_per_s=round(median(speeds), 2),
            decoder_mb=round(sum(f.stat().st_size for f in folder.glob("decoder.onnx*")) / 1e6, 1),
        )
        measured = EdgeQuality(loaded.model_id, today(), len(rows), results)
        measured.save(ROOT / "docs" / "data" / "edge_quality.json")
    names = ("f1", "exact_match", "same_as_first", "tokens_per_s", "decoder_mb")
    table = Table("weights", *names, title=f"{len(rows)} held-out questions, {options.threads} thread(s)")
    for precision, result in results.items():
        table.add_row(precision, *(f"{getattr(result, n):.3f}" for n in names))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
