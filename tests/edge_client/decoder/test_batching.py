"""Many conversations in one decoder: each says what it would say alone, however they come together."""

from __future__ import annotations

import math
import random
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from edge_client.decoder import batching, scheduler, slots
from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.providers import open_decoder
from edge_client.decoder.sequence import CachedSequence
from edge_client.decoder.slots import IDLE_S
from edge_client.errors import ProviderError
from memory3.codec.payload import ExplicitMemory
from memory3.config import MemoryConfig, MemoryHead
from memory3.runtime.backend import DecoderBackend, RunInput
from memory_model.export.decoder import OPERATORS, decoder_graphs
from memory_model.models.engine import TorchBackend, TorchRunner
from tests.edge_client.tiny_bundle import random_memory
from tests.memory_model.tiny import random_model, tiny_config

PREFIX = [1, 2, 3]
HEADS = (MemoryHead(0, 1, 20), MemoryHead(1, 0, 5), MemoryHead(1, 1, 32))
CONFIG = tiny_config(
    layers=2,
    query_heads=4,
    kv_heads=2,
    head_dim=16,
    mlp_width=64,
    vocabulary=200,
    memory=MemoryConfig(HEADS, reference_tokens=32, chunk_tokens=16),
)


class Replaying(TorchBackend):
    """As on a GPU: steps of all places are replayed, and nothing is read beside them."""

    def runner(self, context: int, parallel: int, prefix: tuple[int, ...] = ()) -> TorchRunner:
        self.device, made = "cuda", super().runner(context, parallel, prefix)
        engine, logits = made._decoder, torch.zeros(parallel, CONFIG.vocabulary)
        for seen in engine._sizes:  # type: ignore[attr-defined]
            engine._graphs[seen] = SimpleNamespace(replay=lambda seen=seen: logits.copy_(engine._advance(seen))), logits
        return made


@pytest.fixture(scope="module", params=[*OPERATORS, "torch", "torch's graphs"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderBackend:
    if "torch" in request.param:
        return (TorchBackend if request.param == "torch" else Replaying)(random_model(CONFIG))
    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    weights = {name: tensor.numpy() for name, tensor in random_model(CONFIG).state_dict().items()}
    decoder_graphs(weights, CONFIG, operators=[request.param])[request.param].save(path)
    return open_decoder(path, threads=1)


@dataclass(frozen=True)
class Conversation:
    """A prompt, whether it has memories, how many tokens are generated, and after how many somebody cancels."""

    prompt: list[int]
    memory: bool
    steps: int
    cancel_after: int = 1000

    @classmethod
    def drawn(cls, rng: random.Random) -> Conversation:
        prompt = [rng.randrange(200) for _ in range(rng.randrange(1, 90))]
        steps = rng.randrange(1, 40)
        return cls(prompt, rng.random() < 0.6, steps, rng.randrange(steps) if rng.random() < 0.2 else 1000)

    def memories(self, number: int) -> list[ExplicitMemory]:
        seed = sum(self.prompt) + number
        return [random_memory(CONFIG, 10 * seed + n) for n in range(seed % 6)]

    def answer(self, sequence: CachedSequence, pause: Callable[[], None] = lambda: None) -> list[int]:
        """Greedy; memories for every chunk of the prompt, and others after 16 generated tokens."""
        said: list[int] = []
        start = sequence.begin(self.prompt, memory=self.memory)
        while start < len(self.prompt):
            end = min((start // 16 + 1) * 16, len(self.prompt))
            if self.memory:
                sequence.inject(self.memories(end))
            logits = sequence.read(self.prompt[start:end])
            start = end
        for number in range(min(self.steps, self.cancel_after)):
            said.append(int(logits[0].argmax()))
            pause()
            if self.memory and number % 16 == 15:
                sequence.inject(self.memories(number))
            logits = sequence.read([said[-1]])
        sequence.end()
        return said


@pytest.mark.parametrize("tokens", [[6], [6, 7]], ids=["steps", "prompts"])
def test_a_sequence_that_is_alone_reads_in_its_own_thread(
    graph: DecoderBackend, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = BatchingDecoder(graph, PREFIX, context=128, parallel=2)
    ran: list[int] = []
    run = decoder.scheduler._runner.run

    def recorded(*arguments: Any, **options: Any) -> np.ndarray:
        ran.append(threading.get_ident())
        return run(*arguments, **options)

    monkeypatch.setattr(decoder.scheduler._runner, "run", recorded)
    monkeypatch.setattr(scheduler, "LATELY_S", 60.0)
    one, other = decoder.sequence(), decoder.sequence()
    one.begin([4, 5], memory=False)
    one.read([4, 5])
    for _ in range(40):  # until the scheduler's thread waits again
        one.read(tokens)
        if ran[-1] == threading.get_ident():
            break
        time.sleep(0.02)
    assert ran[-1] == threading.get_ident()
    other.begin([7, 8], memory=False)
    other.read([7, 8])
    one.read([9])
    assert ran[-1] != threading.get_ident(), "another one decodes: their steps may be run together"


def test_a_request_that_the_decoder_has_taken_is_read_before_the_next_piece_of_a_lone_one(
    graph: DecoderBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = BatchingDecoder(graph, PREFIX, context=64, parallel=2)
    scheduler, slots = decoder.scheduler, []
    run = scheduler._runner.run

    def recording(slot: int, *arguments: Any, **options: Any) -> np.ndarray:
        slots.append(slot)
        return run(slot, *arguments, **options)

    monkeypatch.setattr(scheduler._runner, "run", recording)
    lone, other = decoder.sequence(), decoder.sequence()
    for sequence in (lone, other):
        sequence.begin([4, 5], memory=False)
    lone.read([6, 7])
    thread = threading.Thread(target=other.read, args=([7, 8],))
    with scheduler._owner:
        thread.start()
        while not scheduler._arrived:
            time.sleep(0.001)
    lone.read([6, 7])
    thread.join()
    assert slots[-1] == slots[0], "the other one's request came first"
    assert set(slots) == {0, 1}


@pytest.mark.parametrize(
    ("parallel", "seed"), [(8, 0), (3, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 2), (1, 3)))]
)
def test_eight_threads_answer_as_each_would_alone(graph: DecoderBackend, parallel: int, seed: int) -> None:
    """With pauses, cancellations, later turns, fewer places than conversations, and some in the background."""
    rng = random.Random(seed)
    plans = [[Conversation.drawn(rng) for _ in range(3)] for _ in range(8)]
    alone = BatchingDecoder(graph, PREFIX, context=200, parallel=1)
    want = [[c.answer(alone.sequence("alone")) for c in plan] for plan in plans]
    decoder = BatchingDecoder(graph, PREFIX, context=200, parallel=parallel)

    def talk(number: int) -> list[list[int]]:
        own = random.Random(100 * seed + number)
        sequence = decoder.sequence()
        sequence.per_step = math.inf if number % 3 == 2 else None

        def pause() -> None:
            if own.random() < 0.02:
                time.sleep(own.choice((0.001, 0.005, 1.2 * IDLE_S)))

        return [plan.answer(sequence, pause) for plan in plans[number]]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(talk, range(8))) == want
    assert max(decoder.batch_sizes) <= parallel
    if parallel > 1:
        assert max(decoder.batch_sizes) > 1, "steps must have been run together, or equality says nothing"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps wait for everyone, however slow this machine is."""
    monkeypatch.setattr(scheduler, "PATIENCE_S", 1.5)
    monkeypatch.setattr(scheduler, "LATELY_S", 1.5)


def test_an_answer_that_nobody_reads_on_does_not_hold_the_others(graph: DecoderBackend) -> None:
    """Every place is taken by an answer that is under way but stands still."""
    decoder = BatchingDecoder(graph, PREFIX, context=200, parallel=2)
    talk = Conversation([5, 6, 7], True, 12)
    held = [decoder.sequence() for _ in range(2)]
    for number, sequence in enumerate(held):
        sequence.begin([number, 2], memory=True)
        sequence.read([number, 2])
    began = time.monotonic()
    said = talk.answer(decoder.sequence())
    assert time.monotonic() - began < 5
    assert said == talk.answer(BatchingDecoder(graph, PREFIX, context=200, parallel=1).sequence())
    assert sum(s.slot is None for s in held) == 1, "one was parked"
    assert all(np.isfinite(sequence.read([9])).all() for sequence in held)


@pytest.mark.usefixtures("patient")
def test_a_sequence_between_others_that_is_dropped_leaves_its_place(graph: DecoderBackend) -> None:
    decoder = BatchingDecoder(graph, PREFIX, context=200, parallel=3)
    alone = BatchingDecoder(graph, PREFIX, context=200, parallel=1)
    made = [decoder.sequence() for _ in range(3)]
    for number, sequence in enumerate(made):
        sequence.begin([number, 4], memory=True)
        sequence.read([number, 4])
    del made[1], sequence
    outer = Conversation([7, 8, 9], True, 30), Conversation([7] * 20, False, 30)
    with ThreadPoolExecutor(2) as threads:
        got = list(threads.map(lambda pair: pair[0].answer(pair[1]), zip(outer, made, strict=True)))
    assert got == [c.answer(alone.sequence(n)) for n, c in enumerate(outer)]
    assert sorted(s.slot for s in made if s.slot is not None) == [0, 1]


@pytest.mark.usefixtures("patient")
def test_logits_of_a_sequence_that_makes_room_for_a_step_stay_as_they_were(graph: DecoderBackend) -> None:
    decoder = BatchingDecoder(graph, PREFIX, context=200, parallel=3)
    first, between, last = made = [decoder.sequence() for _ in range(3)]
    for sequence in made:
        sequence.begin([9, 8], memory=True)
        sequence.read([9])
        sequence.end()
    logits = between.read([8])
    before = logits.copy()
    first.over = last.over = False
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda s: s.read([5]), (first, last)))
    assert [s.slot for s in made] == [0, 2, 1]
    first.end()
    last.read([7])
    np.testing.assert_array_equal(logits, before)


def test_what_an_interrupted_reader_requested_is_dropped_and_the_others_go_on(
    graph: DecoderBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = BatchingDecoder(graph, PREFIX, context=200, parallel=2)
    first, second = decoder.sequence(), decoder.sequence()
    for sequence in (first, second):
        sequence.begin([5, 6, 7], memory=False)
        sequence.read([5])
    real = scheduler._Work.wait

    def interrupted(work: scheduler._Work) -> None:
        work.abandoned = True
        raise KeyboardInterrupt

    monkeypatch.setattr(scheduler._Work, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.read([6])
    monkeypatch.setattr(scheduler._Work, "wait", real)
    assert np.isfinite(second.read([6])).all()
    assert np.isfinite(first.read([7])).all()
    assert first.tokens in ([5, 7], [5, 6, 7]), "read whole or not at all"


def test_the_thread_and_the_caches_go_with_the_last_sequence(graph: DecoderBackend) -> None:
    decoder = BatchingDecoder(graph, PREFIX, context=200, parallel=2)
    sequence, thread = decoder.sequence(), decoder.scheduler._thread
    runner = weakref.ref(decoder.scheduler._runner)
    sequence.read([5])
    del decoder
    assert np.isfinite(sequence.read([6])).all(), "a sequence keeps its decoder"
    del sequence
    thread.join(60)
    assert not thread.is_alive()
    assert runner() is None


def test_an_error_of_a_run_reaches_everyone_in_it_and_the_next_run_works(graph: DecoderBackend) -> None:
    decoder = BatchingDecoder(graph, PREFIX, context=200, parallel=2)
    sequence = decoder.sequence()
    sequence.read([5])
    run, decoder.scheduler._runner.run = (
        decoder.scheduler._runner.run,
        lambda *_, **__: np.full((1, 200), np.nan, np.float32),
    )  # type: ignore[method-assign]
    with pytest.raises(ProviderError, match="NaN"):
        sequence.read([6])
    decoder.scheduler._runner.run = run  # type: ignore[method-assign]
    other = BatchingDecoder(graph, PREFIX, context=200, parallel=2).sequence()
    other.read([5])
    np.testing.assert_array_equal(sequence.read([6]), other.read([6]))


def pass_over(decoder: BatchingDecoder, sequence: CachedSequence) -> None:
    """Two others step together, and the sequence's slot lies between theirs."""
    first, last = (decoder.sequence() for _ in range(2))
    for other in (first, last):
        other.begin([3, 2], memory=True)
        other.read([3, 2])
    assert sorted(s.slot for s in (first, sequence, last) if s.slot is not None) == [0, 1, 2]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda s: s.read([4]), (first, last)))
    assert decoder.batch_sizes[2]
    for other in (first, last):
        other.end()


def take_its_slot(decoder: BatchingDecoder, sequence: CachedSequence) -> None:
    """Others decode until the sequence has no slot."""
    sequence.end()
    for other in [decoder.sequence() for _ in range(3)]:
        other.begin([3, 2], memory=True)
        other.read([3, 2])
    assert sequence.slot is None


DISTURBED: dict[str, Callable[[BatchingDecoder, CachedSequence], object]] = {
    "by nothing": lambda *_: None,
    "by other memories": lambda _, sequence: sequence.inject([random_memory(CONFIG, 1)]),
    "by steps that pass over it": pass_over,
    "by others that take its slot": take_its_slot,
    "by a new text": lambda _, sequence: sequence.begin([9, 8, 5, 6, 4], memory=True),
}


@pytest.mark.parametrize("disturb", DISTURBED.values(), ids=DISTURBED.keys())
@pytest.mark.parametrize("following", [[6, 7, 2], [6, 9, 2], [9, 7, 2]], ids=["right", "wrong later", "wrong at once"])
def test_a_draft_changes_no_logits_whatever_comes_between(
    graph: DecoderBackend,
    monkeypatch: pytest.MonkeyPatch,
    disturb: Callable[[BatchingDecoder, CachedSequence], object],
    following: list[int],
) -> None:
    if disturb is pass_over:
        monkeypatch.setattr(slots, "IDLE_S", 60.0)  # else the step moves it
        monkeypatch.setattr(scheduler, "PATIENCE_S", 0.3)  # else the two do not step together
        monkeypatch.setattr(scheduler, "LATELY_S", 0.3)

    def logits_of(draft: list[int]) -> tuple[np.ndarray, CachedSequence]:
        decoder = BatchingDecoder(graph, PREFIX, context=200, parallel=3)
        if disturb is pass_over:
            held = decoder.sequence()  # takes the first slot and leaves it
            held.begin([1, 2], memory=True)
            held.read([1, 2])
        sequence = decoder.sequence()
        sequence.begin([9, 8], memory=True)
        sequence.read([9, 8])
        if disturb is pass_over:
            held.end()
        found = [sequence.read([5], draft=draft).copy()]
        assert sequence.tokens == [9, 8, 5], "a draft is no text"
        disturb(decoder, sequence)
        found += [sequence.read([token]).copy() for token in following]
        return np.concatenate(found), sequence

    (want, plain), (got, drafting) = logits_of([]), logits_of([6, 7, 8])
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert (plain.tokens, plain.drafted_tokens) == (drafting.tokens, 0)
    assert drafting.drafted_tokens == 3
    right = {6: 2, 7: 2, 9: 1}[following[1]] if following[0] == 6 else 0
    kept = disturb in (DISTURBED["by nothing"], pass_over)
    assert drafting.accepted_tokens == (right if kept else 0)


def test_what_is_read_in_the_background_runs_next_to_steps_that_pass_over_its_slot(
    graph: DecoderBackend, monkeypatch: pytest.MonkeyPatch, patient: None
) -> None:
    decoder = BatchingDecoder(graph, PREFIX, context=200, parallel=3)
    _ = graph.device == "cpu" or pytest.skip("only a processor has cores to spare")
    first, behind, last = (decoder.sequence() for _ in range(3))
    for sequence in (first, behind, last):  # three places, side by side
        sequence.begin([9, 8], memory=True)
        sequence.read([9])
    begun, stepped, run = threading.Event(), threading.Event(), decoder.scheduler._runner.run

    def held(place: int, rows: list[RunInput], **options: bool) -> np.ndarray:
        if place == behind.slot and len(rows) == 1:
            logits = run(place, rows[:1], **options)
            begun.set()
            assert stepped.wait(60), "the others' steps waited for it"
            return logits
        return run(place, rows, **options)

    monkeypatch.setattr(decoder.scheduler._runner, "run", held)
    behind.per_step = math.inf
    with ThreadPoolExecutor(3) as threads:
        reading = threads.submit(behind.read, [7, 6, 5, 4])
        assert begun.wait(60)
        for token in range(3):
            list(threads.map(lambda s, t=token: s.read([t]), (first, last)))
        stepped.set()
        reading.result()
    assert decoder.batch_sizes[2], "their steps were run together"
    alone = BatchingDecoder(graph, PREFIX, context=200, parallel=1).sequence()
    alone.begin([9, 8], memory=True)
    for tokens in ([9], [7, 6, 5, 4]):
        alone.read(tokens)
    np.testing.assert_allclose(behind.read([3]), alone.read([3]), atol=1e-4)


def test_work_in_the_background_waits_for_steps_while_others_decode(
    graph: DecoderBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, looks = BatchingDecoder(graph, PREFIX, context=200, parallel=2), list[float]()
    sequence = decoder.sequence()

    def one_step(seconds: float) -> None:
        looks.append(seconds)
        sequence.read([1])

    monkeypatch.setattr(time, "sleep", one_step)
    monkeypatch.setattr(batching, "LATELY_S", 60.0)
    decoder.give_way(100)
    assert not looks, "nobody decodes"
    sequence.begin([5, 6], memory=False)
    sequence.read([5, 6])
    decoder.give_way(8)
    assert len(looks) == 8
    decoder.give_way(8, per_step=4.0)
    assert len(looks) == 8 + 2
    with decoder.hurry():
        decoder.give_way(100)
    sequence.end()
    decoder.give_way(100)
    assert len(looks) == 8 + 2, "somebody waits for it, or the answer is over"
