"""What a codec costs at a rate: reconstruction, attention output, predictions (`memory-model codec-curve`).

Every variant is fitted to the same sample and measured on the same held-out batches, whose queries are real
ones:

    keys, values   share of the vectors' variance that is lost, mean over heads
    output         share of the memory heads' attention output that is lost (over memories and text,
                   before the output projection), mean over heads
    divergence     KL of the next-token distribution from that with exact memories, nats an answer token;
                   divergence_error is its standard error, and few tokens make most of it
    flips          share of answer tokens whose likeliest token changes

Quantizers that the decoder has no format for (additive ones) are measured as vectors there and back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor

from memory_model.codec.codec import MemoryCodec
from memory_model.codec.faiss import FaissCodec, fit_factory
from memory_model.codec.fit import fit_groups, square_root
from memory_model.config import MemoryConfig
from memory_model.data.batches import IGNORE, Batch
from memory_model.errors import InvalidInput
from memory_model.nn.decoder import Attention, Decoder, MemoryBatch
from memory_model.nn.writing import write_memories
from memory_model.train.tuner import read

PAPER = "OPQ16_64,Residual2x14,PQ8x10"
PAPER_VECTOR_BYTES = 14
FAMILIES = {
    "table": "one table, OPQ", "sides": "keys | values", "groups": "each head's keys | values", "heads": "each head",
    "opq": "each group, OPQ", "residual": "each group, residual", "tokens": "all of a token", "paper": "the paper's",
}  # fmt: skip
DEFAULT_VARIANTS = (
    "paper:14,table:13,table:25,sides:13,sides:25,groups:8,groups:13,groups:20,groups:25,groups:32,opq:13,residual:13,"
    "heads:8,heads:13,heads:20,tokens:4,tokens:6,tokens:8,tokens:10,tokens:13,tokens:16,tokens:25"
)


@dataclass(frozen=True)
class Variant:
    """One point of the curve: a family and its bytes a vector."""

    family: str
    vector_bytes: int

    @classmethod
    def parse(cls, name: str) -> Variant:
        """Inverse of `name`; raises InvalidInput."""
        family, _, size = name.strip().partition(":")
        if family not in FAMILIES or not re.fullmatch("[1-9][0-9]?", size) or int(size) > 64:
            raise InvalidInput(
                f"no codec variant {name!r}: write FAMILY:BYTES with one of {', '.join(FAMILIES)}"
            )
        if family == "paper" and int(size) != PAPER_VECTOR_BYTES:
            raise InvalidInput(f"the paper's codec has {PAPER_VECTOR_BYTES} bytes a vector: write paper:14")
        return cls(family, int(size))

    @property
    def name(self) -> str:
        """`family:bytes`."""
        return f"{self.family}:{self.vector_bytes}"

    @property
    def has_format(self) -> bool:
        """Whether the decoder has a format for it, so that answers can be scored through it."""
        return self.family in ("paper", "table", "groups", "heads", "tokens")


Coding = Callable[[list[np.ndarray]], list[np.ndarray]]
"""Vectors of every group, float32 [n, d], there and back."""


def fit_variant(
    variant: Variant, groups: Sequence[np.ndarray], metrics: Sequence[np.ndarray], seed: int
) -> tuple[Coding, FaissCodec | None]:
    """How a variant restores vectors, and its codec where the decoder can read it.

    groups[g]: float32 [n, d] of which row i is the same token in every group.
    """
    size, family = variant.vector_bytes, variant.family
    if family in ("paper", "table"):
        codec = fit_factory(
            np.concatenate(groups), PAPER if family == "paper" else _opq(groups[0].shape[1], size)
        )
        return _coding(codec), codec
    if family in ("groups", "heads", "tokens"):
        together = {"groups": 1, "heads": 2, "tokens": len(groups)}[family]
        blocks = [np.concatenate(groups[g : g + together], axis=1) for g in range(0, len(groups), together)]
        codec = fit_groups(blocks, size * together, 8, metrics, together=together, seed=seed)
        return _coding(codec), codec
    if family == "sides":
        pair = [np.concatenate(groups[side::2]) for side in (0, 1)]
        of_sides = fit_groups(pair, size, 8, seed=seed)
        return lambda vectors: [_restored(of_sides, x, g % 2) for g, x in enumerate(vectors)], None
    return _separate(variant, groups, metrics)


def _separate(
    variant: Variant, groups: Sequence[np.ndarray], metrics: Sequence[np.ndarray]
) -> tuple[Coding, None]:
    """FAISS's own quantizers, one for each group, in the group's metric."""
    d, size = groups[0].shape[1], variant.vector_bytes
    roots = [square_root([metric]).astype(np.float32) for metric in metrics]
    means = [x.mean(0) for x in groups]
    quantizers = []
    for x, mean, root in zip(groups, means, roots, strict=True):
        quantizer: Any
        if variant.family == "opq":
            quantizer = faiss.index_factory(d, _opq(d, size))
        else:
            quantizer = faiss.IndexResidualQuantizer(d, size, 8)
            quantizer.rq.max_beam_size = 4
        quantizer.train(np.ascontiguousarray((x - mean) @ root))
        quantizers.append(quantizer)

    def coding(vectors: list[np.ndarray]) -> list[np.ndarray]:
        back = []
        for x, quantizer, mean, root in zip(vectors, quantizers, means, roots, strict=True):
            codes = quantizer.sa_encode(np.ascontiguousarray((x - mean) @ root))
            back.append(quantizer.sa_decode(codes) @ np.linalg.inv(root) + mean)
        return back

    return coding, None


def _opq(d: int, size: int) -> str:
    """Factory string of a rotation and a product quantizer of so many bytes, padded where d does not divide."""
    return f"OPQ{size}_{-(-d // size) * size},PQ{size}x8"


def _coding(codec: MemoryCodec) -> Coding:
    def coding(vectors: list[np.ndarray]) -> list[np.ndarray]:
        together = codec.together
        back: list[np.ndarray] = []
        for block, first in enumerate(range(0, len(vectors), together)):
            restored = _restored(codec, np.concatenate(vectors[first : first + together], axis=1), block)
            back += np.split(restored, together, axis=1)
        return back

    return coding


def _restored(codec: MemoryCodec, vectors: np.ndarray, block: int) -> np.ndarray:
    return codec.decode(codec.encode(vectors, block), block)


def require_all_tokens(memory: MemoryConfig) -> None:
    """Raise InvalidInput for a budget that the curve cannot measure: vectors of a token must stand together."""
    if any(h.tokens != memory.reference_tokens for h in memory.heads):
        raise InvalidInput("the curve needs memory heads that keep every token of a reference")


@dataclass(frozen=True)
class HeldOut:
    """A held-out batch with its exact memories and what the model makes of them.

    outputs: attention outputs at the answers' positions, for each memory head [G, positions, d];
    log_p [positions, vocabulary].
    """

    batch: Batch
    memory: MemoryBatch
    outputs: list[Tensor]
    log_p: Tensor


class Ruler:
    """Measures what restored memories change on held-out batches. Keeps their exact memories and predictions."""

    def __init__(
        self, model: Decoder, prefix: Sequence[int], batches: Iterable[Batch],
        progress: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        require_all_tokens(model.config.memory)
        self.model, self.prefix = model, prefix
        self.held: list[HeldOut] = []
        for batch in batches:
            with torch.inference_mode():
                memory = write_memories(model, batch.reference_ids, batch.reference_lengths, prefix)
                self.held.append(HeldOut(batch, memory, *self._read(batch, memory)))
            if progress is not None:
                progress()

    def measure(self, coding: Coding) -> dict[str, float]:
        """The figures of one codec (see the module)."""
        lost, whole = np.zeros(self._groups), np.zeros(self._groups)
        moved, size = np.zeros(len(self._heads)), np.zeros(len(self._heads))
        divergence: list[Tensor] = []
        flips: list[Tensor] = []
        for held in self.held:
            vectors = self._vectors(held.memory)
            restored = coding(vectors)
            for g, (x, y) in enumerate(zip(vectors, restored, strict=True)):
                lost[g] += ((x - y) ** 2).sum()
                whole[g] += ((x - x.mean(0)) ** 2).sum()
            with torch.inference_mode():
                outputs, log_p = self._read(held.batch, self._memory(held.memory, restored))
            for h, (exact, coded) in enumerate(zip(held.outputs, outputs, strict=True)):
                moved[h] += float((exact - coded).square().sum())
                size[h] += float((exact - exact.mean(1, keepdim=True)).square().sum())
            divergence.append((held.log_p.exp() * (held.log_p - log_p)).sum(-1))
            flips.append((held.log_p.argmax(-1) != log_p.argmax(-1)).float())
        shares, spread = lost / whole, torch.cat(divergence)
        return {
            "keys": float(shares[::2].mean()),
            "values": float(shares[1::2].mean()),
            "output": float((moved / size).mean()),
            "divergence": float(spread.mean()),
            "divergence_error": float(spread.std() / len(spread) ** 0.5),
            "flips": float(torch.cat(flips).mean()),
        }

    @property
    def _heads(self) -> Sequence[Any]:
        return self.model.config.memory.heads

    @property
    def _groups(self) -> int:
        return 2 * len(self._heads)

    def _vectors(self, memory: MemoryBatch) -> list[np.ndarray]:
        tokens = self.model.config.memory.reference_tokens
        result = []
        for start in self.model.config.memory.offsets:
            valid = memory.valid[:, start : start + tokens]
            result += [x[:, start : start + tokens][valid].numpy() for x in (memory.keys, memory.values)]
        return result

    def _memory(self, memory: MemoryBatch, vectors: Sequence[np.ndarray]) -> MemoryBatch:
        tokens = self.model.config.memory.reference_tokens
        sides = (torch.zeros_like(memory.keys), torch.zeros_like(memory.values))
        for h, start in enumerate(self.model.config.memory.offsets):
            valid = memory.valid[:, start : start + tokens]
            for side, x in enumerate(sides):
                x[:, start : start + tokens][valid] = torch.from_numpy(vectors[2 * h + side])
        return MemoryBatch(*sides, memory.valid)

    def _read(self, batch: Batch, memory: MemoryBatch) -> tuple[list[Tensor], Tensor]:
        """Attention outputs of the memory heads and log-probabilities where an answer's token is predicted."""
        P, config = len(self.prefix), self.model.config
        predicts = torch.zeros_like(batch.labels, dtype=torch.bool)
        predicts[:, :-1] = batch.labels[:, 1:] != IGNORE
        found: dict[int, Tensor] = {}
        handles = [
            self.model.blocks[layer].self_attn.o_proj.register_forward_pre_hook(_keep_input(found, layer))
            for layer in config.memory.memory_layers
        ]
        hidden = read(self.model, batch.ids, self.prefix, memory.select(batch.memories), batch.chunks)
        for handle in handles:
            handle.remove()
        outputs = []
        for head in config.memory.heads:
            whole = found[head.layer][:, P:][predicts].unflatten(1, (config.query_heads, config.head_dim))
            outputs.append(
                whole[:, head.head * config.group : (head.head + 1) * config.group].transpose(0, 1)
            )
        return outputs, self.model.head(hidden[predicts]).float().log_softmax(-1)


def _keep_input(into: dict[int, Tensor], layer: int) -> Callable[[Attention, tuple[Tensor, ...]], None]:
    def keep(_module: Attention, inputs: tuple[Tensor, ...]) -> None:
        into[layer] = inputs[0]

    return keep
