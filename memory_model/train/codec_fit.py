"""Fit a codec to a model's own memories, in the metric in which its errors are felt: `memory-model fit-codec`.

Keys are fitted in the second moment of the queries that read them, values in W_O^T W_O of their group
(`reading_metrics`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from memory3.codec.codec import MemoryCodec
from memory3.codec.native.library import installed
from memory3.codec.payload import vector_rows
from memory3.codec.scalar import SCALAR_BITS, ScalarCodec, ScalarTables
from memory3.config import MemoryConfig, ModelConfig
from memory3.errors import InvalidInput
from memory3.text.tokenizer import Tokenizer
from memory_model.codec.faiss import check_factory, fit_factory, unexplained_variance
from memory_model.codec.fit import fit_tables
from memory_model.data.batches import IGNORE, Batch, BatchSource
from memory_model.models.load import LoadedModel
from memory_model.nn.decoder import Attention, Decoder
from memory_model.nn.generate import read
from memory_model.nn.writing import MemoryWriter, write_memories

_WRITTEN_AT_ONCE = 16
METRIC_BATCHES = 8


def recipe(factory: str, memory: MemoryConfig) -> tuple[int, int, int] | None:
    """(parts, bits, widest) of `tokens:PARTSxBITS[xAXES]`, None for a FAISS string; raises InvalidInput."""
    if not factory.startswith("tokens:"):
        return None
    found = re.fullmatch(r"tokens:(\d{1,4})x(\d{1,2})(?:x(\d{1,3}))?", factory)
    if not found or not int(found[1]) or not 1 <= int(found[2]) <= 16 or found[3] == "0":
        raise InvalidInput(f"--factory {factory!r}: write tokens:PARTSxBITS, as tokens:144x8, or a FAISS factory")
    if any(h.tokens != memory.reference_tokens for h in memory.heads):
        raise InvalidInput(
            f"--factory {factory!r} codes the heads of a token together, but they keep different tokens:"
            " give a FAISS factory string, such as OPQ16_64,PQ16x8"
        )
    return int(found[1]), int(found[2]), int(found[3] or 0)


def scalar_bits(factory: str, memory: MemoryConfig) -> int | None:
    """The bits of `scalar:BITS`, None for another string; raises InvalidInput."""
    if not factory.startswith("scalar:"):
        return None
    if factory not in (names := [f"scalar:{bits}" for bits in SCALAR_BITS]):
        raise InvalidInput(f"--factory {factory!r}: write {' or '.join(names)}")
    if not has_scalar_codec(memory):
        raise InvalidInput(f"--factory {factory!r} needs heads that keep equally many tokens")
    return int(factory.removeprefix("scalar:"))


def has_scalar_codec(memory: MemoryConfig) -> bool:
    """Whether a token's vectors of all heads can share a code: the heads keep equally many tokens."""
    return len({head.tokens for head in memory.heads}) == 1


def scalar_codec(writer: MemoryWriter, memory: MemoryConfig, texts: Sequence[str]) -> ScalarCodec:
    """A scalar codec of 4 bits with the steps that suit the memories of these texts; a dozen of them are enough."""
    together = 2 * len(memory.heads)
    return ScalarCodec(ScalarTables.of(written_vectors(writer, memory, texts, together), 4, together), installed())


def default_factory(config: ModelConfig) -> str:
    """The codec for a budget: one code for a token's vectors where all are kept, else the paper's (appendix B)."""
    memory, d = config.memory, config.head_dim
    if all(head.tokens == memory.reference_tokens for head in memory.heads):
        return f"tokens:{16 * len(memory.heads)}x8"
    return f"OPQ{d // 4}_{d},Residual2x14,PQ8x10"


def fit(
    loaded: LoadedModel,
    batches: BatchSource,
    texts: Sequence[str],
    factory: str,
    seed: int,
    progress: Progress,
    *,
    points: int = 40000,
) -> tuple[MemoryCodec, list[float]]:
    """(codec, share of variance lost by each vector of a code), measured on references it was not fitted to.

    texts: references, drawn uniformly as in the paper, of which the last tenth is kept for measuring; batches: what
    reads memories, for the metric; factory: see `recipe`. points: most tokens that a codec of all their vectors is
    fitted to.
    """
    memory, d = loaded.config.memory, loaded.config.head_dim
    tokens, bits = recipe(factory, memory), scalar_bits(factory, memory)
    together = 2 * len(memory.heads) if tokens or bits else 1
    fitting = len(texts) - max(1, len(texts) // 10)
    vectors = sum(_codes_of(loaded.tokenizer, memory, texts[:fitting], together))
    if tokens and min(vectors, points) < (needed := 1 << tokens[1]):  # before hours of writing
        more = "write more references" if vectors < needed else f"give --points {needed}"
        raise InvalidInput(f"{factory} needs {needed:,} vectors to be fitted, not {min(vectors, points):,}: {more}")
    if not (tokens or bits):
        check_factory(factory, d, vectors)
    task = progress.add_task("writing memories", total=len(texts))
    sample, fresh = (
        written_vectors(
            loaded.writer, memory, part, together, lambda n: progress.advance(task, n), points=most, seed=seed
        )
        for part, most in ((texts[:fitting], points if tokens else None), (texts[fitting:], None))
    )
    codec: MemoryCodec
    if bits:
        codec = ScalarCodec(ScalarTables.of(sample, bits, together), installed())
    elif tokens is None:
        task = progress.add_task("training FAISS's index (without progress)", total=1)
        codec = fit_factory(sample, factory)
        progress.advance(task)
    else:
        steps = progress.track(range(METRIC_BATCHES), description="measuring what errors cost")
        metrics = reading_metrics(loaded.model, (batches.next() for _ in steps), loaded.writer.prefix)
        task = progress.add_task("fitting tables", total=tokens[0])
        parts, code_bits, widest = tokens
        codec = fit_tables(
            sample,
            parts,
            code_bits,
            metrics,
            widest=widest,
            together=together,
            seed=seed,
            overwrite=True,
            progress=lambda n: progress.advance(task, n),
        )
    return codec, unexplained_variance(codec, fresh).tolist()


def written_vectors(
    writer: MemoryWriter,
    memory: MemoryConfig,
    texts: Sequence[str],
    together: int,
    progress: Callable[[int], None] = lambda _: None,
    *,
    points: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """The vectors float32 [n, together * d] of the references' memories, in the order of their codes.

    points: at most so many, drawn at random, in order; no others are held.
    """
    ends = np.cumsum(_codes_of(writer.tokenizer, memory, texts, together))
    chosen = np.arange(ends[-1])
    if points is not None and len(chosen) > points:
        chosen = np.sort(np.random.default_rng(seed).permutation(len(chosen))[:points])
    vectors, filled, first = np.empty((0, 0), np.float32), 0, 0
    for start in range(0, len(texts), _WRITTEN_AT_ONCE):
        written = writer.write(texts[start : start + _WRITTEN_AT_ONCE])
        for number, m in enumerate(written, start):
            if not vectors.size:
                vectors = np.empty((len(chosen), together * m.keys.shape[1]), np.float32)
            stop = int(np.searchsorted(chosen, ends[number]))
            of_code = vector_rows(memory, m.tokens, together).reshape(-1, together)[chosen[filled:stop] - first]
            vectors[filled:stop] = np.concatenate((m.keys, m.values))[of_code].reshape(len(of_code), vectors.shape[1])
            filled, first = stop, ends[number]
        progress(len(written))
    return vectors


def _codes_of(tokenizer: Tokenizer, memory: MemoryConfig, texts: Sequence[str], together: int) -> list[int]:
    """How many codes the memory of each reference has."""
    lengths = [len(ids) for ids in tokenizer.encode_batch(texts)]
    codes = {length: len(vector_rows(memory, length, together)) // together for length in set(lengths)}
    return [codes[length] for length in lengths]


@torch.no_grad()
def reading_metrics(model: Decoder, batches: Iterator[Batch], prefix: Sequence[int]) -> list[np.ndarray]:
    """For each vector of a token the symmetric matrix [d, d] in which an error counts (keys, values, head by head).

    They are in one unit, the share of its head's memory output that an error changes (squared, at equal attention). An
    error e of a value moves the output by W_O e; one of a key moves a score by s = q . e / sqrt(d), and the output by
    about s of its own spread, the less the wider a head's scores vary: the keys' unit is divided by their deviation.
    """
    config, device = model.config, model.embed_tokens.weight.device
    d, group, heads = config.head_dim, config.group, config.memory.heads
    moments = {h: torch.zeros(d, d, dtype=torch.float64, device=device) for h in heads}
    spreads = {(h, side): torch.zeros_like(moments[h]) for h in heads for side in (0, 1)}
    counts, rows = 0, dict.fromkeys(heads, 0)
    queries: dict[int, Tensor] = {}

    def keep(layer: int, attention: Attention, inputs: tuple[Any, ...]) -> None:
        """The layer's queries [H, N, d] as they meet keys: normed and rotated where the model does so."""
        states, cos, sin = inputs[:3]
        queries[layer] = attention.rotate(attention.project(states)[0], cos, sin)

    for batch in (one.to(str(device)) for one in batches):
        written = write_memories(model, batch.reference_ids, batch.reference_lengths, prefix)
        attentions = {n: model.blocks[n].self_attn for n in config.memory.memory_layers}
        handles = [attention.register_forward_pre_hook(partial(keep, n)) for n, attention in attentions.items()]
        read(model, batch.ids, prefix, written.select(batch.memories), batch.chunks)
        for handle in handles:
            handle.remove()
        P, T = len(prefix), batch.ids.shape[1]
        # A token is read while the one before it is processed: the position that predicts an answer's token.
        predicts = torch.zeros_like(batch.labels, dtype=torch.bool)
        predicts[:, :-1] = batch.labels[:, 1:] != IGNORE
        predicts &= (batch.memories >= 0).flatten(1).any(1)[:, None]
        counts += int(predicts.sum()) * group
        for head, start in zip(heads, config.memory.offsets, strict=True):
            own = queries[head.layer][head.head * group : (head.head + 1) * group]
            chosen = own.unflatten(1, (-1, P + T))[:, :, P:][:, predicts].flatten(0, 1).double()
            moments[head] += chosen.T @ chosen
            rows_of_head = slice(start, start + head.tokens)
            valid = written.valid[:, rows_of_head]
            for side, written_side in enumerate((written.keys, written.values)):
                vectors = written_side[:, rows_of_head][valid].double()
                spreads[head, side] += (vectors - vectors.mean(0)).T @ (vectors - vectors.mean(0))
            rows[head] += len(vectors)
    metrics = []
    for head in heads:
        out = model.blocks[head.layer].self_attn.o_proj.weight.double().unflatten(1, (config.query_heads, d))
        own_out = out[:, head.head * group : (head.head + 1) * group].flatten(0, 1)
        query_metric, output_metric = moments[head] / max(counts, 1) / d, own_out.T @ own_out
        scores, spread = (
            float((metric * spreads[head, side]).sum() / max(rows[head], 1))
            for side, metric in enumerate((query_metric, output_metric))
        )
        units = query_metric / max(scores, 1e-12) ** 0.5, output_metric / max(spread, 1e-12)
        metrics += [unit.cpu().numpy() for unit in units]
    return metrics
