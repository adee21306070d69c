"""Keep the memories of an earlier model: fit what turns them into a later one's."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from memory_model import terminal
from memory_model.cli.training_data import training_files
from memory_model.data.factbook import FACTBOOK
from memory_model.terminal import console, progress_bars, use_threads


def translate_memories(
    old: Annotated[Path, typer.Argument(help="Model folder, or packaged model, that wrote the memories.")],
    new: Annotated[Path, typer.Argument(help="Model folder that is to read them.")],
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder to write to; default: translations/ in NEW.")
    ] = None,
    data: terminal.DataOption = FACTBOOK,
    corpus: terminal.CorpusOption = None,
    references: Annotated[int, typer.Option(min=20, help="References to write; a tenth is for measuring.")] = 400,
    seed: terminal.SeedOption = 0,
    device: terminal.DeviceOption = "cpu",
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Let the memories of model OLD be read by model NEW, tuned from the same base, without ingesting again.

    Both models write some references; a linear map turns a token's old keys and values into new ones. A service of
    NEW then opens the knowledge bases of OLD: it translates what is read and rewrites the rest in the background.
    """
    from memory3.codec.loading import load_codec
    from memory3.codec.payload import ExplicitMemory, MemoryFormat
    from memory3.codec.translation import FOLDER, Translation
    from memory3.errors import InvalidInput
    from memory_model.data.mixture import Reader, codec_texts
    from memory_model.models.folder import ModelFolder
    from memory_model.models.load import load_model, model_id_of
    from memory_model.nn.writing import writing_device
    from memory_model.train.translation_fit import fit_translation, rotations, written_memories

    use_threads(threads)
    folders = [ModelFolder.open(one) for one in (old, new)]
    if out is None:
        folders[1].require_own("give --out")
    out = out or folders[1].path / FOLDER
    configs = [folder.config() for folder in folders]
    before, after = (
        MemoryFormat(config, model_id_of(folder, config, folder.adapter), load_codec(folder.need_codec()))
        for folder, config in zip(folders, configs, strict=True)
    )
    if before.identity == after.identity:
        raise InvalidInput(f"{old} and {new} write the same memories: there is nothing to translate")
    if before.identity.model_id == after.identity.model_id:
        made = Translation(before, after).save(out)
        console.print(f"only the codec differs: memories are coded again; [bold]{made}[/bold]")
        return
    Translation.require_mappable(before, after)
    written: list[list[ExplicitMemory]] = []
    texts: list[str] = []
    with progress_bars() as progress:
        for folder in folders:  # one after the other: a large base is loaded once at a time
            loaded = load_model(folder, writes_only=True)
            loaded.model.to(writing_device(device))
            texts = texts or codec_texts(Reader.of(loaded), training_files(data, corpus), references, seed)[1]
            task = progress.add_task(f"writing memories of {folder.path.name}", total=len(texts))
            written.append(written_memories(loaded.writer, texts, partial(progress.advance, task)))
            cos, sin = rotations(loaded.model, loaded.config, len(loaded.writer.prefix))
            del loaded
    translation, close = fit_translation(written[0], written[1], before, after, cos, sin)
    fresh = before.encode(written[0][-max(1, len(texts) // 10) :])
    began = time.perf_counter()
    translation(fresh)
    speed = len(fresh) / (time.perf_counter() - began)
    made = translation.save(out)
    table = Table("variance explained", "keys", "values", title="against memories that the new model writes")
    for name, (keys, values) in (
        ("translated", close.translated),
        ("rewritten, through the codec", close.rewritten),
        ("old as they are", close.untranslated),
    ):
        table.add_row(name, f"{keys:.3f}", f"{values:.3f}")
    console.print(table)
    console.print(f"{speed:.0f} references a second; [bold]{made}[/bold]")
