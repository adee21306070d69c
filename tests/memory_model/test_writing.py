"""Writing behind a context, and in batches of so many tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memory_model.errors import InvalidInput
from memory_model.nn.decoder import MemoryBatch, rotate
from memory_model.nn.device import fitting_batch_tokens, working_bytes_per_token, writing_device
from memory_model.nn.writing import BATCH_TOKENS, MemoryWriter, pad_ids, rows_that_fit, write_memories
from memory_model.references import contexts, split
from tests.edge_client.tiny_bundle import tiny_loaded
from tests.memory_model.tiny import PREFIX, tiny_config, tiny_model

REFERENCES = [[5, 8, 13, 21, 34, 55, 2, 3], [40, 41, 42, 43, 44]]
CONTEXTS = [[11, 12, 13, 14, 15, 16], []]


def written(context: Sequence[Sequence[int]] | None, references: Sequence[Sequence[int]]) -> MemoryBatch:
    ids, lengths = pad_ids(references)
    before = pad_ids(context) if context is not None else None
    with torch.inference_mode():
        return write_memories(tiny_model(), ids, lengths, PREFIX, context=before)


def test_a_memory_behind_a_context_is_what_the_whole_sequence_gives_moved_behind_the_prefix() -> None:
    model, (context, _), (reference, _) = tiny_model(), CONTEXTS, REFERENCES
    ids = torch.tensor([[*PREFIX, *context, *reference]])
    with torch.inference_mode():
        _, caches = model.hidden(ids, torch.arange(ids.shape[1])[None])
        before, P = len(context), len(PREFIX)
        own = slice(P + before, None)
        back = model.rotary(torch.full((1, len(reference)), -before))
        expected_keys = rotate(caches[2][0][:, :, own], *back)[0, 0]
    got = written([context], [reference])
    start = tiny_config().memory.offsets[1]  # of head (2, 0), which keeps every token of this reference
    rows = slice(start, start + len(reference))
    assert got.valid[0, rows].all()
    torch.testing.assert_close(got.keys[0, rows], expected_keys, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.values[0, rows], caches[2][1][0, 0, own], atol=1e-5, rtol=1e-5)


def test_a_context_changes_what_follows_it_and_nothing_else() -> None:
    mixed, plain = written(CONTEXTS, REFERENCES), written(None, REFERENCES)
    torch.testing.assert_close(mixed.keys[1], plain.keys[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixed.values[1], plain.values[1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(mixed.values[0], plain.values[0], atol=1e-3)
    torch.testing.assert_close(mixed.valid, plain.valid)


def test_contexts_are_the_document_before_each_reference_with_its_title_once() -> None:
    count = lambda text: len(text.split())  # noqa: E731
    text = "\n".join(f"Line {n} has words." for n in range(9))
    references = split(text, "The title", count, 10)
    before = contexts(references, "The title", count, 11)
    assert len(references) > 3
    assert before[0] == ""
    assert before[1] == "The title\nLine 0 has words.\nLine 1 has words.\n"
    assert before[2] == "The title\nLine 2 has words.\nLine 3 has words.\n"
    assert contexts(references, "The title", count, 5) == [""] * len(references)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 128)), min_size=1), st.integers(0, 9),
    st.integers(1, 4000),
)  # fmt: skip
def test_a_pass_takes_as_many_as_fit_and_at_least_one(
    lengths: list[tuple[int, int]], prefix: int, batch_tokens: int
) -> None:
    def tokens(count: int) -> int:
        some = lengths[:count]
        return count * (prefix + max(c for c, _ in some) + max(r for _, r in some))

    rows = rows_that_fit(lengths, prefix, batch_tokens)
    assert rows >= 1
    assert rows == 1 or tokens(rows) <= batch_tokens
    assert rows == len(lengths) or tokens(rows + 1) > batch_tokens


TEXTS = ["Oslo, Norway.", "Lima.", "A reference of more words."]


@pytest.fixture(scope="module")
def writer() -> MemoryWriter:
    return tiny_loaded().writer


def test_memories_do_not_depend_on_the_batch_and_a_full_device_gets_smaller_ones(
    writer: MemoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = writer.write(TEXTS)
    forward, sizes = MemoryWriter._forward, []

    def small(
        self: MemoryWriter, ids: Sequence[Sequence[int]], before: Sequence[Sequence[int]]
    ) -> MemoryBatch:
        sizes.append(len(ids))
        if len(ids) > 1:
            raise torch.OutOfMemoryError("full")
        return forward(self, ids, before)

    monkeypatch.setattr(MemoryWriter, "_forward", small)
    monkeypatch.setattr(writer, "batch_tokens", writer.batch_tokens)
    alone = writer.write(TEXTS)
    assert (sizes[0], sizes[-1]) == (3, 1)
    assert writer.batch_tokens < 64
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.keys, other.keys, atol=1e-5)
        np.testing.assert_allclose(one.values, other.values, atol=1e-5)


def test_passes_come_one_by_one_and_have_every_reference_once(
    writer: MemoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "batch_tokens", 1)
    passes = list(writer.passes(TEXTS))
    assert sorted(place for places, _ in passes for place in places) == list(range(len(TEXTS)))
    tokens = [memories[0].tokens for _, memories in passes]
    assert tokens == sorted(tokens)
    assert len(passes) == len(TEXTS)


def test_bfloat16_writes_nearly_the_same_memories(writer: MemoryWriter) -> None:
    exact = writer.write(TEXTS[:1])[0]
    reduced = MemoryWriter(writer.model, writer.tokenizer, precision=torch.bfloat16).write(TEXTS[:1])[0]
    assert reduced.keys.dtype == np.float32
    error = np.linalg.norm(reduced.values - exact.values) / np.linalg.norm(exact.values)
    assert 0 < error < 0.1


def test_a_context_for_every_reference_or_for_none(writer: MemoryWriter) -> None:
    with pytest.raises(InvalidInput, match="1 contexts for 3"):
        writer.write(TEXTS, contexts=["before"])
    plain, empty = writer.write(TEXTS[:2]), writer.write(TEXTS[:2], contexts=["", ""])
    for one, other in zip(plain, empty, strict=True):
        np.testing.assert_array_equal(one.keys, other.keys)


def test_a_device_that_is_not_there_is_refused_with_what_to_do() -> None:
    assert writing_device("cpu").type == "cpu"
    assert writing_device("auto").type in ("cpu", "cuda")
    with pytest.raises(InvalidInput, match="give auto, cpu"):
        writing_device("toaster")
    with pytest.raises(InvalidInput, match="write on cpu"):
        writing_device("cuda:99")


def test_a_gpu_gets_the_tokens_that_half_of_its_free_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    config, gpu = tiny_config(), torch.device("cuda")
    each = working_bytes_per_token(config)
    assert fitting_batch_tokens(config, torch.device("cpu")) == BATCH_TOKENS
    for free_bytes, tokens in ((0, BATCH_TOKENS), (2 * each * 5000, 5000), (1 << 40, 1 << 16)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free_bytes: (free, free))
        assert fitting_batch_tokens(config, gpu) == tokens
