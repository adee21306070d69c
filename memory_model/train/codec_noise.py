"""The codec in the tuning loop: memories are read as they will be read, gradients pass straight through.

`CodecInTheLoop` quantises and restores the memories of a batch with a fitted codec's tables (torch, float32,
one matrix product there and one back for each block). While the weights change, the vectors move: a sample
of what was written recently is kept, and every so often means and codewords follow it: the codewords take a
few steps of k-means from where they are. The axes stay as they were fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memory_model.codec.codec import ProductCodec
from memory_model.codec.tables import ProductTables
from memory_model.config import MemoryConfig
from memory_model.errors import InvalidInput
from memory_model.nn.decoder import MemoryBatch

_SUBSPACES_AT_ONCE = 2  # so that distances to all their codewords stay in the processor's cache
_STEADINESS = 4.0  # a codeword or mean counts as so many vectors when it is moved: rare ones do not jump


class CodecInTheLoop:
    """Memories through a codec while tuning (`adapt.LoopCodec`); exactly resumable.

    codec: what to start from. refit_every: steps between fittings of the codewords, 0 for never; iterations
    of k-means in each; recent: vectors of each block that are kept; share: of the written ones, how many.
    """

    def __init__(
        self, codec: ProductCodec, memory: MemoryConfig, *, refit_every: int = 50, iterations: int = 1,
        recent: int = 8192, share: float = 0.125, device: str = "cpu",
    ) -> None:  # fmt: skip
        groups = 2 * len(memory.heads)
        if codec.groups not in (1, groups):
            raise InvalidInput(
                f"codec has {codec.groups} groups, {len(memory.heads)} memory heads need {groups}"
            )
        if codec.tables.coarse is not None:
            raise InvalidInput(
                "a codec with a coarse stage cannot be in the tuning loop: fit groups, heads or tokens"
            )
        if codec.together > 2 and any(h.tokens != memory.reference_tokens for h in memory.heads):
            raise InvalidInput(
                "a codec of whole tokens needs memory heads that keep every token: fit heads:… instead"
            )
        self.refit_every, self.iterations, self.recent = refit_every, iterations, recent
        self.stride = max(1, round(1 / share))
        self.blocks = [range(g, g + codec.together) for g in range(0, groups, codec.together)]
        self.rows = [(start, head.tokens) for start, head in zip(memory.offsets, memory.heads, strict=True)]
        self.tables = [_Table(codec.tables, n, device) for n in range(len(codec.tables.mean))]
        self._written = [torch.zeros(0, t.mean.shape[0], dtype=torch.float16) for t in self.tables]
        self._calls = 0

    def __call__(self, memory: MemoryBatch) -> MemoryBatch:
        """Memories [N, budget, d] as the codec restores them; their gradients are those of the exact ones."""
        both = (memory.keys, memory.values)
        restored = [torch.zeros_like(x, dtype=torch.float32) for x in both]
        with torch.no_grad(), torch.autocast(memory.keys.device.type, enabled=False):
            for number, groups in enumerate(self.blocks):
                which = number % len(self.tables)
                places = [(g % 2, slice(self.rows[g // 2][0], sum(self.rows[g // 2]))) for g in groups]
                valid = memory.valid[:, places[0][1]]
                x_NtD = torch.cat([both[side][:, rows].float() for side, rows in places], dim=-1)
                q_nD = self.tables[which].quantised(x_NtD[valid])
                self._remember(which, x_NtD[valid])
                out_NtD = torch.zeros_like(x_NtD)
                out_NtD[valid] = q_nD
                for (side, rows), part in zip(places, out_NtD.chunk(len(places), dim=-1), strict=True):
                    restored[side][:, rows] = part
        self._calls += 1
        keys, values = (_straight_through(x, q) for x, q in zip(both, restored, strict=True))
        return MemoryBatch(keys, values, memory.valid)

    def after_step(self, step: int) -> None:
        """Fit the codewords to what was written recently, every `refit_every` steps (0-based)."""
        if self.refit_every and (step + 1) % self.refit_every == 0:
            self.refit()

    def refit(self, vectors: Sequence[Tensor] | None = None) -> None:
        """Let means and codewords follow vectors, from where they are.

        vectors: for each block [n, together * d]; default: those that were written recently.
        """
        with torch.autocast(self.tables[0].mean.device.type, enabled=False):
            for table, block in zip(self.tables, vectors or self._written, strict=True):
                if len(block):
                    table.follow(block.float(), self.iterations)

    def state_dict(self) -> dict[str, Any]:
        """What moves, and recent vectors; the axes come from the codec that the loop started from."""
        words = [[w.cpu() for w in table.words] for table in self.tables]
        means = [table.mean.cpu() for table in self.tables]
        return {"words": words, "means": means, "written": list(self._written), "calls": self._calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; raises InvalidInput for that of another codec."""
        if len(state["words"]) != len(self.tables):
            raise InvalidInput("the run was tuned with another codec in the loop: give the same one")
        for table, words, mean in zip(self.tables, state["words"], state["means"], strict=True):
            if [w.shape for w in words] != [w.shape for w in table.words]:
                raise InvalidInput("the run was tuned with another codec in the loop: give the same one")
            table.words = [w.to(table.mean.device) for w in words]
            table.mean = mean.to(table.mean.device)
        self._written, self._calls = list(state["written"]), int(state["calls"])

    def _remember(self, which: int, x_nD: Tensor) -> None:
        sample = x_nD[self._calls % self.stride :: self.stride].half().cpu()
        self._written[which] = torch.cat((self._written[which], sample))[-self.recent :]


def _straight_through(x: Tensor, quantised: Tensor) -> Tensor:
    return x + (quantised - x.float()).detach().to(x.dtype)


class _Table:
    """One block's tables as tensors; subspaces are sorted by width, those of one width are computed together.

    mean [D]; into [D, used] and basis [used, D], where used are the coordinates that have codewords;
    words: for each width w that occurs [subspaces, 2^bits, w].
    """

    def __init__(self, tables: ProductTables, number: int, device: str) -> None:
        codewords, basis = tables.codewords[number], tables.basis[number]
        padded = codewords.shape[2]
        if tables.into is None:
            into = np.linalg.pinv(basis.astype(np.float64)).astype(np.float32)
        else:
            into = tables.into[number]
        used = codewords.any(axis=1)  # [parts, padded]
        widths = used.sum(1)
        order, words = [], []
        for width in sorted(set(widths.tolist()) - {0}):
            chosen = np.flatnonzero(widths == width)
            columns = np.stack([np.flatnonzero(used[part]) for part in chosen])
            order.append((chosen[:, None] * padded + columns).ravel())
            words.append(np.stack([codewords[p][:, c] for p, c in zip(chosen, columns, strict=True)]))
        kept = np.concatenate(order)
        self.mean = torch.tensor(tables.mean[number], device=device)
        self.into = torch.tensor(into[:, kept], device=device)
        self.basis = torch.tensor(basis[kept], device=device)
        self.words = [torch.tensor(w, device=device) for w in words]

    def quantised(self, x_nD: Tensor) -> Tensor:
        """Float32 [n, D] as the codec restores it."""
        parts = []
        for z_Mnw, words, nearest_Mn in self._nearest(x_nD):
            index = nearest_Mn[..., None].expand(-1, -1, words.shape[2])
            parts.append(words.gather(1, index).transpose(0, 1).reshape(z_Mnw.shape[1], -1))
        return torch.cat(parts, dim=1) @ self.basis + self.mean

    def follow(self, x_nD: Tensor, iterations: int) -> None:
        """Move the mean to that of vectors [n, D], then take steps of k-means over them.

        On the CPU whatever the device: sums there come out the same every time, and it is rare.
        """
        device = self.mean.device
        self._move(torch.device("cpu"))
        x_nD = x_nD.cpu()
        self.mean = (x_nD.sum(0) + _STEADINESS * self.mean) / (len(x_nD) + _STEADINESS)
        for _ in range(iterations):
            moved = []
            for z_Mnw, words, nearest_Mn in self._nearest(x_nD):
                sums = (words * _STEADINESS).scatter_add(1, nearest_Mn[..., None].expand_as(z_Mnw), z_Mnw)
                counts = torch.full_like(words[..., 0], _STEADINESS)
                counts.scatter_add_(1, nearest_Mn, torch.ones_like(z_Mnw[..., 0]))
                moved.append(sums / counts[..., None])
            self.words = moved
        self._move(device)

    def _move(self, device: torch.device) -> None:
        self.mean, self.into, self.basis = (t.to(device) for t in (self.mean, self.into, self.basis))
        self.words = [w.to(device) for w in self.words]

    def _nearest(self, x_nD: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each width: coordinates [M, n, w], codewords [M, 2^bits, w], nearest codeword [M, n]."""
        z_nu = (x_nD - self.mean) @ self.into
        found, start = [], 0
        for words in self.words:
            M, _, w = words.shape
            z_Mnw = z_nu[:, start : start + M * w].unflatten(1, (M, w)).transpose(0, 1).contiguous()
            start += M * w
            if w == 1:
                ordered, rank = words[..., 0].sort(dim=1)
                between = (ordered[:, 1:] + ordered[:, :-1]) / 2
                nearest = rank.gather(1, torch.searchsorted(between, z_Mnw[..., 0]))
            else:
                half_norm = words.square().sum(-1)[:, None] / -2
                nearest = torch.cat([
                    torch.baddbmm(h, z, p.transpose(1, 2)).argmax(-1)
                    for h, z, p in zip(*(t.split(_SUBSPACES_AT_ONCE) for t in (half_norm, z_Mnw, words)), strict=True)
                ])  # fmt: skip
            found.append((z_Mnw, words, nearest))
        return found
