"""Tune a plain LLM to read explicit memories: `memory-model adapt`.

One step writes the batch's references with the model itself (gradients flow through writing), lets every
text read its memories, and takes the cross-entropy of what is to be learned plus the divergence from a
teacher who has the references as text (distillation). What a codec would do to a memory is done to it while
tuning, by the codec itself or by noise of its size, so that the model learns to read codes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.chat import text_start
from memory_model.config import MemoryConfig
from memory_model.data.batches import IGNORE, Batch, BatchSource, Teacher
from memory_model.errors import InvalidInput
from memory_model.nn.adapter import Adapter, attach, collect, load_start, original
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.writing import write_memories


@dataclass(frozen=True)
class TuningPlan:
    """How long and how hard to tune.

    The learning rate rises over `warmup` steps, stays, and falls to a tenth over the last `decay` share of
    the steps (warmup-stable-decay, paper 5.1). `codec_noise` is a share of variance; `distillation` is the
    weight of the divergence from the teacher beside the cross-entropy (0 takes no teacher).
    """

    steps: int = 600
    learning_rate: float = 1e-3
    warmup: int = 20
    decay: float = 0.3
    rank: int = 32
    alpha: float = 32.0
    first_layer: int = 6
    codec_noise: float = 0.03
    distillation: float = 0.5
    weight_decay: float = 0.0
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


Coding = Callable[[MemoryBatch], MemoryBatch]
"""What happens to memories between writing and reading."""


@dataclass(frozen=True)
class Losses:
    """Of one batch, in nats a token: cross-entropy of the labels, divergence from the teacher (0 where none)."""

    answers: Tensor
    teacher: Tensor


def batch_losses(
    model: Decoder, batch: Batch, prefix: Sequence[int], coding: Coding | None = None, *, distil: bool = True
) -> Losses:
    """Both losses of a batch, its memories written in the same graph; `coding` is applied to them."""
    memory = None
    if len(batch.reference_ids):
        written = write_memories(model, batch.reference_ids, batch.reference_lengths, prefix)
        memory = (coding(written) if coding else written).select(batch.memories)
    hidden = read(model, batch.ids, prefix, memory, batch.chunks)
    taught = hidden.new_zeros(())
    if batch.teacher is not None and (distil or batch.teacher.original):
        taught = _divergence(model, hidden, batch.teacher, prefix)
    return Losses(_cross_entropy(model, hidden, batch.labels), taught)


def read_loss(model: Decoder, batch: Batch, prefix: Sequence[int], memory: MemoryBatch | None) -> Tensor:
    """Mean cross-entropy (nats) of the labels with memories that were written before."""
    return _cross_entropy(model, read(model, batch.ids, prefix, memory, batch.chunks), batch.labels)


def read(
    model: Decoder,
    ids_BT: Tensor,
    prefix: Sequence[int],
    memory: MemoryBatch | None,
    chunks_BT: Tensor | None,
) -> Tensor:
    """Normed hidden states [B, T, D] of texts behind the prefix, each token reading its chunk's memories."""
    B, T = ids_BT.shape
    P, device = len(prefix), ids_BT.device
    ids = torch.cat((torch.tensor(prefix, device=device).expand(B, P), ids_BT), dim=1)
    first = text_start(prefix, model.config.memory)
    positions = torch.cat((torch.arange(P), torch.arange(first, first + T))).to(device)[None]
    chunks = None
    if memory is not None and chunks_BT is not None:
        chunks = torch.cat((torch.full((B, P), -1, device=device), chunks_BT), dim=1)
    hidden, _ = model.hidden(ids, positions, memory=memory if chunks is not None else None, chunk_BT=chunks)
    return hidden[:, P:]


def _cross_entropy(model: Decoder, hidden_BTD: Tensor, labels_BT: Tensor) -> Tensor:
    labels = labels_BT[:, 1:]
    learned = labels != IGNORE
    if not bool(learned.any()):
        return hidden_BTD.new_zeros(())
    return F.cross_entropy(model.head(hidden_BTD[:, :-1][learned]).float(), labels[learned])


def _divergence(model: Decoder, hidden_BTD: Tensor, teacher: Teacher, prefix: Sequence[int]) -> Tensor:
    """KL(teacher || student), mean over the matched positions; no gradient reaches the teacher."""
    with torch.no_grad(), original(model) if teacher.original else nullcontext():
        seen = read(model, teacher.ids, prefix, None, None)
        right = model.head(seen[teacher.places[:, 0], teacher.places[:, 1]]).float().log_softmax(-1)
    own = model.head(hidden_BTD[teacher.matched[:, 0], teacher.matched[:, 1]]).float().log_softmax(-1)
    return F.kl_div(own, right, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class Step:
    """One line of `metrics.jsonl`: losses in nats a token, the gradient's norm before clipping."""

    step: int
    task: str
    loss: float
    teacher: float
    rate: float
    norm: float
    seconds: float


class Tuner:
    """A tuning run that can be stopped and resumed; owns the optimizer and its files in `folder`."""

    def __init__(
        self, model: Decoder, prefix: Sequence[int], batches: BatchSource, plan: TuningPlan, folder: Path,
        base_sha256: str, *, start: Adapter | None = None, device: str = "cpu",
    ) -> None:  # fmt: skip
        torch.manual_seed(plan.seed)
        self.parameters = attach(model, plan.rank, plan.alpha, plan.first_layer)
        if start is not None:
            load_start(model, start)
        self.model, self.prefix, self.batches, self.plan = model.to(device), prefix, batches, plan
        self.folder, self.base, self.device, self.step = folder, base_sha256, device, 0
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=plan.weight_decay
        )
        self.metrics = folder / "metrics.jsonl"
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def memory(self) -> MemoryConfig:
        """The budget that is tuned."""
        return self.model.config.memory

    @property
    def finished(self) -> bool:
        """Whether the plan is done."""
        return self.step >= self.plan.steps

    def run(self, report: Callable[[Step], None] | None = None, *, limit_s: float = math.inf) -> Adapter:
        """Tune to the end of the plan, or for `limit_s` seconds; `report` after each step."""
        self.model.train()
        began = time.monotonic()
        with self.metrics.open("a") as metrics:
            while not self.finished and time.monotonic() - began < limit_s:
                done = self._one_step()
                metrics.write(json.dumps(asdict(done)) + "\n")
                metrics.flush()
                if report is not None:
                    report(done)
                if self.step % self.plan.checkpoint_every == 0:
                    self.save()
        self.save()
        return self.adapter()

    def _one_step(self) -> Step:
        began = time.perf_counter()
        rate = self.plan.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self.batches.next().to(self.device)
        losses = self.losses(batch)
        # What the original model knows is kept at full weight: it is the only loss of such a batch.
        weight = 1.0 if batch.teacher and batch.teacher.original else self.plan.distillation
        loss = losses.answers + weight * losses.teacher
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.plan.clip))
        if math.isfinite(norm):
            self.optimizer.step()
        self.step += 1
        return Step(
            self.step, batch.task, round(float(losses.answers.detach()), 5),
            round(float(losses.teacher.detach()), 5), rate, round(norm, 4),
            round(time.perf_counter() - began, 3),
        )  # fmt: skip

    def losses(self, batch: Batch) -> Losses:
        """Both losses of a batch, in bfloat16 where that is safe."""
        with torch.autocast(self.device, dtype=torch.bfloat16):
            return batch_losses(
                self.model, batch, self.prefix, self._coding, distil=self.plan.distillation > 0
            )

    def _coding(self, memory: MemoryBatch) -> MemoryBatch:
        return with_codec_noise(memory, self.plan.codec_noise)

    def adapter(self) -> Adapter:
        """The adapter as it stands."""
        details: dict[str, Any] = {"plan": asdict(self.plan), "steps_done": self.step}
        return collect(self.model, self.memory, self.base, details)

    def save(self) -> None:
        """Write adapter and state of the run, so that `resume` continues exactly here."""
        self.adapter().save(self.folder / "adapter.safetensors")
        partial = self.folder / "state.pt.partial"
        torch.save(self.state(), partial)
        partial.replace(self.folder / "state.pt")

    def state(self) -> dict[str, Any]:
        """Everything that an exact resume needs."""
        return {
            "step": self.step, "plan": asdict(self.plan), "optimizer": self.optimizer.state_dict(),
            "parameters": [p.detach() for p in self.parameters], "batches": self.batches.state(),
            "torch_random": torch.get_rng_state(), "device_random": self._device_random(),
        }  # fmt: skip

    def _device_random(self) -> Tensor | None:
        """The GPU's own generator, which draws the noise there; None on a CPU."""
        return torch.cuda.get_rng_state() if self.device.startswith("cuda") else None

    def resume(self) -> bool:
        """Continue the run of this folder if it has one; raises InvalidInput when its plan was another."""
        path = self.folder / "state.pt"
        if not path.is_file():
            return False
        state = torch.load(path, map_location="cpu", weights_only=True)
        # A run of an older version lacks the fields that came later: it had their defaults.
        changed = [
            f.name
            for f in fields(TuningPlan)
            if state["plan"].get(f.name, f.default) != getattr(self.plan, f.name)
        ]
        if changed:
            raise InvalidInput(
                f"{self.folder} holds a run with other settings ({', '.join(changed)}): use another --out"
            )
        self.restore(state)
        return True

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of a run with the same plan."""
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
                parameter.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.restore(state["batches"])
        torch.set_rng_state(state["torch_random"])
        # Absent where the run began on a CPU: it goes on, though not with the numbers it would have had there.
        if self.device.startswith("cuda") and state.get("device_random") is not None:
            torch.cuda.set_rng_state(state["device_random"])
        self.step = state["step"]
