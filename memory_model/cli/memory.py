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
from memory_model.data.tasks import QUESTIONS
from memory_model.terminal import console, count, progress_bars, use_threads, write_json


def rank_heads(
    model: terminal.ModelOption = None,
    adapter: terminal.AdapterOption = None,
    data: terminal.DataOption = FACTBOOK,
    corpus: terminal.CorpusOption = None,
    questions: Annotated[Path, typer.Option(help="For the task articles: a file of question rows.")] = QUESTIONS,
    mixture: Annotated[str, typer.Option(help="Tasks to measure on, as in `adapt --mixture`.")] = "facts:1",
    out: Annotated[Path, typer.Option(dir_okay=False, help="JSON file for all rounds.")] = Path("build/heads.json"),
    batches: Annotated[int, count(help="Batches to measure on.")] = 3,
    select: Annotated[int, count(help="Heads to keep.")] = 10,
    seed: terminal.SeedOption = 77,
    device: terminal.DeviceOption = "cpu",
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Find the heads that read memory, by pruning, and print them for `adapt --heads`.

    Each round measures by one backward pass what the answers depend on, and removes the quarter of the heads that
    matters least. Candidates are the heads of the model folder's budget: make the folder with `new --heads all`. Needs
    no adapter where the base reads memories as it is.
    """
    from memory_model.data.conversations import Sizes
    from memory_model.data.mixture import Reader, TrainingFiles, mixture_of
    from memory_model.models.load import load_model
    from memory_model.nn.fused import product_type
    from memory_model.nn.writing import writing_device
    from memory_model.train.head_ranking import HeadRanking, Round, prune

    use_threads(threads)
    loaded = load_model(model, adapter)
    on = writing_device(device)
    loaded.model.to(on, product_type(on.type))
    sizes = Sizes(turns=1, as_text=0.0, all_as_text=0.0, refused=0.0, refused_articles=0.0, ramp=0)
    files = TrainingFiles(data, corpus, questions, report=console.print)
    source = mixture_of(mixture, Reader.of(loaded), files, seed, sizes)
    with console.status("writing memories"):
        measured_on = [source.next().to(str(on)) for _ in range(batches)]
        ranking = HeadRanking(loaded.model, measured_on, loaded.writer.prefix)
    show = Table("heads", "loss, nats a token", "pruned next")

    def report(measured: Round) -> None:
        console.print(f"{len(measured.heads)} heads: {measured.loss:.3f} nats a token")

    found = prune(ranking, select, report)
    kept = [set(measured.heads) for measured in found.rounds]
    for measured, here, after in zip(found.rounds, kept, [*kept[1:], kept[-1]], strict=True):
        pruned = " ".join(f"{head.layer}.{head.head}" for head in sorted(here - after))
        show.add_row(str(len(here)), f"{measured.loss:.3f}", pruned)
    console.print(show)
    rounds = [{"loss": r.loss, "heads": [str(head) for head in r.heads]} for r in found.rounds]
    write_json(out, {"rounds": rounds})
    print("--heads " + ",".join(map(str, found.selected)))


def fit_codec(
    model: terminal.ModelOption = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="codec.npz to write; default: the model folder's.")
    ] = None,
    adapter: terminal.AdapterOption = None,
    data: terminal.DataOption = FACTBOOK,
    corpus: terminal.CorpusOption = None,
    factory: Annotated[
        str,
        typer.Option(
            help="'tokens:PARTSxBITS', 'tokens:PARTSxBITSxAXES', 'scalar:4', 'scalar:8', or a FAISS factory string."
        ),
    ] = "",
    references: Annotated[int, typer.Option(min=2, help="References to write; a tenth is for measuring.")] = 700,
    questions: Annotated[
        Path | None, typer.Option(exists=True, help="Questions whose texts are half of the references.")
    ] = None,
    points: Annotated[int, count(help="Vectors to fit to.")] = 40000,
    seed: terminal.SeedOption = 0,
    device: terminal.DeviceOption = "cpu",
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Fit the codec to the model's own key-values (paper, appendix B); the same seed gives the same file.

    tokens:… encodes all vectors of a token together, FAISS's 'PQ16x8' each alone. AXES is the most that a code of BITS
    bits describes: fewer make the file and decompression smaller. scalar:4 rounds each number to
    4 bits: more bytes, but a few references suffice (`memory-model new` writes such a codec). Default: tokens with
    8 bytes per vector if every memory head keeps all tokens, otherwise the paper's 14 bytes.
    """
    from memory_model.data.mixture import Reader, codec_texts
    from memory_model.data.rows import open_rows
    from memory_model.models.folder import ModelFolder
    from memory_model.models.load import load_model
    from memory_model.nn.writing import writing_device
    from memory_model.train.codec_fit import default_factory, fit

    use_threads(threads)
    folder = ModelFolder.open(model)
    if out is None:
        folder.require_own("give --out")
    out = out or folder.path / "codec.npz"
    loaded = load_model(folder, adapter)
    loaded.model.to(writing_device(device))
    factory = factory or default_factory(loaded.config)
    asked = open_rows(questions) if questions else []
    source, texts = codec_texts(Reader.of(loaded), training_files(data, corpus), references, seed, asked)
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
