"""Tune a plain LLM to read explicit memories: `memory-model adapt`.

A step takes the cross-entropy of what is to be learned, or the divergence from the original model in what is to stay.
Noise of a codec's size is added to memories between writing and reading, so that the model learns to read codes.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TextIO

import torch

from memory3.codec.codec import MemoryCodec
from memory3.errors import CorruptFile, InvalidInput
from memory3.process_memory import return_free_memory
from memory_model.data.batches import BatchSource
from memory_model.nn.adapter import Adapter, attach, checkpoint_layers, collect, load_start
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.train.coding import through_codec, with_codec_noise
from memory_model.train.distributed import add_up, first_decides, locked, processes, rank
from memory_model.train.losses import batch_gradients
from memory_model.train.passes import BatchResult


@dataclass(frozen=True)
class TuningPlan:
    """How long and how hard to tune.

    The learning rate rises over `warmup` steps, stays, and falls to `lowest` over the last `decay` share of the steps
    (paper 5.1); cosine: from there it falls to 0 as a half cosine (6.1). codec_noise: a share of variance; codec_id: of
    a codec in its place. beta: of DPO (6.2). accumulate: batches of a step, over all processes. So that a run resumes
    with the same: mixture, what batches are drawn from, in words; rows and sequence, of a batch of running text, and
    the tokens of each; base, budget and start, hashes of the plain weights, of the memory's budget and of the adapter
    that it continued from (the reference model of DPO), which `Tuner` fills in.
    """

    steps: int = 600
    learning_rate: float = 1e-3
    warmup: int = 20
    decay: float = 0.3
    rank: int = 32
    first_layer: int = 6
    codec_noise: float = 0.03
    codec_id: str = ""
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 0
    checkpoint_every: int = 50
    accumulate: int = 1
    cosine: bool = False
    beta: float = 0.01
    mixture: str = ""
    rows: int = 2
    sequence: int = 512
    base: str = ""
    budget: str = ""
    start: str = ""
    lowest: ClassVar[float] = 0.1

    def rate(self, step: int) -> float:
        """Learning rate of a step (0-based)."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if self.cosine:
            done = (step - self.warmup) / max(1, self.steps - self.warmup)
            return self.learning_rate * (1 + math.cos(math.pi * done)) / 2
        stable = self.steps * (1 - self.decay)
        if step < stable:
            return self.learning_rate
        left = (self.steps - step) / max(1.0, self.steps - stable)
        return self.learning_rate * (self.lowest + (1 - self.lowest) * left)


@dataclass(frozen=True)
class Step:
    """One line of `metrics.jsonl`: losses in nats a token, the gradient's norm before clipping, and seconds.

    kept: divergence from the original model. fixed_s: passes without a gradient, of the original model and for DPO.
    tokens: of references and texts without padding, over all processes; padding: share of what was computed; the
    seconds of the parts are this process's.
    """

    step: int
    task: str
    loss: float
    kept: float
    rate: float
    norm: float
    seconds: float
    tokens: int
    padding: float
    write_s: float
    read_s: float
    fixed_s: float
    backward_s: float
    optimizer_s: float


class Tuner:
    """A tuning run that can be stopped and resumed; owns the optimizer and its files in `folder`.

    Of several processes (`memory_model.train.distributed`) all make the same calls; the first one writes the files.
    """

    shares_rows: ClassVar[bool] = True
    """Whether threads take a batch's rows each, with one core; else all cores share every product."""

    def __init__(
        self,
        model: Decoder,
        prefix: Sequence[int],
        batches: BatchSource,
        plan: TuningPlan,
        folder: Path,
        base_sha256: str,
        *,
        start: Adapter | None = None,
        device: str = "cpu",
        checkpoint: bool = False,
        most_tokens: int = 8192,
        codec: MemoryCodec | None = None,
    ) -> None:
        """checkpoint: keep only the layers' inputs and compute the rest again; most_tokens: of one pass.

        codec: what memories go through on their way to readers, in place of noise; the plan names it.

        Raises InvalidInput where `accumulate` batches cannot be shared evenly, or the start does not fit.
        """
        if plan.accumulate < 1 or plan.accumulate % processes():
            raise InvalidInput(f"--accumulate {plan.accumulate} is no multiple of {processes()}, the processes")
        torch.manual_seed(plan.seed)
        budget = sha256(repr(model.config.memory).encode()).hexdigest()[:16]
        begun = start.digest if start else ""
        self.plan, self.device = replace(plan, base=base_sha256[:16], budget=budget, start=begun), device
        self.parameters = self.trained(model)
        if start is not None:
            load_start(model, start)
        if checkpoint:
            checkpoint_layers(model)
        self.model, self.prefix, self.batches = model.to(device), prefix, batches
        self.folder, self.base, self.step = folder, base_sha256, 0
        self.most_tokens, self.codec = most_tokens, codec
        self.optimizer = torch.optim.AdamW(
            self.groups(), plan.learning_rate, (0.9, 0.98), weight_decay=plan.weight_decay, fused=True
        )
        folder.mkdir(parents=True, exist_ok=True)

    def trained(self, model: Decoder) -> list[torch.nn.Parameter]:
        """Prepare the model and return what is trained."""
        return attach(model, self.plan.rank, float(self.plan.rank), self.plan.first_layer, self.device)

    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups of what is trained."""
        return [{"params": self.parameters}]

    def computing(self) -> AbstractContextManager[Any]:
        """What a step's gradients are computed in."""
        return nullcontext()

    @property
    def finished(self) -> bool:
        """Whether the plan is done."""
        return self.step >= self.plan.steps

    def run(self, report: Callable[[Step], None] = lambda _: None, *, limit_s: float = math.inf) -> Adapter:
        """Tune to the end of the plan, or for `limit_s` seconds; `report` after each step.

        Raises InvalidInput while another process tunes in the folder.
        """
        self.model.train()
        _keep_freed_memory()
        began = time.monotonic()
        with locked(self.folder) if rank() == 0 else nullcontext(), self._metrics() as metrics:
            while not self.finished and first_decides(time.monotonic() - began < limit_s):
                done = self.one_step()
                if self.step % _RETURNED_EVERY == 0:
                    return_free_memory()
                metrics.write(json.dumps(asdict(done)) + "\n")
                metrics.flush()
                report(done)
                if self.step % self.plan.checkpoint_every == 0:
                    self.save()
            self.save()
        return self.adapter()

    def _metrics(self) -> TextIO:
        """`metrics.jsonl` behind the line of the last step that was saved: later ones are done again."""
        if rank():
            return open(os.devnull, "w")
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
        whole = [line for line in lines if line.endswith("\n")]  # a kill may leave a part of one
        partial = path.with_suffix(".partial")
        partial.write_text("".join(line for line in whole if json.loads(line)["step"] <= self.step))
        partial.replace(path)
        return path.open("a")

    def coded(self, written: MemoryBatch) -> MemoryBatch:
        """Memories as readers get them."""
        if self.codec is not None:
            return through_codec(written, self.model.config.memory, self.codec)
        return with_codec_noise(written, self.plan.codec_noise)

    def one_step(self) -> Step:
        """Compute the step's batches, exchange gradients, update."""
        began = time.perf_counter()
        rate = self.plan.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        drawn = [self.batches.next() for _ in range(self.plan.accumulate)]
        parts: list[BatchResult] = []
        with self.computing():
            for number in range(rank(), len(drawn), processes()):
                # The noise of a batch does not depend on the process, and is the same after a resume.
                torch.manual_seed((self.plan.seed * 1_000_003 + self.step) * 4096 + number)
                parts.append(
                    batch_gradients(
                        self.model,
                        drawn[number].to(self.device),
                        self.prefix,
                        coding=self.coded,
                        weight=1 / len(drawn),
                        most_tokens=self.most_tokens,
                        beta=self.plan.beta,
                        threads=torch.get_num_threads() if self.device == "cpu" and self.shares_rows else 1,
                    )
                )
        n = len(drawn)
        sums = [(p.answers / n, p.kept / n, float(p.tokens), float(p.real), float(p.computed)) for p in parts]
        totals = torch.tensor(sums, device=self.device).sum(0)
        updating = time.perf_counter()
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        add_up([totals, *(p.grad for p in self.parameters if p.grad is not None)])
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.plan.clip))
        if math.isfinite(norm):
            self.optimizer.step()
        self.step += 1
        ended = time.perf_counter()
        loss, kept, tokens, real, computed = totals.tolist()
        seconds = {name: sum(p.seconds[name] for p in parts) for name in parts[0].seconds}
        seconds["optimizer"] = ended - updating
        return Step(
            self.step,
            "+".join(sorted({batch.task for batch in drawn})),
            round(loss, 5),
            round(kept, 5),
            rate,
            round(norm, 4),
            round(ended - began, 3),
            int(tokens),
            round(1 - real / computed, 4),
            **{f"{name}_s": round(value, 3) for name, value in seconds.items()},
        )

    def adapter(self) -> Adapter:
        """The current adapter."""
        details: dict[str, Any] = {"plan": asdict(self.plan), "steps_done": self.step}
        return collect(self.model, self.model.config.memory, self.base, details)

    def write_weights(self) -> None:
        """Write what was trained."""
        self.adapter().save(self.folder / "adapter.safetensors")

    def save(self) -> None:
        """Write weights and state of the run, so that `resume` continues exactly here."""
        if rank():
            return
        self.write_weights()
        state = {
            "step": self.step,
            "plan": asdict(self.plan),
            "optimizer": self.optimizer.state_dict(),
            "parameters": [p.detach() for p in self.parameters],
            "batches": self.batches.state(),
        }
        partial = self.folder / "state.pt.partial"
        torch.save(state, partial)
        partial.replace(self.folder / "state.pt")

    def resume(self) -> bool:
        """Continue the run of this folder if it has one; raises InvalidInput when its plan was another, CorruptFile."""
        path = self.folder / "state.pt"
        if not path.is_file():
            return False
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise CorruptFile(f"{path} is truncated or damaged: remove {self.folder}, or use another --out") from error
        before = asdict(type(self.plan)()) | state["plan"]  # a run from before a setting existed had its default
        changed = [name for name, value in asdict(self.plan).items() if before[name] != value]
        if changed:
            raise InvalidInput(f"{self.folder} holds a run of other settings ({', '.join(changed)}): use another --out")
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
                parameter.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.restore(state["batches"])
        self.step = state["step"]
        return True


_RETURNED_EVERY = 8
"""Steps after which freed memory is returned: of steps of different lengths more and more pieces would lie about."""


def _keep_freed_memory() -> None:
    """Have glibc keep what is freed for the next step: returned and taken anew, its pages cost a tenth of the time."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        libc.mallopt(-8, 1)  # M_ARENA_MAX: other arenas hold 64 MiB at a time
