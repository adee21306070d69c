"""The paper's figure of two stages in small: training loss with memory, without, and switched between (section 3.6)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import torch
import typer

from experiments.corpus.vocabulary import train_bpe
from experiments.training.random_base import write_random_folder
from memory3.config import ModelConfig, parse_budget
from memory3.errors import InvalidInput
from memory3.text.tokenizer import SpecialTokens, Tokenizer
from memory_model.data.batches import Batch
from memory_model.data.passages import PassageFiles, corpus_files
from memory_model.data.retrieved import RetrievalPlan, prepare
from memory_model.data.running_text import ContinualBatches
from memory_model.eval.scores import Mean, Paired
from memory_model.export.embedder_cache import open_embedder
from memory_model.models.folder import ModelFolder, open_checkpoint
from memory_model.nn.writing import write_memories
from memory_model.terminal import DeviceOption, console, write_json
from memory_model.train.losses import read_loss
from memory_model.train.pretrainer import Pretrainer, PretrainingPlan, pretrainer
from memory_model.train.progress import follow

HELD_OUT = 64
"""Sequences at the end that nothing is trained on."""
NAMES = {False: "without", True: "with"}


class WordVectors:
    """An embedder without a model: a random direction for each word, weighted by tf-idf. Finds what shares words.

    Embedding the text with MiniLM takes longer than this small pretraining.
    """

    dim = 384

    def __init__(self, texts: Sequence[str]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._words = TfidfVectorizer(sublinear_tf=True, stop_words="english").fit(texts)
        words = sorted(self._words.vocabulary_)
        self._directions = np.random.default_rng(0).standard_normal((len(words), self.dim), np.float32)
        self.vectors_id = f"words-{zlib.crc32(' '.join(words).encode())}"

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32 [texts, dim]."""
        from sklearn.preprocessing import normalize

        return normalize(self._words.transform(texts) @ self._directions).astype(np.float32)


def two_stages(
    corpus: Annotated[Path, typer.Option(help="Folder of passages (docs/data.md).")],
    out: Annotated[Path, typer.Option(help="Folder of the runs; resumes them.")] = Path("build/two-stages"),
    layers: Annotated[int, typer.Option(help="Number of layers.")] = 8,
    query_heads: Annotated[int, typer.Option(help="Query heads; half as many KV heads.")] = 4,
    head_dim: Annotated[int, typer.Option(help="Head dimension.")] = 32,
    vocabulary: Annotated[int, typer.Option(help="Size of the vocabulary, trained on the corpus.")] = 4096,
    sequence: Annotated[int, typer.Option(help="Tokens per sequence; paper: 2048.")] = 512,
    rows: Annotated[int, typer.Option(help="Sequences per step.")] = 4,
    warmup: Annotated[int, typer.Option(help="Steps of the warmup stage.")] = 600,
    continual: Annotated[int, typer.Option(help="Steps of the continual stage.")] = 300,
    learning_rate: Annotated[float, typer.Option(help="Highest rate of the warmup stage; then half of it.")] = 4e-3,
    embedder: Annotated[
        Path | None, typer.Option(help="Folder of an exported embedder; default: retrieve by words.")
    ] = None,
    device: DeviceOption = "cpu",
) -> None:
    """Pretrain the same random weights with memory, without, and with memory after a warmup; plot the losses.

    All runs of a stage see the same sequences in the same order, none twice.
    """

    def texts() -> list[str]:
        return [f"{p.title}\n{p.text}" for p in PassageFiles(corpus_files(corpus))]

    base = out / "random"
    if not (base / "tokenizer.json").is_file():
        backend = train_bpe(texts(), vocabulary)
        config = ModelConfig(
            "two-stages",
            layers,
            query_heads,
            max(1, query_heads // 2),
            head_dim,
            query_heads * head_dim,
            vocabulary,
            10000.0,
            1e-5,
            False,
            positions=2048,
        )
        like: Any = SimpleNamespace(
            tokenizer_json=backend.to_str(),
            special_tokens=SpecialTokens.usual(backend),
            chat_template=ModelFolder.open().checkpoint.chat_template,
        )
        write_random_folder(config, base, like)

    checkpoint = open_checkpoint(base)
    shape = checkpoint.config(base.name)
    config = shape.with_memory(parse_budget("paper", shape))
    tokenizer = Tokenizer.from_json(checkpoint.tokenizer_json, checkpoint.special_tokens)
    searching: Any = open_embedder(embedder) if embedder else WordVectors(texts())
    data = prepare(corpus_files(corpus), tokenizer, searching, out / "data", RetrievalPlan(tokens=sequence))
    needed, there = rows * (warmup + continual), len(data.sequences)
    if there < needed + HELD_OUT:
        raise InvalidInput(f"{needed + HELD_OUT} sequences are needed, the corpus has {there}: take fewer steps")
    held_out = ContinualBatches(data, 0, rows=1)
    held_out.drawn = needed
    batches = [held_out.next() for _ in range(HELD_OUT)]
    losses: dict[str, dict[str, list[float]]] = {}

    def run(name: str, start: Path, reads: bool, steps: int, rate: float, decay: float, seen: int) -> Path:
        console.print(f"[bold]{name}[/bold]")
        plan = PretrainingPlan(
            steps=steps,
            learning_rate=rate,
            warmup=steps // 20,
            decay=decay,
            rows=rows,
            stage="continual" if reads else "warmup",
            seen=seen,
        )
        trainer = pretrainer(open_checkpoint(start), out / name, config, data, plan, device=device)
        follow(trainer, 0)
        losses[name] = {NAMES[memory]: held_out_losses(trainer, batches, memory) for memory in NAMES}
        write_json(out / "held-out.json", compared(losses))
        return out / name

    first = {kind: run(f"warmup-{NAMES[kind]}", base, kind, warmup, learning_rate, 0.0, 0) for kind in NAMES}
    for name, before, reads in (("without", False, False), ("switched", False, True), ("with", True, True)):
        run(f"continual-{name}", first[before], reads, continual, learning_rate / 2, 0.1, warmup * rows)
    draw(out, warmup)


@torch.no_grad()
def held_out_losses(trainer: Pretrainer, batches: Sequence[Batch], memory: bool) -> list[float]:
    """Loss (nats a token) of each unseen sequence, which reads its memories or none."""
    losses = []
    with trainer.computing():
        for batch in (b.to(trainer.device) for b in batches):
            model, prefix = trainer.model, trainer.prefix
            written = write_memories(model, batch.reference_ids, batch.reference_lengths, prefix) if memory else None
            losses.append(float(read_loss(model, batch, prefix, written and written.select(batch.memories))))
    return losses


def compared(losses: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Each run's held-out losses, how much memory lowers them, and what the paper's two stages are lower by.

    Differences are of the same sequences; of a run, the loss is taken that it was trained for.
    """
    found: dict[str, Any] = {}
    for run, read in losses.items():
        own, paper = read["without" if run.endswith("without") else "with"], losses.get("continual-switched")
        found[run] = {name: vars(Mean.of(values)) for name, values in read.items()}
        found[run]["memory_lowers"] = vars(Paired.of(read["without"], read["with"]))
        found[run] |= {"switched_lower": vars(Paired.of(own, paper["with"]))} if paper else {}
    return found


def draw(out: Path, warmup: int) -> None:
    """`two-stages.svg`: the paper's figure, the loss of each run over its steps, mean of 10 steps."""
    from matplotlib import pyplot as plt

    figure, sides = plt.subplots(1, 2, figsize=(9, 3.2))
    for stage, side in zip(("warmup", "continual"), sides, strict=True):
        for name, color in (("without", "tab:blue"), ("with", "tab:green"), ("switched", "tab:red")):
            if (file := out / f"{stage}-{name}" / "metrics.jsonl").is_file():
                loss = np.array([json.loads(line)["loss"] for line in file.read_text().splitlines()])
                smooth = np.convolve(loss, np.ones(10) / 10, "valid")
                steps = np.arange(len(smooth)) + 10 + warmup * (stage == "continual")
                side.plot(steps, smooth, color=color, label=name)
        side.set(title=f"{stage} stage", xlabel="step", ylabel="loss, nats a token")
        side.legend(title="memory")
    figure.tight_layout()
    figure.savefig(out / "two-stages.svg")
