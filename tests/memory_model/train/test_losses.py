"""Passes over rows of like lengths give the losses and gradients of one padded pass."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from memory3.codec.codec import ExactCodec
from memory3.codec.payload import ExplicitMemory, MemoryFormat
from memory3.config import MemoryConfig, MemoryHead
from memory_model.data.batches import Batch
from memory_model.data.conversations import Sizes
from memory_model.nn.adapter import checkpoint_layers
from memory_model.nn.decoder import MemoryBatch
from memory_model.train.coding import through_codec, with_codec_noise
from memory_model.train.head_ranking import HeadRanking, Round, prune
from memory_model.train.losses import batch_gradients
from tests.edge_client.tiny_bundle import tiny_config, tiny_loaded
from tests.memory_model.data.small_sources import facts, keeping, people
from tests.memory_model.tiny import PREFIX
from tests.memory_model.train.plain import plain_losses
from tests.memory_model.train.tuned import gradients, tuned

MIXED = Sizes(written=6, conversations=12, as_text=0.3)
MAKERS: dict[str, Callable[[], Batch]] = {
    "facts": lambda: facts(MIXED).next(),
    "questions": lambda: people(MIXED).next(),
    "keeping": lambda: keeping().next(),
    "distilled": lambda: facts(replace(MIXED, turns=1, distilled=0.5)).next(),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("most_tokens", [8192, 60], ids=["", "small passes"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MAKERS)
def test_losses_and_gradients_of_a_padded_pass(name: str, kind: torch.dtype, most_tokens: int, threads: int) -> None:
    batch = MAKERS[name]()
    model, parameters = tuned()
    model.to(kind)
    answers, divergence = plain_losses(model, batch, PREFIX)
    (0.25 * (answers + divergence)).backward()
    expected = gradients(parameters)
    for parameter in parameters:
        parameter.grad = None
    done = batch_gradients(model, batch, PREFIX, weight=0.25, most_tokens=most_tokens, threads=threads)
    # bfloat16 rounds to 2^-8, here summed in another order.
    exact = kind == torch.float32
    assert done.answers == pytest.approx(float(answers.detach()), rel=1e-5 if exact else 0.02)
    assert done.kept == pytest.approx(float(divergence.detach()), rel=1e-4 if exact else 0.05)
    difference = (gradients(parameters) - expected).norm() / expected.norm()
    assert float(difference) < (1e-5 if exact else 0.05)


def test_recomputing_layers_changes_no_gradient() -> None:
    batch, found = facts(MIXED).next(), []
    for recompute in (False, True):
        model, parameters = tuned()
        if recompute:
            checkpoint_layers(model)
        batch_gradients(model.float(), batch, PREFIX)
        found.append(gradients(parameters))
    assert torch.equal(*found)


def test_codec_noise_has_the_asked_share_and_spares_rows_that_hold_nothing() -> None:
    torch.manual_seed(0)
    valid = torch.ones(200, 10, dtype=torch.bool)
    valid[:, 7:] = False
    x = torch.randn(200, 10, 8) * 3 * valid[..., None]
    noisy = with_codec_noise(MemoryBatch(x, x, valid), 0.04)
    noise = (noisy.keys - x)[valid]
    assert float(noise.var() / x[valid].var()) == pytest.approx(0.04, rel=0.1)
    assert torch.equal(noisy.keys[~valid], x[~valid])


def test_through_the_codec_memories_are_what_a_reader_decodes() -> None:
    config, lengths = tiny_config(), torch.tensor([32, 10, 20])
    kept = [torch.arange(head.tokens) < lengths[:, None] for head in config.memory.heads]
    valid = torch.cat(kept, dim=1)
    keys, values = (torch.randn(3, config.memory.budget, 8) * valid[..., None] for _ in range(2))
    codec = ExactCodec(8, "float16")
    coded = through_codec(MemoryBatch(keys, values, valid), config.memory, codec)
    form = MemoryFormat(config, "11" * 32, codec)
    written = [ExplicitMemory(*m) for m in zip(keys.numpy(), values.numpy(), lengths.tolist(), strict=True)]
    for number, read in enumerate(form.decode(form.encode(written))):
        assert torch.equal(coded.keys[number], torch.from_numpy(read.keys))
        assert torch.equal(coded.values[number], torch.from_numpy(read.values))
    assert not torch.equal(coded.keys, keys)


# Heads are ranked by what the answers depend on, and pruned in rounds.

READER = MemoryHead(2, 1, 32)


def ranking() -> HeadRanking:
    """Of four memory heads; every head's output but the reader's is cut off."""
    heads = tuple(MemoryHead(layer, head, 32) for layer in (0, 2) for head in (0, 1))
    config = tiny_config().with_memory(MemoryConfig(heads, reference_tokens=32, chunk_tokens=16))
    model = tiny_loaded(config=config).model
    width = config.group * config.head_dim
    with torch.no_grad():
        for layer in range(config.layers):
            for head in range(config.kv_heads):
                if (layer, head) != (READER.layer, READER.head):
                    model.blocks[layer].self_attn.o_proj.weight[:, head * width : (head + 1) * width] = 0
    return HeadRanking(model, [facts().next()], PREFIX)


def test_pruning_keeps_the_only_head_that_can_read() -> None:
    reported: list[Round] = []
    found = prune(ranking(), 1, reported.append)
    assert found.selected == (READER,)
    assert [len(r.heads) for r in found.rounds] == [4, 3, 2, 1]
    assert reported == found.rounds
    losses = [r.loss for r in found.rounds]
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-3), "the other heads contribute nothing"
