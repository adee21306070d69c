"""Opening the decoder: its threads, memory that goes back, memories and contexts that do not fit."""

import json
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.decoder import threads
from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.kv import Caches
from edge_client.decoder.providers import open_decoder
from edge_client.decoder.sequence import CachedSequence
from edge_client.errors import ProviderError
from memory3.codec.payload import ExplicitMemory
from memory3.errors import CorruptFile, InvalidInput, Memory3Error, MissingFile
from memory3.files.bundle import Bundle
from memory3.process_memory import return_free_memory
from memory3.runtime.backend import DecoderBackend
from memory_model.export.decoder import decoder_graphs
from memory_model.models.engine import TorchBackend
from testing.processes import resident_bytes
from tests.edge_client.tiny_bundle import random_memory, tiny_config, tiny_loaded

BLOCK_BYTES, BLOCKS, KEPT_EVERY = 32 << 10, 2000, 16


def test_the_number_of_threads_is_measured_once_and_kept_with_the_bundle(
    tiny: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(tiny.folder, tmp_path / "bundle", ignore=shutil.ignore_patterns("cache")))
    measured: list[int] = []

    def step(opened: DecoderBackend) -> float:
        measured.append(opened.threads)
        return 10.0 / opened.threads

    monkeypatch.setattr(threads, "step_ms", step)
    monkeypatch.setattr(threads, "physical_cores", lambda: 3)
    monkeypatch.setattr(threads, "processor_s", lambda: (0.0, 0.0))  # nothing else works
    assert open_decoder(folder / "decoder.onnx", provider="cpu").threads == 3
    assert measured == [1, 2, 3]
    assert open_decoder(folder / "decoder.onnx", provider="cpu").threads == 3
    assert measured == [1, 2, 3]
    monkeypatch.setattr(threads, "physical_cores", lambda: 2)  # another machine: measured again
    assert open_decoder(folder / "decoder.onnx", provider="cpu").threads == 2
    assert open_decoder(folder / "decoder.onnx", threads=1).threads == 1
    assert measured == [1, 2, 3, 1, 2]
    (folder / "cache" / "threads.json").write_text("garbage")
    assert open_decoder(folder / "decoder.onnx", provider="cpu").threads == 2


def test_free_pages_between_others_go_back() -> None:
    blocks = [np.ones(BLOCK_BYTES, np.uint8) for _ in range(BLOCKS)]
    kept = blocks[::KEPT_EVERY]  # the heap's end is in use, so nothing goes back by itself
    full = resident_bytes()
    del blocks
    return_free_memory()
    returned = full - resident_bytes()
    assert all(block.all() for block in kept)
    if platform.libc_ver()[0] == "glibc":
        assert returned > BLOCK_BYTES * BLOCKS // 2


CONFIG = tiny_config()


def test_a_context_that_no_memory_holds_is_called_so() -> None:
    with pytest.raises(ProviderError, match="shorter context") as raised:
        Caches(CONFIG, 10**13)
    assert raised.value.reason == "OUT_OF_MEMORY"


# One sequence of the decoder: what is wrong is named and changes nothing, what was read is used again.

PREFIX, CONTEXT = [1, 2, 3], 403


@pytest.fixture(scope="module", params=[False, True], ids=["onnx", "torch"])
def decoder(tiny: Bundle, request: pytest.FixtureRequest) -> BatchingDecoder:
    engine = TorchBackend(tiny_loaded().model) if request.param else open_decoder(tiny.decoder, threads=1)
    return BatchingDecoder(engine, PREFIX, context=CONTEXT, parallel=2)


@pytest.fixture
def sequence(decoder: BatchingDecoder) -> CachedSequence:
    return decoder.sequence()


def recalled(seed: int, count: int = 3) -> list[ExplicitMemory]:
    return [random_memory(tiny_loaded().config, 10 * seed + n) for n in range(count)]


@given(st.lists(st.integers(-5, 270), max_size=80), st.integers(0, 6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_input_is_answered_or_refused_by_name(
    decoder: BatchingDecoder, tokens: list[int], count: int, memory: bool
) -> None:
    sequence = decoder.sequence()
    try:
        sequence.begin(tokens, memory=memory)
        sequence.inject(recalled(1, count))
        assert np.isfinite(sequence.read(tokens)).all()
    except Memory3Error:
        assert not sequence.tokens


def test_a_context_is_at_most_what_the_model_was_trained_for(tiny: Bundle, tmp_path: Path) -> None:
    loaded = tiny_loaded()
    object.__setattr__(loaded.config, "positions", 256)
    weights = {k: v.numpy() for k, v in loaded.model.state_dict().items()}
    decoder_graphs(weights, loaded.config)["standard"].save(tmp_path / "decoder.onnx")
    graph = open_decoder(tmp_path / "decoder.onnx", threads=1)
    assert BatchingDecoder(graph, PREFIX).context == 256
    assert BatchingDecoder(graph, PREFIX, context=100).room == 97
    with pytest.raises(InvalidInput, match="257 tokens exceeds the 256"):
        BatchingDecoder(graph, PREFIX, context=257)
    for context, parallel in ((10, 1), (100, 0)):
        with pytest.raises(InvalidInput, match="at least"):
            BatchingDecoder(graph, PREFIX, context=context, parallel=parallel)
    longer = BatchingDecoder(open_decoder(tiny.decoder, threads=1), PREFIX, context=5000, parallel=1).sequence()
    assert np.isfinite(longer.read([1] * 4500)).all()


# What is used again. `answer` reads as an answer does: every chunk of 16 with the memories that its text up to its end
# finds, and then greedily a few tokens, of which the last is not read.


def answer(
    sequence: CachedSequence,
    ids: list[int],
    *,
    memory: bool = True,
    steps: int = 5,
    missing: frozenset[int] = frozenset(),
) -> tuple[int, list[int]]:
    kept = sequence.begin(ids, memory=memory)
    start = kept
    while start < len(ids):
        end = min((start // 16 + 1) * 16, len(ids))
        if memory and start // 16 in missing:
            sequence.miss()
        elif memory:
            sequence.inject(recalled(hash(tuple(ids[:end])) % 1000))
        logits = sequence.read(ids[start:end])
        start = end
    said = []
    for number in range(steps):
        said.append(int(logits[-1].argmax()))
        if number < steps - 1:
            logits = sequence.read([said[-1]])
    sequence.end()
    return kept, said


def fresh(sequence: CachedSequence, ids: list[int], *, memory: bool = True) -> list[int]:
    alone = BatchingDecoder(sequence.decoder.backend, PREFIX, context=CONTEXT, parallel=1)
    return answer(alone.sequence(), ids, memory=memory)[1]


def drawn(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(4, 250, count).tolist()


PROMPT = drawn(0, 55)


@pytest.mark.parametrize("memory", [True, False])
def test_a_retry_reads_one_token_and_says_the_same(sequence: CachedSequence, memory: bool) -> None:
    kept, first = answer(sequence, PROMPT, memory=memory)
    again, second = answer(sequence, PROMPT, memory=memory)
    assert (kept, again) == (0, 54)
    assert first == second == fresh(sequence, PROMPT, memory=memory)


@pytest.mark.parametrize(("memory", "kept"), [(True, 32), (False, 40)])
def test_an_edit_is_read_from_the_chunk_that_it_changes(sequence: CachedSequence, memory: bool, kept: int) -> None:
    answer(sequence, PROMPT, memory=memory)
    edited = [*PROMPT[:40], *drawn(1, 20)]
    assert answer(sequence, edited, memory=memory) == (kept, fresh(sequence, edited, memory=memory))


def test_a_turn_that_was_taken_back_leaves_what_was_before_it(
    decoder: BatchingDecoder, sequence: CachedSequence
) -> None:
    _, said = answer(sequence, PROMPT)
    kept, _ = answer(sequence, [*PROMPT, *said, *drawn(2, 30)])
    assert kept == len(PROMPT) + len(said) - 1, "what goes on keeps all, the answer too"
    other = decoder.sequence("another source")
    answer(other, PROMPT)
    instead = [*PROMPT, *said, *drawn(3, 30)]
    assert answer(sequence, instead) == answer(other, instead)


def test_a_chunk_whose_memories_failed_is_read_again_by_a_retry_but_not_by_the_next_turn(
    sequence: CachedSequence,
) -> None:
    _, said = answer(sequence, PROMPT, missing=frozenset({2}))
    assert sequence.valid([*PROMPT, *said, *drawn(2, 10)], memory=True) == len(PROMPT) + 4
    assert answer(sequence, PROMPT) == (32, fresh(sequence, PROMPT))


@pytest.mark.parametrize("memory", [True, False])
def test_what_another_sequence_has_read_is_copied(decoder: BatchingDecoder, memory: bool) -> None:
    """A shared system prompt, say. Of sequences that read from elsewhere nothing is taken."""
    sequences = [decoder.sequence(), decoder.sequence(), decoder.sequence()]  # more than there are places
    prompts = [[*drawn(7, 40), *drawn(8 + n, 10)] for n in range(4)]
    found = [answer(s, p, memory=memory) for s, p in zip(sequences, prompts, strict=False)]
    assert [kept for kept, _ in found] == [0, *[32 if memory else 40] * 2]
    assert [said for _, said in found] == [fresh(sequences[0], p, memory=memory) for p in prompts[:3]]
    assert answer(decoder.sequence("elsewhere"), prompts[3], memory=memory)[0] == 0


# Files.


def test_files_that_are_no_decoder_are_named(tiny: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    with pytest.raises(MissingFile, match="memory-model export"):
        open_decoder(path, threads=1)
    for content in (b"", b"garbage", tiny.decoder.read_bytes()[:1000], (tiny.folder / "embedder.onnx").read_bytes()):
        path.write_bytes(content)
        with pytest.raises((CorruptFile, ProviderError), match=r"decoder\.onnx"):
            open_decoder(path, threads=1)
    path.write_bytes(tiny.decoder.read_bytes())
    with pytest.raises((CorruptFile, ProviderError)):  # its weights are not beside it
        open_decoder(path, threads=1)


def test_properties_that_do_not_describe_the_graph_are_refused(tmp_path: Path) -> None:
    loaded = tiny_loaded()
    weights = {k: v.numpy() for k, v in loaded.model.state_dict().items()}
    graph = decoder_graphs(weights, loaded.config)["standard"]
    graph.metadata["config"] = json.dumps({"layers": 3})
    graph.save(tmp_path / "decoder.onnx")
    with pytest.raises(CorruptFile):
        open_decoder(tmp_path / "decoder.onnx", threads=1)
