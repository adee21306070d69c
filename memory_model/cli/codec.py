"""Fit the codec and draw its quality against its rate."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from memory_model.cli.options import (
    FACTBOOK,
    HELD_OUT_QUESTIONS,
    AdapterOption,
    CorpusOption,
    DataOption,
    LimitOption,
    QuestionsOption,
    SeedOption,
    StopAfterOption,
    ThreadsOption,
    console,
    progress_bars,
    read_json,
    use_threads,
)
from memory_model.cli.training_data import chat_pieces, fact_batches, held_out_titles, training_passages

if TYPE_CHECKING:
    from rich.progress import Progress

    from memory_model.eval.results import CodecCurve, CodecSettings


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
    ] = "tokens:144x8",
    references: Annotated[int, typer.Option(help="References to write; a tenth of them measures.")] = 700,
    points: Annotated[int, typer.Option(help="Vectors of each block that are kept to fit to.")] = 40000,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Train the codec on the model's own key-values (paper, appendix B); the same seed gives the same file."""
    from memory_model.models.load import load_model
    from memory_model.train.codec_fit import fit

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
    from memory_model.data.conversations import ProseConversations
    from memory_model.data.mixture import Mixture
    from memory_model.references import split

    rng = random.Random(seed)
    facts = fact_batches(loaded, data, seed, distil=False)
    texts = [r.text for r in facts.references]
    if corpus is None:
        return facts, rng.sample(texts, min(references, len(texts)))
    chosen = rng.sample(texts, min(references // 3, len(texts)))  # prose is less alike and loses more
    passages = training_passages(corpus, without=held_out_titles(data))
    limit = loaded.config.memory.reference_tokens
    while len(chosen) < references:
        passage = rng.choice(passages)
        pieces = split(passage.text, passage.title, loaded.tokenizer.count, limit)
        if pieces:
            chosen.append(rng.choice(pieces))
    rng.shuffle(chosen)
    prose = ProseConversations(passages, chat_pieces(loaded), seed + 1, distil=False)
    return Mixture({"facts": (1.0, facts), "prose": (2.0, prose)}, seed), chosen


def codec_curve(
    out: Annotated[
        Path, typer.Option(help="Figures to write; variants that are in it are not measured again.")
    ] = Path("docs/data/codec_curve.json"),
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    corpus: CorpusOption = None,
    variants: Annotated[
        str, typer.Option(help="FAMILY:BYTES a vector, …; 'default' is the whole curve.")
    ] = "default",
    answers: Annotated[str, typer.Option(help="Variants whose answers are scored too (minutes each).")] = "",
    questions: QuestionsOption = HELD_OUT_QUESTIONS,
    limit: LimitOption = 60,
    shipped: Annotated[str, typer.Option(help="Variant to mark in the figure.")] = "tokens:8",
    references: Annotated[int, typer.Option(help="References to fit on.")] = 600,
    points: Annotated[int, typer.Option(help="Tokens of them that are kept to fit to.")] = 30000,
    batches: Annotated[int, typer.Option(help="Held-out batches of 10 conversations to measure on.")] = 6,
    stop_after: StopAfterOption = 0,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Measure what codecs lose at their rates: vectors, attention output, predictions, answers.

    Interrupted, it goes on where it was; with another model or other sizes give another --out.
    """
    from experiments import codec_curve as curve
    from memory_model.errors import InvalidInput
    from memory_model.eval.results import CodecCurve, CodecPoint, CodecSettings, today
    from memory_model.eval.rows import read_rows
    from memory_model.models.load import load_model

    use_threads(threads)
    wanted = [
        curve.Variant.parse(n)
        for n in (curve.DEFAULT_VARIANTS if variants == "default" else variants).split(",")
    ]
    asking = [curve.Variant.parse(n) for n in answers.split(",") if n]
    for variant in asking:
        if not variant.has_format:
            raise InvalidInput(f"{variant.name} has no format to decode from: its answers cannot be scored")
    wanted += [v for v in asking if v not in wanted]
    loaded = load_model(adapter=adapter)
    memory = loaded.config.memory
    curve.require_all_tokens(memory)
    settings = CodecSettings(loaded.model_id, references, points, batches, seed, corpus is not None)
    found = CodecCurve.load(out) if out.is_file() else CodecCurve(settings, today(), shipped)
    if found.settings != settings or (asking and found.exact and found.rows != limit):
        raise InvalidInput(f"{out} was measured with other settings or another model: give another --out")
    found = replace(found, shipped=shipped)
    known = {point.name: point for point in found.points}
    todo = [v for v in wanted if v.name not in known or (v in asking and known[v.name].scores is None)]
    todo = todo[: stop_after or None]
    with progress_bars() as progress:
        if todo:
            sample = _codec_sample(loaded, data, corpus, settings, progress)
        asked: _Answers | None = None
        task = progress.add_task("variants", total=len(todo))
        for variant in todo:
            progress.update(task, description=variant.name)
            coding, codec = curve.fit_variant(variant, sample.vectors, sample.metrics, seed)
            scores = None
            if variant in asking and codec is not None:
                if asked is None:
                    asked = _Answers(loaded, list(read_rows(read_json(questions), limit)), progress)
                    found = replace(found, exact=asked.exact, rows=len(asked.run.rows))
                scores = asked.through(codec)
            point = CodecPoint(
                variant.name, variant.family, curve.FAMILIES[variant.family], variant.vector_bytes,
                variant.vector_bytes * memory.vectors, **sample.ruler.measure(coding), scores=scores,
            )  # fmt: skip
            found = found.with_point(point)
            found.save(out)
            progress.advance(task)
    _show_curve(found)
    console.print(f"{len(found.points)} of {len(wanted)} variants in [bold]{out}[/bold]")


@dataclass(frozen=True)
class _Sample:
    """What every variant is fitted to and measured by: vectors of each group, metrics, a ruler."""

    vectors: list[Any]
    metrics: list[Any]
    ruler: Any


def _codec_sample(
    loaded: Any, data: Path, corpus: Path | None, settings: CodecSettings, progress: Progress
) -> _Sample:  # fmt: skip
    from experiments.codec_curve import Ruler
    from memory_model.train.codec_fit import METRIC_BATCHES, reading_metrics, sample_blocks

    memory, width = loaded.config.memory, loaded.config.head_dim
    groups = 2 * len(memory.heads)
    source, texts = reading(loaded, data, corpus, settings.references, settings.seed)
    task = progress.add_task("writing memories", total=len(texts))
    [sample] = sample_blocks(
        loaded.writer, memory, texts, groups, settings.points, settings.seed,
        lambda n: progress.advance(task, n),
    )  # fmt: skip
    vectors = [sample[:, g * width :][:, :width] for g in range(groups)]
    task = progress.add_task("measuring what errors cost", total=METRIC_BATCHES)
    drawn = (source.next() for _ in range(METRIC_BATCHES))
    metrics = reading_metrics(loaded.model, drawn, loaded.writer.prefix, lambda: progress.advance(task))
    task = progress.add_task("held-out batches", total=settings.batches)
    held = held_out_batches(loaded, data, corpus, settings.seed)
    ruler = Ruler(
        loaded.model, loaded.writer.prefix, (held.next() for _ in range(settings.batches)),
        lambda: progress.advance(task),
    )  # fmt: skip
    return _Sample(vectors, metrics, ruler)


def _show_curve(found: CodecCurve) -> None:
    show = Table(
        "codec", "bytes", "keys", "values", "output", "divergence", "flips", "F1", title="share lost"
    )
    for p in sorted(found.points, key=lambda point: point.divergence):
        show.add_row(
            p.name, f"{p.memory_bytes:,}", *(f"{share:.3%}" for share in (p.keys, p.values, p.output)),
            f"{p.divergence:.5f}", f"{p.flips:.2%}",
            f"{p.scores['f1']:.3f} ± {p.scores.get('f1_error', 0):.3f}" if p.scores else "",
        )  # fmt: skip
    console.print(show)
    if found.exact:
        console.print(f"without a codec F1 is {found.exact['f1']:.3f} ({found.rows} questions)")


def held_out_batches(loaded: Any, data: Path, corpus: Path | None, seed: int) -> Any:
    """Conversations about what nothing was fitted or tuned to."""
    from memory_model.data import factbook
    from memory_model.data.conversations import (
        FactConversations,
        ProseConversations,
        Sizes,
        references_of,
    )
    from memory_model.data.corpus.passages import held_out, read_passages
    from memory_model.data.mixture import Mixture

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
        from memory_model.codec.codec import ExactCodec
        from memory_model.codec.payload import MemoryFormat
        from memory_model.eval.conditions import Evaluation
        from memory_model.eval.memories import MemoryBank

        exact = MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim))
        self.loaded, self.bank, self.progress = loaded, MemoryBank(loaded, exact), progress
        self.run = Evaluation(self.bank, chat_pieces(loaded).prompt, rows)
        self.exact = self._scores("memory_exact")

    def through(self, codec: Any) -> dict[str, float]:
        """Scores of the same questions with the memories as a codec restores them."""
        from memory_model.codec.payload import MemoryFormat

        self.run.bank = self.bank.recoded(MemoryFormat(self.loaded.config, self.loaded.model_id, codec))
        return self._scores("memory")

    def _scores(self, condition: str) -> dict[str, float]:
        task = self.progress.add_task("answers", total=len(self.run.rows))
        scores = self.run.run([condition], lambda n: self.progress.advance(task, n))[condition]
        self.progress.remove_task(task)
        return {k: v for k, v in scores.point().items() if k in ("f1", "f1_error", "exact_match", "nll")}


def register(app: typer.Typer) -> None:
    """Add this file's commands to the program."""
    app.command("fit-codec")(fit_codec)
    app.command("codec-curve")(codec_curve)
