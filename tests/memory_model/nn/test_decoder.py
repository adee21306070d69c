"""The packaged GGUF is read as it is meant; writing and reading equal a plain loop over the paper's formulas."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from memory3.config import ModelConfig
from memory3.errors import InvalidInput
from memory_model.models.load import load_base
from memory_model.nn.decoder import Decoder, MemoryBatch, PackedRows
from memory_model.nn.fused import rotate
from memory_model.nn.serving import BatchedDecoder
from memory_model.nn.writing import MemoryWriter, pad_ids, write_memories, writing_device
from tests.edge_client.tiny_bundle import tiny_loaded
from tests.memory_model.tiny import PREFIX, tiny_model


def logits(model: Decoder, ids: torch.Tensor, positions: torch.Tensor, **reading: object) -> torch.Tensor:
    with torch.inference_mode():
        return model.head(model.hidden(ids, positions, **reading))  # type: ignore[arg-type]


def test_the_packaged_gguf_knows_berlin() -> None:
    loaded = load_base()
    ids = torch.tensor([loaded.tokenizer.encode("The capital of France is Paris, and the capital of Germany is")])
    found = logits(loaded.model, ids, torch.arange(ids.shape[1])[None])
    assert loaded.tokenizer.decode([int(found[0, -1].argmax())]) == " Berlin"


def naive_write(model: Decoder, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Paper 3.3-3.4 for one reference, head by head, token by token."""
    config = model.config
    n, P, d = len(ids), len(PREFIX), config.head_dim
    x = model.embed_tokens(torch.tensor(PREFIX + ids))
    cos, sin = model.rotary(torch.arange(P + n))
    keys, values, valid = [], [], []
    for i, layer in enumerate(model.layers):
        q, k, v = layer.self_attn.project(layer.input_layernorm(x))
        for head in config.memory.heads_of(i):
            weights = torch.zeros(n)
            for query_head in range(head.head * config.group, (head.head + 1) * config.group):
                for a in range(n):
                    scores = torch.stack([q[query_head, P + a] @ k[head.head, P + b] for b in range(n)])
                    weights += (scores / d**0.5).softmax(0)
            kept = sorted(weights.argsort(descending=True)[: head.tokens].tolist())
            rotated = rotate(k, cos, sin)[head.head, P:]
            rows = torch.zeros(2, head.tokens, d)
            rows[0, : len(kept)], rows[1, : len(kept)] = rotated[kept], v[head.head, P:][kept]
            keys.append(rows[0])
            values.append(rows[1])
            valid.append(torch.arange(head.tokens) < len(kept))
        x = x + layer.self_attn(layer.input_layernorm(x), cos, sin, [PackedRows(1, P + n)], [None])
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return torch.cat(keys), torch.cat(values), torch.cat(valid)


def test_batched_writing_equals_the_papers_formulas() -> None:
    model = tiny_model()
    rng = np.random.default_rng(0)
    references = [rng.integers(0, 64, n).tolist() for n in (16, 3, 9, 1)]
    with torch.inference_mode():
        written = write_memories(model, *pad_ids(references), PREFIX)
        for row, ids in enumerate(references):
            keys, values, valid = naive_write(model, ids)
            torch.testing.assert_close(written.keys[row], keys, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(written.values[row], values, atol=1e-5, rtol=1e-4)
            assert torch.equal(written.valid[row], valid)


def random_memories(config: ModelConfig, leading: tuple[int, ...], seed: int = 0) -> MemoryBatch:
    generator = torch.Generator().manual_seed(seed)
    shape = (*leading, config.memory.budget, config.head_dim)
    keys, values = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    valid = torch.rand(shape[:-1], generator=generator) < 0.8
    return MemoryBatch(keys, values, valid)


def test_every_chunk_reads_only_its_own_memories_as_equation_4_says() -> None:
    """One batched pass over three chunks equals reading on from a cache, chunk after chunk, each with its memories."""
    model = tiny_model()
    memory = random_memories(model.config, (2, 3, 5))
    P, T, chunk = len(PREFIX), 20, 8
    ids = torch.cat((torch.tensor(PREFIX).expand(2, P), torch.randint(0, 64, (2, T))), dim=1)
    positions = torch.cat((torch.arange(P), torch.arange(P + 16, P + 16 + T)))[None].expand(2, -1)
    owner = torch.cat((torch.full((P,), -1), torch.arange(T) // chunk)).expand(2, -1)
    whole = logits(model, ids, positions, memory=memory, chunk_BT=owner)
    engine = BatchedDecoder(model, PREFIX, 2, P + T)
    for c, own in enumerate(memory.of_chunks()):
        end = P + min(T, (c + 1) * chunk)
        engine.inject([0, 1], own)
        found = engine.prefill([0, 1], ids[:, P + c * chunk : end].tolist())
        torch.testing.assert_close(found, whole[:, end - 1], atol=2e-5, rtol=1e-3)


def test_memories_that_are_not_there_change_nothing() -> None:
    model = tiny_model()
    ids, positions = torch.randint(0, 64, (1, 9)), torch.arange(9)[None]
    empty = random_memories(model.config, (1, 1, 5))
    empty.valid[:] = False
    empty.keys[:] = 1e4
    read = logits(model, ids, positions, memory=empty, chunk_BT=torch.zeros(1, 9, dtype=torch.long))
    torch.testing.assert_close(read, logits(model, ids, positions), atol=1e-5, rtol=1e-4)


def test_rows_that_begin_alike_read_what_each_reads_alone() -> None:
    model = tiny_model()
    ids, positions = torch.randint(0, 64, (3, 12)), torch.arange(12)[None]
    ids[:, :7] = ids[0, :7]
    memory, chunks = random_memories(model.config, (3, 1, 2)), torch.zeros(3, 12, dtype=torch.long)
    for reading in ({}, {"memory": memory, "chunk_BT": chunks}):
        alone = []
        for row in range(3):
            one = MemoryBatch(*(x[row : row + 1] for x in (memory.keys, memory.values, memory.valid)))
            own = {"memory": one, "chunk_BT": chunks[:1]} if reading else {}
            alone.append(logits(model, ids[row : row + 1], positions, **own))
        together = logits(model, ids, positions, **reading)
        torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-4)


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
