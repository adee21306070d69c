"""Writing in batches of so many tokens, on the device that was named."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from memory_model.errors import InvalidInput
from memory_model.nn.decoder import MemoryBatch
from memory_model.nn.writing import MemoryWriter, writing_device
from tests.edge_client.tiny_bundle import tiny_loaded

TEXTS = ["Oslo, Norway.", "Lima.", "A reference of more words."]


@pytest.fixture(scope="module")
def writer() -> MemoryWriter:
    return tiny_loaded().writer


def test_a_full_device_gets_smaller_batches_of_the_same(writer: MemoryWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    together = writer.write(TEXTS)
    forward, sizes = MemoryWriter._forward, []

    def small(self: MemoryWriter, ids: Sequence[Sequence[int]]) -> MemoryBatch:
        sizes.append(len(ids))
        if len(ids) > 1:
            raise torch.OutOfMemoryError("full")
        return forward(self, ids)

    monkeypatch.setattr(MemoryWriter, "_forward", small)
    monkeypatch.setattr(writer, "batch_tokens", writer.batch_tokens)
    alone = writer.write(TEXTS)
    assert (sizes[0], sizes[-1]) == (3, 1)
    assert writer.batch_tokens < 64
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.keys, other.keys, atol=1e-5)
        np.testing.assert_allclose(one.values, other.values, atol=1e-5)


def test_a_device_that_is_not_there_is_refused_with_what_to_do() -> None:
    assert writing_device("cpu").type == "cpu"
    assert writing_device("auto").type in ("cpu", "cuda")
    with pytest.raises(InvalidInput, match="give auto, cpu"):
        writing_device("toaster")
    with pytest.raises(InvalidInput, match="write on cpu"):
        writing_device("cuda:99")
