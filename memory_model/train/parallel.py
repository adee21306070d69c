"""One tuning run on several processes: torchrun starts them, FSDP2 spreads weights, gradients and moments.

Every process draws the same batch and works on its share of the texts, writing only the references that
these read. Losses are weighted by tokens, so that loss and gradient are those of one process with the whole
batch. What is saved is whole: a run goes on with another number of processes.

    torchrun --nproc-per-node 8 -m memory_model.cli continual --device cuda …
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from memory_model.data.batches import IGNORE, Batch, BatchSource, Teacher
from memory_model.errors import InvalidInput
from memory_model.nn.adapter import Adapter
from memory_model.nn.decoder import Decoder
from memory_model.train.tuner import Coding, Losses, Tuner, TuningPlan, batch_losses


def processes() -> int:
    """How many processes torchrun started for this run; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def process_group(device: str) -> Iterator[DeviceMesh]:
    """The processes of torchrun as a mesh: NCCL on GPUs, one each, gloo on CPUs.

    They wait for each other for half a day, because the first one prepares the data while the others wait.
    """
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timedelta(hours=12))
    try:
        yield init_device_mesh(device, (dist.get_world_size(),))
        dist.barrier()  # nobody leaves while another still talks to him
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Share:
    """One process's part of a batch; `answers` and `teacher` say which part (0..1) of the tokens it has."""

    batch: Batch
    answers: float
    teacher: float


def share(batch: Batch, rank: int, world: int) -> Share:
    """Texts rank, rank + world, … of a batch with what they read.

    All processes must do the same collective operations. So a process that gets no text, no label, no
    reference or nothing from the teacher, where the whole batch has some, works on one with weight 0.
    """
    mine = torch.arange(len(batch.ids), device=batch.ids.device)[rank::world]
    idle = len(mine) == 0
    rows = torch.zeros_like(batch.memories[:1, 0, 0]) if idle else mine
    labels = batch.labels[rows]
    total, own = _learned(batch.labels), _learned(labels)
    if total and not own:
        labels[0, 1] = batch.ids[rows[0], 1]
    memories = batch.memories[rows]
    read = memories[memories >= 0].unique()
    if len(batch.reference_ids) and not len(read):
        read = torch.zeros_like(rows[:1])
    place = torch.full(
        (len(batch.reference_ids) + 1,), -1, device=rows.device
    )  # the last one: of an empty slot
    place[read] = torch.arange(len(read), device=rows.device)
    teacher, taught = _share_of_teacher(batch.teacher, rows, len(batch.ids))
    part = replace(
        batch, reference_ids=batch.reference_ids[read], reference_lengths=batch.reference_lengths[read],
        ids=batch.ids[rows], labels=labels, memories=place[memories], chunks=batch.chunks[rows], teacher=teacher,
    )  # fmt: skip
    return Share(part, 0.0 if idle or not total else own / total, 0.0 if idle else taught)


def _learned(labels_BT: Tensor) -> int:
    return int((labels_BT[:, 1:] != IGNORE).sum())


def _share_of_teacher(teacher: Teacher | None, rows: Tensor, texts: int) -> tuple[Teacher | None, float]:
    if teacher is None:
        return None, 0.0
    kept = torch.isin(teacher.matched[:, 0], rows).nonzero()[:, 0]
    part = len(kept) / len(teacher.matched)
    if not len(kept):
        kept = torch.zeros_like(rows[:1])
    text = torch.zeros(texts, dtype=torch.long, device=rows.device)
    text[rows] = torch.arange(len(rows), device=rows.device)
    seen, places = teacher.places[kept, 0].unique(return_inverse=True)
    return (
        Teacher(
            teacher.ids[seen],
            torch.stack((places, teacher.places[kept, 1]), dim=1),
            torch.stack((text[teacher.matched[kept, 0]], teacher.matched[kept, 1]), dim=1),
            teacher.original,
        ),
        part,
    )


class _Losses(nn.Module):
    """The losses of a batch as a module's forward, which is where FSDP gathers and frees what is not a layer's."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, batch: Batch, prefix: Sequence[int], coding: Coding | None, distil: bool
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy and divergence, see `batch_losses`."""
        losses = batch_losses(self.model, batch, prefix, coding, distil=distil)
        return losses.answers, losses.teacher


def spread(model: Decoder, mesh: DeviceMesh) -> _Losses:
    """Spread a model's weights over the processes of `mesh`; its losses are to be asked of what is returned.

    The units that are gathered for their turn are the projections of attention, which writing calls one by
    one, and the MLPs; embedding and norms are gathered once a step.
    """
    # Nothing here writes into a projection's output in place, which is what the warning is about.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for block in model.blocks:
        for projection in block.self_attn.children():
            fully_shard(projection, mesh=mesh)
        fully_shard(block.mlp, mesh=mesh)
    losses = _Losses(model)
    fully_shard(losses, mesh=mesh)
    return losses


class ParallelTuner(Tuner):
    """A tuning run of which this process is one; all of them make the same calls, rank 0 writes the files."""

    def __init__(
        self, model: Decoder, prefix: Sequence[int], batches: BatchSource, plan: TuningPlan, folder: Path,
        base_sha256: str, mesh: DeviceMesh, *, start: Adapter | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            model, prefix, batches, plan, folder, base_sha256, start=start, device=mesh.device_type
        )
        self.rank, self.world = mesh.get_local_rank(), mesh.size()
        self.spread = spread(model, mesh)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer.param_groups[0]["params"] = self.parameters
        if self.rank:
            self.metrics = Path(os.devnull)

    def losses(self, batch: Batch) -> Losses:
        """Losses whose values are those of the whole batch and whose gradients are this process's part."""
        own = share(batch, self.rank, self.world)
        # Codec noise is random: each process and step its own, and the same again after a resume.
        torch.manual_seed((self.plan.seed * 1_000_003 + self.step) * 4_096 + self.rank)
        # Cached casts would hand a weight its gradient after FSDP has reduced it.
        with torch.autocast(self.device, dtype=torch.bfloat16, cache_enabled=False):
            answers, teacher = self.spread(own.batch, self.prefix, self._coding, self.plan.distillation > 0)
        return Losses(self._of_all(answers, own.answers), self._of_all(teacher, own.teacher))

    def _of_all(self, loss: Tensor, part: float) -> Tensor:
        """The weighted sum over processes, with a gradient that FSDP's mean over processes turns into that sum's."""
        total = (loss.detach() * part).float()
        dist.all_reduce(total)
        own = loss * (part * self.world)
        return own + (total - own).detach()

    def save(self) -> None:
        """Write adapter and state on rank 0; the others give their pieces."""
        if self.rank == 0:
            super().save()
        else:
            self.adapter()
            self.state()
        dist.barrier()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a whole state, taking this process's pieces of it."""
        moments = state["optimizer"]["state"]
        pieces = {
            n: {k: _piece(v, self.parameters[n]) if v.dim() else v for k, v in s.items()}
            for n, s in moments.items()
        }
        super().restore(
            {
                **state,
                "optimizer": {**state["optimizer"], "state": pieces},
                "parameters": [
                    _piece(v, p) for v, p in zip(state["parameters"], self.parameters, strict=True)
                ],
            }
        )


def _piece(value: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor):
        raise InvalidInput("the run's parameters are not spread over processes")
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
