"""The losses of a batch in one padded pass and one graph: what the tuner's passes are held to."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.data.batches import IGNORE, Batch
from memory_model.nn.adapter import original
from memory_model.nn.decoder import Decoder
from memory_model.nn.generate import read
from memory_model.nn.writing import write_memories
from memory_model.train.tuner import Step


def interrupted(run: Callable[[Callable[[Step], None]], object], after: int) -> list[float]:
    """Losses of a run that Ctrl-C ends after so many steps."""
    losses: list[float] = []

    def note(step: Step) -> None:
        losses.append(step.loss)
        if len(losses) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(note)
    return losses


def plain_losses(model: Decoder, batch: Batch, prefix: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Cross-entropy and divergence from the original model, nats a token."""
    memory = None
    if len(batch.reference_ids):
        memory = write_memories(model, batch.reference_ids, batch.reference_lengths, prefix).select(batch.memories)
    hidden = read(model, batch.ids, prefix, memory, batch.chunks)
    answers = divergence = hidden.new_zeros(())
    learned = batch.labels[:, 1:] != IGNORE
    if learned.any():
        answers = F.cross_entropy(model.head(hidden[:, :-1][learned]).float(), batch.labels[:, 1:][learned])
    if batch.kept is not None:
        row, column = batch.kept.T
        ids, (taught_row, taught_column) = batch.ids, batch.kept.T
        if batch.teacher_ids is not None and batch.taught is not None:
            ids, (taught_row, taught_column) = batch.teacher_ids, batch.taught.T
        with torch.no_grad(), original(model):
            states = read(model, ids, prefix, None, None)[taught_row, taught_column]
            right = model.head(states).float().log_softmax(-1)
        own = model.head(hidden[row, column]).float().log_softmax(-1)
        divergence = F.kl_div(own, right, reduction="batchmean", log_target=True)
    return answers, divergence
