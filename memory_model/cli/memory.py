"""What a memory holds: rank the heads that read, and fit the codec."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.table import Table

from memory_model import terminal
from memory_model.cli.training_data import training_files
from memory_model.data.factbook import FACTBOOK
from memory_model.terminal import console, count, progress_bar, progress_bars, use_threads, write_json

_SHOWN = 16


def rank_heads(
    model: terminal.ModelOption = None,
    adapter: terminal.AdapterOption = None,
    data: terminal.DataOption = FACTBOOK,
    out: Annotated[Path, typer.Option(dir_okay=False, help="JSON file for all losses.")] = Path("build/heads.json"),
    batches: Annotated[int, count(help="Batches to measure on.")] = 3,
    select: Annotated[int, count(help="Heads to select for the budget, one by one.")] = 6,
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Measure which heads read memory, select the best ones and print them for `adapt --heads`.

    The loss is first measured without each head's memory. Then heads are added one by one, each time the one that
    helps most. Needs an adapter tuned with `memory-model adapt --heads all`, so that every head is a candidate.
    """
    from memory_model.data.conversations import Sizes
    from memory_model.data.mixture import Reader, facts_of
    from memory_model.models.load import load_model
    from memory_model.nn.fused import product_type
    from memory_model.train.head_ranking import HeadRuler, rank

    use_threads(threads)
    loaded = load_model(model, adapter)
    loaded.model.to(product_type("cpu"))
    longest = loaded.config.memory.reference_tokens
    sizes = Sizes(turns=1, conversations=14, as_text=0.0, longest=longest)
    maker = facts_of(Reader.of(loaded), training_files(data, None), 77, sizes)
    ruler = HeadRuler(loaded.model, [maker.next() for _ in range(batches)], loaded.writer.prefix)
    with progress_bar("heads", len(ruler.heads) + select) as advance:
        found = rank(ruler, select, advance)
    write_json(out, vars(found))
    show = Table("layer.head", "loss without it", title=f"with all heads: {found.loss_whole:.3f}")
    for name, loss in list(found.losses.items())[:_SHOWN]:
        show.add_row(name, f"{loss:.3f}")
    console.print(show)
    for name, loss in found.chosen.items():
        console.print(f"with {name} too: {loss:.3f}")
    tokens = {f"{h.layer}.{h.head}": h.tokens for h in ruler.heads}
    print("--heads " + ",".join(f"{name}:{tokens[name]}" for name in found.chosen))


def fit_codec(
    model: terminal.ModelOption = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="codec.npz to write; default: the model folder's.")
    ] = None,
    adapter: terminal.AdapterOption = None,
    data: terminal.DataOption = FACTBOOK,
    corpus: terminal.CorpusOption = None,
    factory: Annotated[str, typer.Option(help="'tokens:PARTSxBITS', or a FAISS factory string.")] = "",
    references: Annotated[int, typer.Option(min=2, help="References to write; a tenth is for measuring.")] = 700,
    points: Annotated[int, count(help="Vectors to fit to.")] = 40000,
    seed: terminal.SeedOption = 0,
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Fit the codec to the model's own key-values (paper, appendix B); the same seed gives the same file.

    tokens:… encodes all vectors of a token together, FAISS's 'PQ16x8' each alone. Default: tokens with 8 bytes per
    vector if every memory head keeps all tokens, otherwise the paper's 14 bytes.
    """
    from memory3.errors import InvalidInput
    from memory_model.data.mixture import Reader, codec_texts
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
    source, texts = codec_texts(Reader.of(loaded), training_files(data, corpus), references, seed)
    with progress_bars() as progress:
        codec, lost = fit(loaded, source, texts, factory, seed, progress, points=points)
    out.parent.mkdir(parents=True, exist_ok=True)
    codec.save(out)
    memory = loaded.config.memory
    console.print(
        f"{codec.code_bytes / codec.together:g} bytes a vector; of the variance of keys and values "
        f"{fmean(lost):.3%} is lost, {max(lost):.3%} of the worst head's"
    )
    size = memory.vectors // codec.together * codec.code_bytes
    console.print(f"{size:,} bytes of codes in a full memory; codec in [bold]{out}[/bold]")
