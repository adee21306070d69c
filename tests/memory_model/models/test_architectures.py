"""Every architecture equals transformers: logits, exported graph, memories read back; int4 within a bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.providers import open_decoder
from edge_client.decoder.sequence import Sequence as Text
from memory3.config import ModelConfig, parse_budget
from memory3.text.chat import prefix_ids
from memory_model.export.decoder import decoder_graphs
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel, load_model
from memory_model.nn.writing import stack_memories
from tests.memory_model.models.published import ARCHITECTURES, TEXT, published

TOLERANCE = 1e-4
INT4_DIVERGENCE = 0.15
"""Nats between the float32 and the int4 graph's predictions. Random weights are the hardest case for rounding."""


@dataclass(frozen=True)
class Pair:
    """The same checkpoint in transformers and here, with every token of every head in memory."""

    theirs: Any
    loaded: LoadedModel


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("base")
    theirs = published(folder, request.param)
    out = folder.parent / f"{folder.name}-model"
    made = ModelFolder.create(folder, out, memory=lambda config: parse_budget("all", config, 32))
    return Pair(theirs, load_model(made))


def their_logits(model: Any, ids: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    with torch.inference_mode():
        found = model(input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions]))
    return np.asarray(found.logits[0].float().numpy())


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)


def exported(loaded: LoadedModel, folder: Path, precision: str, variant: str, prefix: Sequence[int]) -> Text:
    weights = {name: tensor.numpy() for name, tensor in loaded.model.state_dict().items()}
    graphs = decoder_graphs(weights, loaded.config, precision, operators=[variant])
    graphs[variant].save(folder / "decoder.onnx")
    graph = open_decoder(folder / "decoder.onnx", threads=1, provider="cpu")
    return BatchingDecoder(graph, prefix, context=256, parallel=1).sequence()


def memory_case(loaded: LoadedModel) -> tuple[list[int], list[int], list[int], list[int]]:
    """Prefix, reference and text ids; and the positions of all three when the text reads the reference as memory."""
    prefix = prefix_ids(loaded.tokenizer, loaded.config.memory)
    reference, text = loaded.tokenizer.encode(TEXT)[:24], loaded.tokenizer.encode("Is it Paris?")
    P, first = len(prefix), len(prefix) + loaded.config.memory.reference_tokens
    positions = [*range(P + len(reference)), *range(first, first + len(text))]
    return prefix, reference, text, positions


def test_the_torch_decoder_has_transformers_logits(pair: Pair) -> None:
    ids = pair.loaded.tokenizer.encode(TEXT)
    positions = [*range(20), *range(90, 70 + len(ids))]
    with torch.inference_mode():
        hidden = pair.loaded.model.hidden(torch.tensor([ids]), torch.tensor([positions]))
        ours = pair.loaded.model.head(hidden)[0].numpy()
    close(ours, their_logits(pair.theirs, ids, positions))


def test_a_memory_of_all_tokens_is_read_as_transformers_reads_the_text(pair: Pair) -> None:
    loaded = pair.loaded
    prefix, reference, text, positions = memory_case(loaded)
    written = loaded.writer.write([loaded.tokenizer.decode(reference)])
    read = stack_memories([written], loaded.config)
    chunk = torch.tensor([[-1] * len(prefix) + [0] * len(text)])
    own = positions[: len(prefix)] + positions[-len(text) :]
    with torch.inference_mode():
        hidden = loaded.model.hidden(torch.tensor([prefix + text]), torch.tensor([own]), memory=read, chunk_BT=chunk)
        ours = loaded.model.head(hidden)[0, len(prefix) :].numpy()
    close(ours, their_logits(pair.theirs, prefix + reference + text, positions)[-len(text) :])


@pytest.mark.parametrize("variant", ["standard", "fused"])
def test_the_exported_graph_reads_memories_as_transformers_text(pair: Pair, tmp_path: Path, variant: str) -> None:
    prefix, reference, text, positions = memory_case(pair.loaded)
    sequence = exported(pair.loaded, tmp_path, "float32", variant, prefix)
    sequence.begin(text, memory=True)
    sequence.inject(pair.loaded.writer.write([pair.loaded.tokenizer.decode(reference)]))
    ours = sequence.read(text, all_logits=True)
    close(ours, their_logits(pair.theirs, prefix + reference + text, positions)[-len(text) :])


def test_int4_stays_within_its_bound(pair: Pair, tmp_path: Path) -> None:
    ids = pair.loaded.tokenizer.encode(TEXT)[:60]
    first = 1 + pair.loaded.config.memory.reference_tokens
    ours = exported(pair.loaded, tmp_path, "int4", "fused", ids[:1]).read(ids[1:], all_logits=True)
    theirs = their_logits(pair.theirs, ids, [0, *range(first, first + len(ids) - 1)])[1:]
    right, found = (torch.tensor(x).log_softmax(-1) for x in (theirs, ours))
    divergence = torch.nn.functional.kl_div(found, right, reduction="batchmean", log_target=True)
    assert float(divergence) < INT4_DIVERGENCE


def test_a_shape_survives_its_form_in_a_bundle(pair: Pair) -> None:
    assert ModelConfig.from_dict(pair.loaded.config.to_dict()) == pair.loaded.config
