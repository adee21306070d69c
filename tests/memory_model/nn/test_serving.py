"""The batched decoder has the logits of the decoder that reads texts whole."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from memory3.config import MemoryConfig, MemoryHead, ModelConfig
from memory3.errors import InvalidInput
from memory3.text.chat import text_start
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel, load_model
from memory_model.nn import serving
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.generate import FirstBias, greedy_and_nll
from memory_model.nn.serving import BatchedDecoder
from memory_model.nn.writing import pad_ids, write_memories
from tests.memory_model.models.published import ARCHITECTURES, published
from tests.memory_model.tiny import PREFIX, tiny_model

TOLERANCE = 1e-4
TEXTS, ADDED = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [14], [15, 16, 17, 18]], [[20, 21, 22], [23, 24, 25], [26, 27, 28]]
REFERENCES = [[30, 31, 32], list(range(33, 49)), [50, 51]]
SEEN = torch.tensor([[[0, 1]], [[2, -1]], [[1, 2]]])


def random_like_published(tmp_path: Path, name: str) -> LoadedModel:
    """An architecture's tiny checkpoint with memories of unequal length in some heads of some layers."""
    published(tmp_path / "base", name)

    def budget(config: ModelConfig) -> MemoryConfig:
        last = config.kv_heads - 1
        table = [(0, last, 5), (1, 0, 16), (1, last, 16 if last == 0 else 3), (3, 0, 4)]
        return MemoryConfig(tuple(MemoryHead(*row) for row in dict.fromkeys(table)), 16)

    return load_model(ModelFolder.create(tmp_path / "base", tmp_path / "model", memory=budget))


def written(model: Decoder, references: Sequence[Sequence[int]] = REFERENCES) -> MemoryBatch:
    """Memories [N, budget, d]."""
    with torch.inference_mode():
        return write_memories(model, *pad_ids(references), PREFIX)


def reference_logits(
    model: Decoder, text: Sequence[int], memory: MemoryBatch | None, prefix: Sequence[int] = PREFIX
) -> torch.Tensor:
    """Logits [T, V] of a text behind the prefix, in one pass without caches; memory: [1, 1, m]."""
    P, first = len(prefix), text_start(prefix, model.config.memory)
    positions = torch.tensor([[*range(P), *range(first, first + len(text))]])
    chunk = torch.tensor([[-1] * P + [0] * len(text)]) if memory else None
    with torch.inference_mode():
        hidden = model.hidden(torch.tensor([[*prefix, *text]]), positions, memory=memory, chunk_BT=chunk)
        return model.head(hidden[0, P:])


def of_row(memory: MemoryBatch, row: int) -> MemoryBatch:
    return MemoryBatch(*(x[row : row + 1] for x in (memory.keys, memory.values, memory.valid)))


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_a_batch_of_uneven_texts_has_the_reference_decoders_logits(tmp_path: Path, name: str) -> None:
    model = random_like_published(tmp_path, name).model
    memory = written(model).select(SEEN)
    for read in (None, memory):
        engine = BatchedDecoder(model, PREFIX, 3, 40)
        if read is not None:
            engine.inject([0, 1, 2], read)
        found = [engine.prefill([0, 1, 2], TEXTS)]
        found += [engine.step([added[n] for added in ADDED]).clone() for n in range(3)]
        for row, (text, added) in enumerate(zip(TEXTS, ADDED, strict=True)):
            own = None if read is None else of_row(read, row)
            expected = reference_logits(model, [*text, *added], own)[len(text) - 1 :]
            ours = torch.stack([logits[row] for logits in found])
            torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


def test_sequences_join_wait_and_leave_at_any_step() -> None:
    model = tiny_model()
    memory = written(model).select(SEEN)
    engine = BatchedDecoder(model, PREFIX, 3, 24)
    engine.inject([2], of_row(memory, 0))
    engine.prefill([2], [TEXTS[0][:4]])
    engine.prefill([2, 0], [TEXTS[0][4:], TEXTS[2]])  # a prompt in pieces, beside another one
    first = engine.step([-1, -1, 20]).clone()
    engine.inject([1], of_row(memory, 1))
    engine.prefill([1], [TEXTS[1]])
    second = engine.step([26, 23, -1]).clone()
    engine.clear([1])
    engine.prefill([1], [TEXTS[2]])
    third = engine.step([-1, 26, 21])
    for ours, text, own in (
        (first[2], [*TEXTS[0], 20], of_row(memory, 0)),
        (second[0], [*TEXTS[2], 26], None),
        (second[1], [*TEXTS[1], 23], of_row(memory, 1)),
        (third[1], [*TEXTS[2], 26], None),
        (third[2], [*TEXTS[0], 20, 21], of_row(memory, 0)),
    ):
        expected = reference_logits(model, text, own)[-1]
        torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


def test_a_full_sequence_is_refused_and_stays_as_it_was() -> None:
    model = tiny_model()
    engine = BatchedDecoder(model, PREFIX, 2, len(PREFIX) + 4)
    engine.prefill([0, 1], [[5, 6, 7, 8], [5, 6]])
    with pytest.raises(InvalidInput, match="full"):
        engine.step([9, 9])
    with pytest.raises(InvalidInput, match="1 to 7 fit"):
        engine.prefill([1], [[7, 8, 9]])
    engine.step([-1, 7])
    ours = engine.step([-1, 8])[1]
    torch.testing.assert_close(ours, reference_logits(model, [5, 6, 7, 8], None)[-1], atol=TOLERANCE, rtol=0)
    engine.clear([0])
    found = engine.prefill([0], [[5, 6, 7, 8]])[0]
    torch.testing.assert_close(found, ours, atol=TOLERANCE, rtol=0)


def test_a_sequence_that_waited_beside_a_full_one_reads_all_of_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_SHORTEST", 8)
    model = tiny_model()
    engine = BatchedDecoder(model, PREFIX, 3, 24)
    texts = [list(range(5, 26)), list(range(30, 42)), [50, 51]]
    engine.prefill([0, 1, 2], texts)
    engine.step([-1, -1, 7])
    ours = engine.step([-1, 8, 9])
    for row, text in ((1, [*texts[1], 8]), (2, [*texts[2], 7, 9])):
        torch.testing.assert_close(ours[row], reference_logits(model, text, None)[-1], atol=TOLERANCE, rtol=0)


def test_what_does_not_fit_is_refused() -> None:
    model = tiny_model()
    engine = BatchedDecoder(model, PREFIX, 2, 20)
    with pytest.raises(InvalidInput, match="longer than the prefix"):
        BatchedDecoder(model, PREFIX, 2, len(PREFIX))
    for sequences in ([], [0, 0], [2]):
        with pytest.raises(InvalidInput):
            engine.clear(sequences)
    with pytest.raises(InvalidInput, match="5 slots"):
        engine.inject([0], written(model).select(torch.zeros(1, 1, 6, dtype=torch.long)))


PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15]]


def memories(model: Decoder) -> MemoryBatch:
    return written(model, [[20, 21, 22], [23] * 9, [24, 25]]).select(SEEN)


@pytest.mark.parametrize("with_memory", [False, True])
def test_answers_and_likelihoods_equal_one_prompt_at_a_time(with_memory: bool) -> None:
    model = tiny_model()
    memory = memories(model) if with_memory else None
    given = [[30, 31], [32, 33, 34, 35], [36]]
    bias = FirstBias(40, [0.0, 100.0, 0.0], [2, 1, 2])
    greedily, nll = greedy_and_nll(model, PROMPTS, given, PREFIX, memory, [63], longest=6, first_bias=bias)
    for row, prompt in enumerate(PROMPTS):
        own = memory and of_row(memory, row)
        answer: list[int] = []
        while len(answer) < 6:
            logits = reference_logits(model, [*prompt, *answer], own)[-1].clone()
            logits[40] += 0.0 if answer else bias.values[row]
            if (token := int(logits.argmax())) == 63:
                break
            answer.append(token)
        assert greedily[row] == answer
        scores = reference_logits(model, [*prompt, *given[row]], own)[len(prompt) - 1 : -1].log_softmax(-1)
        expected = [-float(of_token[token]) for of_token, token in zip(scores, given[row], strict=True)]
        assert nll[row] == pytest.approx(sum(expected) / len(expected), rel=1e-4)
    assert greedily[1][0] == 40
