"""Fit the codec."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from memory_model.cli.options import (
    FACTBOOK,
    AdapterOption,
    CorpusOption,
    DataOption,
    ModelOption,
    SeedOption,
    ThreadsOption,
    console,
    progress_bars,
    use_threads,
)
from memory_model.cli.training_data import chat_pieces, fact_batches, held_out_titles, training_passages
from memory_model.errors import InvalidInput


def fit_codec(
    model: ModelOption = None,
    out: Annotated[Path | None, typer.Option(help="codec.npz to write; default: the model folder's.")] = None,
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    corpus: CorpusOption = None,
    factory: Annotated[
        str,
        typer.Option(
            help="'tokens:PARTSxBITS' codes all vectors of a token together, 'heads:…' a head's key and value, "
            "'groups:…' each vector alone; or a FAISS factory string for one table. Default: tokens, 8 bytes a vector, "
            "where every memory head keeps all tokens, else the paper's 14 bytes."
        ),
    ] = "",
    references: Annotated[int, typer.Option(help="References to write; a tenth of them measures.")] = 700,
    points: Annotated[int, typer.Option(help="Vectors of each block that are kept to fit to.")] = 40000,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Train the codec on the model's own key-values (paper, appendix B); the same seed gives the same file."""
    from memory_model.models.folder import ModelFolder
    from memory_model.models.load import load_model
    from memory_model.train.codec_fit import default_factory, fit

    use_threads(threads)
    folder = ModelFolder.open(model)
    if out is None and folder.packaged:
        raise InvalidInput("the packaged model folder is not written to: give --out")
    out = out or folder.path / "codec.npz"
    loaded = load_model(folder, adapter)
    factory = factory or default_factory(loaded.config)
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
    prose = ProseConversations(passages, chat_pieces(loaded), seed + 1, distil=False, longest=limit)
    return Mixture({"facts": (1.0, facts), "prose": (2.0, prose)}, seed), chosen


def register(app: typer.Typer) -> None:
    """Add this file's command to the program."""
    app.command("fit-codec")(fit_codec)
