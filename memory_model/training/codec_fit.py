"""Fit a codec to a model's own memories, in the metric in which its errors are felt: `memory-model fit-codec`.

An error e in a key changes attention scores by q . e, so keys are fitted in the second moment of the
queries that read them; an error in a value changes the layer's output by W_O e, so values are fitted in
W_O^T W_O of their group. Both are small matrices [d, d] for each memory head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn

from memory_model.errors import InvalidInput
from memory_model.nn.load import LoadedModel
from memory_model.nn.model import Decoder, rotate
from memory_model.nn.writing import write_memories
from memory_model.training.adapt import read_loss
from memory_model.training.batches import IGNORE, Batch, BatchMaker
from memory_model.training.faiss_codec import FaissCodec, fit_factory, fit_groups, unexplained_variance


def fit(
    loaded: LoadedModel, batches: BatchMaker, factory: str, references: int, seed: int, progress: Progress
) -> tuple[FaissCodec, list[float]]:
    """(codec, share of variance lost by each group), the share measured on references it was not fitted to.

    factory: `groups:PARTSxBITS` (own tables for every group) or a FAISS factory string (one table for all,
    the paper's). References are drawn uniformly, as in the paper.
    """
    parts_bits = _parse(factory)
    texts = [r.text for r in batches.references]
    order = np.random.default_rng(seed).permutation(len(texts))[: references + references // 10]
    task = progress.add_task("writing memories", total=len(order))
    memories = loaded.writer.write([texts[n] for n in order], progress=lambda n: progress.advance(task, n))
    fitting, fresh = memories[:references], memories[references:]
    config = loaded.config.memory

    def vectors(written: Sequence[object], head: int, side: int) -> np.ndarray:
        start, most = config.offsets[head], config.heads[head].tokens
        rows = [(m.values if side else m.keys)[start : start + min(m.tokens, most)] for m in written]  # type: ignore[attr-defined]
        return np.concatenate(rows)

    sides = [(head, side) for head in range(len(config.heads)) for side in (0, 1)]
    groups = [vectors(fitting, *place) for place in sides]
    if parts_bits is None:
        codec = fit_factory(np.concatenate(groups), factory)
    else:
        drawn = [batches.next() for _ in range(8)]
        metrics = reading_metrics(loaded.model, drawn, loaded.writer.prefix)
        task = progress.add_task("fitting tables", total=len(groups))
        codec = fit_groups(groups, *parts_bits, metrics, seed=seed, progress=lambda _: progress.advance(task))
    return codec, [unexplained_variance(codec, vectors(fresh, *place), g) for g, place in enumerate(sides)]


def _parse(factory: str) -> tuple[int, int] | None:
    if not factory.startswith("groups:"):
        return None
    parts, _, bits = factory.removeprefix("groups:").partition("x")
    if not (parts.isdigit() and bits.isdigit()):
        raise InvalidInput(f"--factory {factory!r}: write groups:PARTSxBITS, such as groups:25x8")
    return int(parts), int(bits)


@torch.no_grad()
def reading_metrics(model: Decoder, batches: Sequence[Batch], prefix: Sequence[int]) -> list[np.ndarray]:
    """For each codec group the symmetric matrix [d, d] in which an error counts (keys, values, head by head)."""
    config = model.config
    d, group = config.head_dim, config.group
    moments = {h: torch.zeros(d, d, dtype=torch.float64) for h in config.memory.heads}
    for batch in batches:
        queries: dict[int, Tensor] = {}
        handles = [
            _capture(model.blocks[layer].self_attn.q_proj, queries, layer)
            for layer in config.memory.memory_layers
        ]
        written = write_memories(model, batch.reference_ids, batch.reference_lengths, prefix)
        queries.clear()
        read_loss(model, batch, prefix, written.select(batch.memories))
        for handle in handles:
            handle.remove()
        P, T = len(prefix), batch.ids.shape[1]
        first = P + config.memory.reference_tokens
        cos, sin = model.rotary(torch.arange(first, first + T)[None])
        # A token is read while the one before it is processed: the position that predicts an answer's token.
        predicts = torch.zeros_like(batch.labels, dtype=torch.bool)
        predicts[:, :-1] = batch.labels[:, 1:] != IGNORE
        for head in config.memory.heads:
            q = queries[head.layer][:, P:].unflatten(2, (-1, d)).transpose(1, 2)
            own = q[:, head.head * group : (head.head + 1) * group]
            chosen = rotate(own, cos, sin).transpose(1, 2)[predicts].flatten(0, 1).double()
            moments[head] += chosen.T @ chosen
    metrics = []
    for head in config.memory.heads:
        out = model.blocks[head.layer].self_attn.o_proj.weight.double().unflatten(1, (config.query_heads, d))
        own_out = out[:, head.head * group : (head.head + 1) * group].flatten(0, 1)
        metrics += [moments[head].numpy(), (own_out.T @ own_out).numpy()]
    return metrics


def _capture(module: nn.Module, into: dict[int, Tensor], layer: int) -> torch.utils.hooks.RemovableHandle:
    def keep(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        into[layer] = output

    return module.register_forward_hook(keep)
