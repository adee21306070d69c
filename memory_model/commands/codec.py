"""Fit the codec and draw its quality against its rate."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from memory_model.commands.options import (
    FACTBOOK,
    AdapterOption,
    DataOption,
    ThreadsOption,
    chat_pieces,
    console,
    fact_batches,
    progress_bars,
    read_json,
    training_passages,
    use_threads,
)

CorpusOption = Annotated[
    Path | None,
    typer.Option("--corpus", help="Folder of prepared prose: half of what is written is drawn from it."),
]


def fit_codec(
    out: Annotated[Path, typer.Option(help="codec.npz to write.")],
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    corpus: CorpusOption = None,
    factory: Annotated[
        str,
        typer.Option(
            help="'tokens:PARTSxBITS' codes all vectors of a token together, 'heads:…' a head's key and value, "
            "'groups:…' each vector alone; or a FAISS factory string for one table."
        ),
    ] = "tokens:156x8",
    references: Annotated[int, typer.Option(help="References to write; a tenth of them measures.")] = 700,
    points: Annotated[int, typer.Option(help="Vectors of each block that are kept to fit to.")] = 40000,
    seed: int = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Train the codec on the model's own key-values (paper, appendix B); the same seed gives the same file."""
    from memory_model.nn.load import load_model
    from memory_model.training.codec_fit import fit

    use_threads(threads)
    loaded = load_model(adapter=adapter)
    source, texts = reading(loaded, data, corpus, references, seed)
    with progress_bars() as progress:
        codec, lost = fit(loaded, source, texts, factory, seed, progress, points=points)
    out.parent.mkdir(parents=True, exist_ok=True)
    codec.save(out)
    memory = loaded.config.memory
    show = Table(
        "head", "side", "variance lost", title=f"{codec.code_bytes / codec.together:g} bytes a vector"
    )
    for number, share in enumerate(lost):
        head = memory.heads[number // 2]
        show.add_row(f"{head.layer}.{head.head}", ("keys", "values")[number % 2], f"{share:.3%}")
    console.print(show)
    size = memory.vectors // codec.together * codec.code_bytes
    console.print(f"{size:,} bytes of codes in a full memory; codec in [bold]{out}[/bold]")


def reading(
    loaded: Any, data: Path, corpus: Path | None, references: int, seed: int
) -> tuple[Any, list[str]]:
    """What reads memories (for the metric), and the texts of as many references, drawn uniformly."""
    from memory_model.references import split
    from memory_model.training.conversations import ProseConversations
    from memory_model.training.mixture import Mixture

    rng = random.Random(seed)
    facts = fact_batches(loaded, data, seed, distil=False)
    texts = [r.text for r in facts.references]
    if corpus is None:
        return facts, rng.sample(texts, min(references, len(texts)))
    chosen = rng.sample(texts, min(references // 2, len(texts)))
    passages = training_passages(corpus)
    limit = loaded.config.memory.reference_tokens
    while len(chosen) < references:
        passage = rng.choice(passages)
        pieces = split(passage.text, passage.title, loaded.tokenizer.count, limit)
        if pieces:
            chosen.append(rng.choice(pieces))
    rng.shuffle(chosen)
    prose = ProseConversations(passages, chat_pieces(loaded), seed + 1, distil=False)
    return Mixture({"facts": (1.0, facts), "prose": (1.0, prose)}, seed), chosen


def codec_curve(
    out: Annotated[
        Path, typer.Option(help="Figures to write; variants that are in it are not measured again.")
    ] = Path("docs/data/codec_curve.json"),
    plot: Annotated[Path, typer.Option(help="Figure to draw.")] = Path("docs/images/codec-curve.svg"),
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    corpus: CorpusOption = None,
    variants: Annotated[
        str, typer.Option(help="FAMILY:BYTES a vector, …; 'default' is the whole curve.")
    ] = "default",
    answers: Annotated[str, typer.Option(help="Variants whose answers are scored too (minutes each).")] = "",
    questions: Annotated[Path, typer.Option(help="Evaluation file for that.")] = Path(
        "data/heldout_questions.json"
    ),
    limit: Annotated[int, typer.Option(help="Questions of it.")] = 60,
    shipped: Annotated[str, typer.Option(help="Variant to mark in the figure.")] = "tokens:13",
    references: Annotated[int, typer.Option(help="References to fit on.")] = 600,
    points: Annotated[int, typer.Option(help="Tokens of them that are kept to fit to.")] = 30000,
    batches: Annotated[int, typer.Option(help="Held-out batches of 10 conversations to measure on.")] = 6,
    seed: int = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Measure what codecs lose at their rates: vectors, attention output, predictions, answers.

    Interrupted, it goes on where it was; with another model or other sizes give another --out.
    """
    from memory_model.errors import InvalidInput
    from memory_model.evaluation.rows import read_rows
    from memory_model.evaluation.targets import AIM_BYTES
    from memory_model.nn.load import load_model
    from memory_model.training import codec_curve as curve
    from memory_model.training.codec_fit import METRIC_BATCHES, reading_metrics, sample_blocks

    use_threads(threads)
    wanted = [
        curve.Variant.parse(n)
        for n in (curve.DEFAULT_VARIANTS if variants == "default" else variants).split(",")
    ]
    asking = [curve.Variant.parse(n) for n in answers.split(",") if n]
    for variant in asking:
        if not variant.has_format:
            raise InvalidInput(f"{variant.name} has no format to decode from: its answers cannot be scored")
    scored = {v.name for v in asking}
    wanted += [v for v in asking if v not in wanted]
    loaded = load_model(adapter=adapter)
    memory = loaded.config.memory
    curve.require_all_tokens(memory)
    settings = {
        "model_id": loaded.model_id, "references": references, "points": points, "batches": batches, "seed": seed,
        "prose": corpus is not None,
    }  # fmt: skip
    result: dict[str, Any] = {"settings": settings, "aim_bytes": AIM_BYTES, "exact": {}, "rows": []}
    if out.is_file():
        result = read_json(out)
        if result.get("settings") != settings:
            raise InvalidInput(f"{out} was measured with other settings or another model: give another --out")
    rows = {row["name"]: row for row in result["rows"]}
    todo = [v for v in wanted if v.name not in rows or (v.name in scored and "f1" not in rows[v.name])]

    def keep() -> None:
        result["rows"] = sorted(rows.values(), key=lambda r: (r["family"], r["vector_bytes"]))
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(out.name + ".partial")
        partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        partial.replace(out)

    with progress_bars() as progress:
        if todo:
            source, texts = reading(loaded, data, corpus, references, seed)
            task = progress.add_task("writing memories", total=len(texts))
            groups = 2 * len(memory.heads)
            [sample] = sample_blocks(
                loaded.writer, memory, texts, groups, points, seed, lambda n: progress.advance(task, n)
            )
            vectors = [
                sample[:, g * loaded.config.head_dim :][:, : loaded.config.head_dim] for g in range(groups)
            ]
            task = progress.add_task("measuring what errors cost", total=METRIC_BATCHES)
            drawn = (source.next() for _ in range(METRIC_BATCHES))
            metrics = reading_metrics(
                loaded.model, drawn, loaded.writer.prefix, lambda: progress.advance(task)
            )
            task = progress.add_task("held-out batches", total=batches)
            held = held_out_batches(loaded, data, corpus, seed)
            ruler = curve.Ruler(
                loaded.model,
                loaded.writer.prefix,
                (held.next() for _ in range(batches)),
                lambda: progress.advance(task),
            )
        asked: _Answers | None = None
        task = progress.add_task("variants", total=len(todo))
        for variant in todo:
            progress.update(task, description=variant.name)
            coding, codec = curve.fit_variant(variant, vectors, metrics, seed)
            size = variant.vector_bytes * memory.vectors
            row = {"name": variant.name, "family": variant.family, "vector_bytes": variant.vector_bytes}
            rows[variant.name] = {
                **rows.get(variant.name, {}),
                **row,
                "memory_bytes": size,
                **ruler.measure(coding),
            }
            if variant.name in scored and codec is not None:
                if asked is None:
                    asked = _Answers(loaded, list(read_rows(read_json(questions), limit)), progress)
                    result["exact"] = asked.exact
                rows[variant.name] |= asked.through(codec)
            keep()
            progress.advance(task)
    curve_rows = {n: rows[n] for n in (v.name for v in wanted)}
    show = Table(
        "codec", "bytes", "keys", "values", "output", "divergence", "flips", "F1", title="share lost"
    )
    for name, row in sorted(curve_rows.items(), key=lambda item: item[1]["divergence"]):
        show.add_row(
            name, f"{row['memory_bytes']:,}", *(f"{row[k]:.3%}" for k in ("keys", "values", "output")),
            f"{row['divergence']:.5f}", f"{row['flips']:.2%}", f"{row['f1']:.3f}" if "f1" in row else "",
        )  # fmt: skip
    console.print(show)
    if result["exact"]:
        console.print(f"without a codec F1 is {result['exact']['f1']:.3f} ({limit} questions)")
    from memory_model.training.codec_plot import plot_curve

    plot_curve(result, plot, shipped)
    console.print(f"figures in [bold]{out}[/bold], drawn in [bold]{plot}[/bold]")


def held_out_batches(loaded: Any, data: Path, corpus: Path | None, seed: int) -> Any:
    """Conversations about what nothing was fitted or tuned to."""
    from memory_model.training import factbook
    from memory_model.training.conversations import (
        FactConversations,
        ProseConversations,
        Sizes,
        references_of,
    )
    from memory_model.training.corpus.passages import held_out, read_passages
    from memory_model.training.mixture import Mixture

    sizes, pieces = Sizes(unanswerable=0.0, as_text=0.0, taught=0.0), chat_pieces(loaded)
    documents = [d for d in factbook.read_jsonl(data) if factbook.held_out(d["key"])]
    facts = FactConversations(
        references_of(documents, loaded.tokenizer), pieces, seed + 90, sizes, distil=False
    )
    if corpus is None:
        return facts
    passages = [
        p for path in sorted(corpus.glob("*.jsonl")) for p in read_passages(path) if held_out(p.source, p.key)
    ]
    prose = ProseConversations(passages, pieces, seed + 91, sizes, distil=False)
    return Mixture({"facts": (1.0, facts), "prose": (1.0, prose)}, seed + 92)


class _Answers:
    """Scores of answers from memories that are written once and read through one codec after the other."""

    def __init__(self, loaded: Any, rows: list[Any], progress: Any) -> None:
        from memory_model.codec import ExactCodec
        from memory_model.evaluation.conditions import Evaluation
        from memory_model.evaluation.memories import MemoryBank
        from memory_model.memory import MemoryFormat

        exact = MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim))
        self.loaded, self.bank, self.progress = loaded, MemoryBank(loaded, exact), progress
        self.run = Evaluation(self.bank, chat_pieces(loaded).prompt, rows)
        self.exact = self._scores("memory_exact")

    def through(self, codec: Any) -> dict[str, float]:
        """Scores of the same questions with the memories as a codec restores them."""
        from memory_model.memory import MemoryFormat

        self.run.bank = self.bank.recoded(MemoryFormat(self.loaded.config, self.loaded.model_id, codec))
        return self._scores("memory")

    def _scores(self, condition: str) -> dict[str, float]:
        task = self.progress.add_task("answers", total=len(self.run.rows))
        scores = self.run.run([condition], lambda n: self.progress.advance(task, n))[condition]
        self.progress.remove_task(task)
        return {k: v for k, v in scores.summary().items() if k in ("f1", "exact_match", "nll")}


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command("fit-codec")(fit_codec)
    app.command("codec-curve")(codec_curve)
