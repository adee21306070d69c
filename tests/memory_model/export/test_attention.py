"""Shares of attention, from the decoder's queries, equal those of the torch model's own softmax over all keys."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.providers import open_decoder
from memory3.codec.payload import ExplicitMemory
from memory3.runtime.attention import AttentionShares, QueryRecord
from memory_model.export.decoder import OPERATORS, decoder_graphs
from memory_model.nn.decoder import Attention, Decoder, MemoryBatch
from tests.memory_model.export.random_graphs import BUDGETS, PREFIX, WINDOW, config_of, exported, memories, weights_of
from tests.memory_model.tiny import chunk_memories, random_model

ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {},
    "biases": {"attention_bias": True},
    "normed": {"qk_norm": True},
    "plain layer": {"plain_layers": (0,)},
}


def softmax_shares(model: Decoder, ids: list[int], read: list[ExplicitMemory]) -> np.ndarray:
    """[tokens, memories] of one text behind the prefix: the softmax of every head that reads, over all its keys."""
    found: list[Tensor] = []
    attended = Attention._with_memory

    def watched(self: Attention, q: Tensor, k: Tensor, v: Tensor, memory: MemoryBatch, chunk: Tensor) -> Tensor:
        count, T = memory.valid.shape[2], q.shape[3]
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        for head in range(q.shape[1]):
            rows = self.rows_Ht[head][self.filled_Ht[head]]
            own = memory.keys[0, 0][:, rows].flatten(0, 1)
            filled = memory.valid[0, 0][:, rows].flatten()
            scores = q[0, head] @ torch.cat((own, k[0, head])).T / self.config.head_dim**0.5  # [G, T, keys]
            seen = torch.cat((filled.expand(T, -1) & (chunk[0] >= 0)[:, None], causal), dim=1)
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)[..., : len(own)]
            found.extend(weights.unflatten(-1, (count, -1)).sum(-1))
        return attended(self, q, k, v, memory, chunk)

    positions = torch.tensor([[i if i < PREFIX else i + WINDOW for i in range(len(ids))]])
    chunk_of = torch.tensor([[-1] * PREFIX + [0] * (len(ids) - PREFIX)])
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(Attention, "_with_memory", watched)
        model.hidden(torch.tensor([ids]), positions, memory=chunk_memories([read], model.config), chunk_BT=chunk_of)
    return np.asarray(torch.stack(found).mean(0).numpy())


def decoder_shares(
    model: Decoder, folder: Path, variant: str, ids: list[int], read: list[ExplicitMemory], steps: int
) -> AttentionShares:
    """Of the tokens whose logits choose the last `steps` tokens and one more."""
    sequence = exported(model, folder, variant=variant, prefix=tuple(ids[:PREFIX]))
    sequence.begin([], memory=True)
    sequence.record = record = QueryRecord()
    sequence.inject(read)
    first = len(ids) - steps
    sequence.read(ids[PREFIX:first])
    for token in ids[first:]:
        sequence.read([token])
    rows = range(first - 1, len(ids))
    return sequence.shares(record.take(rows), rows)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("variant", [*OPERATORS, "torch"])
def test_shares_are_those_of_the_models_own_softmax(budget: str, variant: str, tmp_path: Path) -> None:
    model = random_model(config_of(budget))
    read = memories(model.config, 4, 3)
    ids = np.random.default_rng(0).integers(0, 200, 82).tolist()
    got = decoder_shares(model, tmp_path, variant, ids, read, 7)
    np.testing.assert_allclose(got.memories, softmax_shares(model, ids, read)[-8:], atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("variant", [*OPERATORS, "torch"])
def test_every_architectures_queries_are_those_that_attend(architecture: str, variant: str, tmp_path: Path) -> None:
    model = random_model(config_of("unequal heads", **ARCHITECTURES[architecture]))
    read = memories(model.config, 2, 5)
    ids = np.random.default_rng(1).integers(0, 200, 30).tolist()
    got = decoder_shares(model, tmp_path, variant, ids, read, 3)
    np.testing.assert_allclose(got.memories, softmax_shares(model, ids, read)[-4:], atol=1e-5)


def test_a_memorys_tokens_add_up_to_its_share_where_heads_keep_them_all(tmp_path: Path) -> None:
    model = random_model(config_of("one head"))
    read = memories(model.config, 3, 7)
    ids = np.random.default_rng(2).integers(0, 200, 20).tolist()
    got = decoder_shares(model, tmp_path, "fused", ids, read, 2)
    np.testing.assert_allclose(got.tokens.sum(2), got.memories, rtol=1e-5)
    for number, memory in enumerate(read):
        assert (got.tokens[:, number, : memory.tokens] > 0).all()
        assert not got.tokens[:, number, memory.tokens :].any()


def test_a_graph_without_the_outputs_still_reads_and_says_that_it_gives_no_queries(tmp_path: Path) -> None:
    model, path = random_model(config_of("one head")), tmp_path / "decoder.onnx"
    graph = decoder_graphs(weights_of(model), model.config)["fused"]
    graph._outputs = [output for output in graph._outputs if "queries" not in output.name]
    graph.save(path)
    backend = open_decoder(path, threads=1, provider="cpu")
    assert not backend.records_queries
    assert BatchingDecoder(backend, [1, 2, 3], context=300, parallel=1).sequence().read([4]).shape == (1, 200)
