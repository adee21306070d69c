"""One tuning run on several processes that torchrun starts: each computes some of a step's batches.

    torchrun --nproc-per-node 8 -m memory_model.cli adapt --device cuda --accumulate 8 …

All processes draw the same batches and hold the same adapter and moments; only gradients are exchanged, so a run
continues with another number of processes. Without torchrun there is one process and these functions have no effect.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from memory3.errors import InvalidInput


def processes() -> int:
    """How many processes torchrun started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """This process's number, from 0; process 0 writes the files."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Connect the processes: NCCL on GPUs, one each, gloo on CPUs.

    They wait for each other for half a day, because the first one prepares the data while the others wait.
    """
    if processes() == 1:
        yield
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timedelta(hours=12))
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


@contextmanager
def first_process_first() -> Iterator[None]:
    """The first process does what is inside, then the others do it and find its files."""
    if processes() > 1 and rank():
        dist.barrier()
    yield
    if processes() > 1 and not rank():
        dist.barrier()


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replace float32 tensors by their sums over all processes, in one exchange."""
    if processes() == 1:
        return
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    for tensor, summed in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(summed.view_as(tensor))


def first_decides(answer: bool) -> bool:
    """The first process' value: for decisions by the clock, which must be the same in all."""
    if processes() == 1:
        return answer
    shared = torch.tensor([float(answer and rank() == 0)])
    shared = shared.to("cuda") if dist.get_backend() == "nccl" else shared
    dist.all_reduce(shared)
    return bool(shared)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder against other processes; the operating system ends the hold of one that was killed.

    Raises InvalidInput with the folder and the other's process id.
    """
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise InvalidInput(f"process {file.read().strip()} tunes in {folder}: wait, or use another --out") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
