"""Train all weights of a base, from random ones on: the paper's pretraining (sections 3.6 and 5)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import save_file
from torch import nn

from memory3.config import ModelConfig
from memory3.errors import InvalidInput
from memory3.text.chat import prefix_ids
from memory3.text.tokenizer import Tokenizer
from memory_model.data.retrieved import RetrievedSequences
from memory_model.data.running_text import ContinualBatches
from memory_model.models.folder import Checkpoint, base_sha256
from memory_model.nn.decoder import Decoder
from memory_model.nn.fused import products
from memory_model.train.tuner import Tuner, TuningPlan


@dataclass(frozen=True)
class PretrainingPlan(TuningPlan):
    """Warmup, stable, decay: the rate falls to near zero over the last tenth (paper 5.1).

    stage: "warmup", without memory, or "continual" (3.6). seen: sequences that are left out.
    """

    decay: float = 0.1
    codec_noise: float = 0.0
    weight_decay: float = 0.1
    sequence: int = 2048
    stage: str = "warmup"
    seen: int = 0
    lowest: ClassVar[float] = 0.01


class Pretrainer(Tuner):
    """Trains every weight: float32 weights and moments, products in the device's type. Writes `model.safetensors`."""

    shares_rows = False  # autocast is a thread's own
    base_files: Sequence[Path] = ()
    """Config, tokenizer and the like: with the weights they are a base."""

    def trained(self, model: Decoder) -> list[nn.Parameter]:
        """All weights; matrices first, because only they decay."""
        model.float().requires_grad_(True)
        return sorted(model.parameters(), key=lambda weight: weight.ndim < 2)

    def groups(self) -> list[dict[str, Any]]:
        """Matrices, and norms and biases, which do not decay."""
        vectors = [weight for weight in self.parameters if weight.ndim < 2]
        matrices = self.parameters[: -len(vectors)]
        return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]

    def computing(self) -> AbstractContextManager[Any]:
        """Products in the device's type."""
        return products(self.device)

    def write_weights(self) -> None:
        """A Hugging Face folder: the base's files, and the weights in float32, to a temporary name first."""
        for file in self.base_files:
            shutil.copyfile(file, self.folder / file.name)
        named = self.model.state_dict()
        stored = {n if n.startswith("lm_head") else f"model.{n}": x.cpu().contiguous() for n, x in named.items()}
        partial = self.folder / "model.partial"
        save_file(stored, partial, metadata={"format": "pt"})
        partial.chmod(0o644)  # safetensors makes it readable for its owner only
        partial.replace(self.folder / "model.safetensors")


def pretrainer(
    base: Checkpoint, out: Path, config: ModelConfig, data: RetrievedSequences, plan: PretrainingPlan, **options: Any
) -> Pretrainer:
    """The run of one stage from a base's weights, in the folder `out` that becomes a base too.

    config: the base's shape with a memory budget; options: of `Tuner`. The plan's `sequence` is that of the data.
    """
    if out.resolve() == base.path.resolve():
        raise InvalidInput(f"{out} is the base itself: give another --out")
    weights, model = base.weights(), Decoder(config)
    model.load_state_dict({name: weights.read(name).float() for name in weights.shapes}, strict=False)
    tokenizer = Tokenizer.from_json(base.tokenizer_json, base.special_tokens)
    batches = ContinualBatches(data, plan.seed, rows=plan.rows, warmup=plan.stage == "warmup")
    batches.drawn = plan.seen
    plan = replace(plan, sequence=data.sequences.shape[1])
    prefix = prefix_ids(tokenizer, config.memory)
    made = Pretrainer(model, prefix, batches, plan, out, base_sha256(base), **options)
    others = [file for file in base.files if file.suffix in (".json", ".jinja")]
    made.base_files = [file for file in others if not file.name.endswith(".index.json")]
    return made
