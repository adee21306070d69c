"""`AnswerabilityProbe`: how much a model's queries lean to a refusal where nothing that it reads answers.

Before its first token of an answer, a model has compared the question with its memories. The queries of its memory
heads at the last token of the prompt show what it found better than its logits do; this is a linear readout of them
(a linear probe), which moves the logit of the refusal's first token. `memory_model.eval.probe_fit` fits one.

A tuned model also tends to refuse what needs no memory, "Hello!" too, the more so where it reads none. Another readout
of the same queries tells such requests from questions and makes their refusal less likely. It never refuses.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import ArrayLike

from memory3.config import ModelConfig
from memory3.errors import CorruptFile, ModelMismatch
from memory3.runtime.attention import memory_tensors

PROBE_FILE = "answerability.npz"
LARGEST_BIAS = 100.0


@dataclass(frozen=True)
class AnswerabilityProbe:
    """A bias of the refusal that is linear in queries.

    model_id: whose queries it reads; a tuned model needs another probe. weights: float32 [width] of queries as
    `QueryRecord` keeps them, of all heads with memory. numbers: int32 [m], rising, of memories that are read, and
    offsets: float32 [m], what is added to the weights' product there; between two numbers it is interpolated.
    leans: by the label of a precision, what is taken off the last offset there, because weights that are rounded to it
    lean to a refusal. of_requests: float32 [width + 1], weights and offset of the other readout, of which only what is
    below 0 counts; None: there is none.
    """

    model_id: str
    weights: np.ndarray
    numbers: np.ndarray
    offsets: np.ndarray
    leans: Mapping[str, float] = field(default_factory=dict)
    of_requests: np.ndarray | None = None

    def at(self, precision: str) -> AnswerabilityProbe:
        """The probe for weights that are rounded to this precision."""
        offsets = self.offsets.copy()
        offsets[-1] -= self.leans.get(precision, 0.0)
        return replace(self, offsets=offsets, leans={})

    def biases(self, queries: np.ndarray, memories: ArrayLike) -> np.ndarray:
        """Logits [n] that the refusal's first token gets after prompts with these queries [n, width].

        memories: how many each reads, or all; the readout of answers does not count where there are none.
        """
        offsets = np.interp(np.asarray(memories, np.float64), self.numbers, self.offsets).astype(np.float32)
        queries = queries.astype(np.float32, copy=False)
        found = np.where(np.asarray(memories) > 0, queries @ self.weights + offsets, np.float32(0))
        if self.of_requests is not None:
            found += np.minimum(0, queries @ self.of_requests[:-1] + self.of_requests[-1])
        return np.asarray(np.clip(found, -LARGEST_BIAS, LARGEST_BIAS))

    @property
    def digest(self) -> str:
        """What results with this probe are told from others by."""
        parts = [self.weights.astype("<f2"), self.numbers.astype("<i4"), self.offsets.astype("<f4")]
        if self.of_requests is not None:
            parts.append(self.of_requests.astype("<f4"))
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:12]

    def save(self, path: str | Path) -> None:
        """Write `answerability.npz`, with its folder, to a temporary name first; the weights with half precision."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        of_requests = np.zeros(0) if self.of_requests is None else self.of_requests
        with partial.open("wb") as file:  # by a name alone numpy would add .npz to it
            np.savez(
                file,
                model_id=self.model_id,
                weights=self.weights.astype(np.float16),
                numbers=self.numbers.astype(np.int32),
                offsets=self.offsets.astype(np.float32),
                precisions=np.array([*self.leans], np.str_),
                leans=np.array([*self.leans.values()], np.float32),
                of_requests=of_requests.astype(np.float32),
            )
        partial.replace(path)

    @classmethod
    def load(cls, path: str | Path, config: ModelConfig, model_id: str) -> AnswerabilityProbe:
        """Inverse of `save`, for a model; raises CorruptFile, and ModelMismatch for a probe of another model."""
        try:
            with NpzFile(io.BytesIO(Path(path).read_bytes())) as file:
                own, weights = str(file["model_id"]), file["weights"].astype(np.float32)
                numbers, offsets = file["numbers"].astype(np.int32), file["offsets"].astype(np.float32)
                measured = (file[n].tolist() if n in file else [] for n in ("precisions", "leans"))
                leans = dict(zip(*measured, strict=True))
                of_requests = file["of_requests"].astype(np.float32) if "of_requests" in file else np.zeros(0)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise CorruptFile(f"{path} is no probe of answerability: {error}") from error
        if own != model_id:
            remedy = "fit another one with `memory-model fit-refusal`, or remove the file"
            raise ModelMismatch(own, model_id, remedy, subject=f"{Path(path).name} is of")
        width = query_width(config)
        if weights.shape != (width,) or not np.isfinite(weights).all():
            raise CorruptFile(f"{path} has weights {list(weights.shape)}, not {width} finite ones")
        rising = numbers.ndim == 1 and len(numbers) > 0 and bool((np.diff(numbers) > 0).all())
        if not rising or offsets.shape != numbers.shape or not np.isfinite(offsets).all():
            raise CorruptFile(f"{path} has not one finite offset for each of its numbers of memories")
        if not np.isfinite(np.array([*leans.values()], np.float32)).all():
            raise CorruptFile(f"{path} has no finite lean for each of its precisions")
        if of_requests.size and (of_requests.shape != (width + 1,) or not np.isfinite(of_requests).all()):
            raise CorruptFile(f"{path} has weights of requests {list(of_requests.shape)}, not {width + 1} finite ones")
        return cls(own, weights, numbers, offsets, leans, of_requests if of_requests.size else None)


def query_width(config: ModelConfig) -> int:
    """Numbers of all queries that a decoder records of a token."""
    return sum(len(t.heads) for t in memory_tensors(config)) * config.group * config.head_dim
