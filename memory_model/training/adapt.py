"""Tune a plain LLM to read explicit memories: `memory-model adapt`.

One step writes the batch's references with the model itself (gradients flow through writing), lets every
conversation read its memories, and takes the cross-entropy of the answers. `codec_noise` adds to every
memory vector what a codec would: noise of that share of the vector's variance, so that the model learns
to read codes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.config import MemoryConfig
from memory_model.errors import InvalidInput
from memory_model.nn.adapter import Adapter, attach, collect, load_factors
from memory_model.nn.model import Decoder, MemoryBatch
from memory_model.nn.writing import write_memories
from memory_model.training.batches import IGNORE, Batch, BatchMaker


@dataclass(frozen=True)
class TuningPlan:
    """How long and how hard to tune.

    The learning rate rises over `warmup` steps, stays, and falls to a tenth over the last `decay` share of
    the steps (warmup-stable-decay, paper 5.1). `codec_noise` is a share of variance.
    """

    steps: int = 600
    learning_rate: float = 1e-3
    warmup: int = 20
    decay: float = 0.3
    rank: int = 32
    alpha: float = 32.0
    first_layer: int = 6
    codec_noise: float = 0.03
    clip: float = 1.0
    seed: int = 0
    checkpoint_every: int = 50

    def rate(self, step: int) -> float:
        """Learning rate of a step (0-based)."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        stable = self.steps * (1 - self.decay)
        if step < stable:
            return self.learning_rate
        return self.learning_rate * (0.1 + 0.9 * (self.steps - step) / max(1.0, self.steps - stable))


def with_codec_noise(memory: MemoryBatch, share: float) -> MemoryBatch:
    """Add Gaussian noise of `share` of the variance of each row of the budget.

    The variance of a row is taken over the written references and averaged over its dimensions.
    """
    if share <= 0:
        return memory

    def noisy(x_NMd: Tensor) -> Tensor:
        with torch.no_grad():
            valid = memory.valid[..., None].float()
            mean = (x_NMd * valid).sum(0) / valid.sum(0).clamp_min(1)
            spread = (((x_NMd - mean) * valid).square().sum(0) / valid.sum(0).clamp_min(1)).mean(
                -1, keepdim=True
            )
            noise = torch.randn_like(x_NMd, dtype=torch.float32) * (spread * share).sqrt() * valid
        return x_NMd + noise.to(x_NMd.dtype)

    return MemoryBatch(noisy(memory.keys), noisy(memory.values), memory.valid)


def answer_loss(model: Decoder, batch: Batch, prefix: Sequence[int], codec_noise: float = 0.0) -> Tensor:
    """Mean cross-entropy (nats) of the answers' tokens, read from memories written in the same graph."""
    memory = write_memories(model, batch.reference_ids, batch.reference_lengths, prefix)
    return read_loss(model, batch, prefix, with_codec_noise(memory, codec_noise).select(batch.memories))


def read_loss(model: Decoder, batch: Batch, prefix: Sequence[int], memory: MemoryBatch) -> Tensor:
    """The same for memories that were written before."""
    B, T = batch.ids.shape
    P, device = len(prefix), batch.ids.device
    ids = torch.cat((torch.tensor(prefix, device=device).expand(B, P), batch.ids), dim=1)
    first = P + model.config.memory.reference_tokens
    positions = torch.cat((torch.arange(P), torch.arange(first, first + T))).to(device)[None]
    chunk = torch.cat((torch.full((P,), -1), torch.zeros(T, dtype=torch.long))).to(device).expand(B, -1)
    hidden, _ = model.hidden(ids, positions, memory=memory, chunk_BT=chunk)
    labels = batch.labels[:, 1:]
    answers = labels != IGNORE
    return F.cross_entropy(model.head(hidden[:, P:-1][answers]).float(), labels[answers])


class Tuner:
    """A tuning run that can be stopped and resumed; owns the optimizer and its files in `folder`."""

    def __init__(
        self, model: Decoder, prefix: Sequence[int], batches: BatchMaker, plan: TuningPlan, folder: Path,
        base_sha256: str, *, start: Adapter | None = None, device: str = "cpu",
    ) -> None:  # fmt: skip
        torch.manual_seed(plan.seed)
        self.parameters = attach(model, plan.rank, plan.alpha, plan.first_layer)
        if start is not None:
            load_factors(model, start)
        self.model, self.prefix, self.batches, self.plan = model.to(device), prefix, batches, plan
        self.folder, self.base, self.device, self.step = folder, base_sha256, device, 0
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def memory(self) -> MemoryConfig:
        """The budget that is tuned."""
        return self.model.config.memory

    def run(self, report: Callable[[int, float, float], None] | None = None) -> Adapter:
        """Tune to the end of the plan; `report(step, loss, seconds)` after each step."""
        self.model.train()
        with (self.folder / "metrics.jsonl").open("a") as metrics:
            while self.step < self.plan.steps:
                began = time.perf_counter()
                loss = self._one_step()
                seconds = time.perf_counter() - began
                metrics.write(
                    json.dumps({"step": self.step, "loss": loss, "seconds": round(seconds, 3)}) + "\n"
                )
                metrics.flush()
                if report is not None:
                    report(self.step, loss, seconds)
                if self.step % self.plan.checkpoint_every == 0:
                    self.save()
        self.save()
        return self.adapter()

    def _one_step(self) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate(self.step)
        batch = self.batches.next().to(self.device)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            loss = answer_loss(self.model, batch, self.prefix, self.plan.codec_noise)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.plan.clip)
        value = float(loss.detach())
        if math.isfinite(value):
            self.optimizer.step()
        self.step += 1
        return value

    def adapter(self) -> Adapter:
        """The adapter as it stands."""
        details: dict[str, Any] = {"plan": asdict(self.plan), "steps_done": self.step}
        return collect(self.model, self.memory, self.base, details)

    def save(self) -> None:
        """Write adapter and state of the run, so that `resume` continues exactly here."""
        self.adapter().save(self.folder / "adapter.safetensors")
        state = {
            "step": self.step, "plan": asdict(self.plan), "optimizer": self.optimizer.state_dict(),
            "parameters": [p.detach().cpu() for p in self.parameters], "random": self.batches.random.getstate(),
            "torch_random": torch.get_rng_state(),
        }  # fmt: skip
        partial = self.folder / "state.pt.partial"
        torch.save(state, partial)
        partial.replace(self.folder / "state.pt")

    def resume(self) -> bool:
        """Continue the run of this folder if it has one; raises InvalidInput when its plan was another."""
        path = self.folder / "state.pt"
        if not path.is_file():
            return False
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["plan"] != asdict(self.plan):
            changed = [
                f.name for f in fields(TuningPlan) if state["plan"].get(f.name) != getattr(self.plan, f.name)
            ]
            raise InvalidInput(
                f"{self.folder} holds a run with other settings ({', '.join(changed)}): use another --out"
            )
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
                parameter.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        kind, numbers, gauss = state["random"]
        self.batches.random.setstate((kind, tuple(numbers), gauss))
        torch.set_rng_state(state["torch_random"])
        self.step = state["step"]
        return True
