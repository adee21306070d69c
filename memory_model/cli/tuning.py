"""Tune a model to read memories."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memory_model import terminal
from memory_model.cli.training_data import files_in_words, prepared_sequences, training_files
from memory_model.data.factbook import FACTBOOK
from memory_model.data.tasks import QUESTIONS, TASKS
from memory_model.terminal import amount, console, count, share, use_threads

if TYPE_CHECKING:
    from memory_model.models.folder import ModelFolder
    from memory_model.nn.adapter import Adapter


def adapt(
    model: terminal.ModelOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; resumes it. Default: MODEL/adapt.")] = None,
    heads: Annotated[str, typer.Option(help="Memory budget: paper[:TOKENS], all or LAYER.HEAD:TOKENS,….")] = "",
    data: terminal.DataOption = FACTBOOK,
    corpus: terminal.CorpusOption = None,
    mixture: Annotated[str, typer.Option(help=f"Tasks and their weights: {', '.join(TASKS)}.")] = "facts:1",
    start: Annotated[Path | None, typer.Option(help="Adapter to continue from.")] = None,
    steps: Annotated[int, count(help="Number of steps.")] = 600,
    accumulate: Annotated[int, amount(help="Batches per step over all processes; default: one each.")] = 0,
    conversations: Annotated[int, count(help="Conversations per batch.")] = 10,
    references: Annotated[int, amount(help="References per batch; default: as many as conversations.")] = 0,
    refused: Annotated[float, share(help="Share of unanswerable questions in hard and dialogue.")] = 0.12,
    refused_articles: Annotated[float, share(help="The same in articles.")] = 0.12,
    all_as_text: Annotated[float, share(help="Share of their conversations with references as text.")] = 0.2,
    distilled: Annotated[
        float, share(help="Share of answers for which the untuned model, reading the right text, is the teacher.")
    ] = 0.0,
    ramp: Annotated[int, amount(help="Batches until hard, articles and dialogue read five memories.")] = 150,
    questions: Annotated[Path, typer.Option(help="For articles; from `experiments split-questions`.")] = QUESTIONS,
    sequence: Annotated[int, count(help="Tokens per sequence in continual and warmup; paper: 2048.")] = 512,
    rows: Annotated[int, count(help="Sequences per batch in continual and warmup.")] = 2,
    embedder: terminal.EmbedderOption = None,
    learning_rate: Annotated[float, amount(help="Highest learning rate.")] = 1e-3,
    decay: Annotated[float, share(help="Share of steps in which the rate decays.")] = 0.3,
    cosine: Annotated[bool, typer.Option("--cosine", help="Cosine schedule to 0 (paper 6.1).")] = False,
    beta: Annotated[float, amount(help="DPO's beta, for preferences (paper 6.2).")] = 0.01,
    weight_decay: Annotated[float, amount(help="Of AdamW; 0.1 in the paper's continual training.")] = 0.0,
    rank: Annotated[int | None, count(help="Rank of the adapter; default: that of --start, or 32.")] = None,
    first_layer: Annotated[int, typer.Option(help="First tuned layer; default: after a fifth of them.")] = -1,
    codec_noise: Annotated[float, amount(help="Noise on memories, as a share of variance.")] = 0.03,
    through: Annotated[Path | None, typer.Option("--codec", help="Codec to use instead of noise.")] = None,
    checkpoint_layers: Annotated[bool, typer.Option("--checkpoint-layers", help="Save memory, take longer.")] = False,
    pass_tokens: Annotated[int, count(help="Most tokens per pass; fewer need less memory.")] = 8192,
    checkpoint_every: Annotated[int, count(help="Steps between checkpoints.")] = 50,
    minutes: Annotated[float, amount(help="Save and stop after this time; 0: no limit.")] = 0.0,
    seed: terminal.SeedOption = 0,
    device: terminal.DeviceOption = "cpu",
    threads: terminal.ThreadsOption = 0,
) -> None:
    """Tune a plain LLM to write and read memories with the given heads, as a low-rank adapter.

    Without --out, the finished adapter is installed in the model folder. Without --heads, the budget stays the same.

    Tasks: facts (questions about facts), hard (facts whose references all have the requested field, of different
    subjects), articles (people's questions about paragraphs, next to others of the same article), dialogue (questions
    about earlier conversations), questions (people's questions about passages), continual (the paper's training on text
    with a memory for each chunk), warmup (the same text without memory), keeping (plain text and small talk, to
    preserve the model), preferences (DPO with memories). See docs/training.md. On several GPUs:
    torchrun --nproc-per-node N -m memory_model.cli adapt …
    """
    from memory3.codec.loading import load_codec
    from memory3.config import parse_budget
    from memory3.errors import InvalidInput
    from memory_model.data.batches import parse_weights
    from memory_model.data.conversations import Sizes
    from memory_model.data.mixture import Reader, mixture_of
    from memory_model.eval.closed_book import closed_book_mistakes
    from memory_model.models.folder import ModelFolder
    from memory_model.models.load import load_base, open_adapter
    from memory_model.nn.writing import writing_device
    from memory_model.train.distributed import first_process_first, process_group, processes
    from memory_model.train.distributed import rank as own_rank
    from memory_model.train.progress import follow
    from memory_model.train.tuner import Tuner, TuningPlan

    folder = ModelFolder.open(model)
    if out is None:
        folder.require_own("give --out, or --model (see `memory-model new`)")
    if first_layer >= (layers := folder.config().layers):
        raise InvalidInput(f"--first-layer {first_layer} leaves nothing to tune: the model has {layers} layers")
    parse_weights(mixture, TASKS)  # raises before anything large is loaded
    run = out or folder.path / "adapt"
    use_threads(threads)
    writing_device(device)  # raises where there is none
    begun = open_adapter(folder, start) if start else None
    if begun and rank not in (None, begun.rank):
        raise InvalidInput(f"{start} has rank {begun.rank}: leave --rank {rank} out")
    rank = begun.rank if begun else rank or TuningPlan.rank
    codec = load_codec(through) if through else None
    with process_group(device):
        budget = begun.memory if begun else folder.memory
        budget = parse_budget(heads, folder.config().with_memory(budget)) if heads else budget
        loaded = load_base(folder, budget, codec)
        form = sha256(loaded.chat_template.encode()).hexdigest()[:8]
        sizes = Sizes(
            written=references or conversations,
            conversations=conversations,
            refused=refused,
            refused_articles=refused_articles,
            all_as_text=all_as_text,
            distilled=distilled,
            ramp=ramp,
        )
        plan = TuningPlan(
            steps=steps,
            learning_rate=learning_rate,
            decay=decay,
            rank=rank,
            first_layer=layers // 5 if first_layer < 0 else first_layer,
            codec_noise=codec_noise,
            weight_decay=weight_decay,
            seed=seed,
            checkpoint_every=checkpoint_every,
            accumulate=accumulate or processes(),
            codec_id=codec.codec_id if codec else "",
            cosine=cosine,
            warmup=steps // 10 if cosine else TuningPlan.warmup,
            beta=beta,
            mixture=f"{mixture} of {sizes} from {files_in_words(corpus, data, questions)} in the form {form}",
            rows=rows,
            sequence=sequence,
        )
        with first_process_first():
            memory, tokenizer, prepare = loaded.config.memory, loaded.tokenizer, None
            if corpus:
                prepare = partial(prepared_sequences, memory, tokenizer, corpus, sequence, embedder)
            files = training_files(
                data,
                corpus,
                questions=questions,
                sequences=prepare,
                closed_book=partial(closed_book_mistakes, folder, start, run / "closed_book.json"),
            )
            source = mixture_of(mixture, Reader.of(loaded), files, seed, sizes, rows=rows)
        tuner = Tuner(
            loaded.model,
            loaded.writer.prefix,
            source,
            plan,
            run,
            folder.base_id,
            start=begun,
            device=device,
            checkpoint=checkpoint_layers,
            most_tokens=pass_tokens,
            codec=codec,
        )
        follow(tuner, minutes)
    if own_rank():
        return
    console.print(f"adapter in {run / 'adapter.safetensors'}, metrics in {run / 'metrics.jsonl'}")
    if not tuner.finished:
        console.print(f"stopped at step {tuner.step} of {steps}: the same command continues")
    elif out is None:
        install(tuner.adapter(), folder)


def install(adapter: Adapter, folder: ModelFolder) -> None:
    """Make a finished adapter, and the budget that it was tuned for, those of a model folder."""
    adapter.save(folder.path / "adapter.safetensors")
    if adapter.memory != folder.memory:
        replace(folder, memory=adapter.memory).save()
    console.print(f"[bold]{folder.path}[/bold] reads memories with {len(adapter.memory.heads)} heads now")
    if folder.codec:
        console.print(f"its codec was fitted before: memory-model fit-codec --model {folder.path}")
