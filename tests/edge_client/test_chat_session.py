"""Conversations: caches used again, threads, cancelling, saving, and recalling that overlaps with decoding."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from edge_client import (
    ChatSession,
    EdgeModel,
    Event,
    ModelClosed,
    Recalled,
    RecallMode,
    SessionBusy,
    StorageError,
    Token,
)
from edge_client.decoder.batching import BatchingDecoder
from edge_client.engine import Engine
from edge_client.recall.embedding import QueryEmbedder
from edge_client.recall.outcome import Recall
from edge_client.recall.recaller import SLOW, Recaller
from edge_client.settings import EdgeSettings
from memory3.codec.payload import ExplicitMemory
from memory3.errors import CorruptFile, InvalidInput, MissingFile, ModelMismatch
from memory3.files.bundle import Bundle
from tests.edge_client.answers import QUESTION, finished, recalls_of, tokens_of
from tests.edge_client.tiny_bundle import tiny_bundle

MANY: dict[str, Any] = {"temperature": 50.0, "seed": 3}  # the tiny model's greedy answers may end at once


class Gate(Recaller):
    """A recaller whose answers about generated text wait until they are let through."""

    def __init__(self, bundle: Bundle, memories: Sequence[ExplicitMemory]) -> None:
        super().__init__(QueryEmbedder(bundle.embedder()), None, bundle.memory_format)
        self.memories = list(memories)
        self.open = threading.Event()
        self.open.set()
        self.asked: list[str] = []

    def recall(self, queries: Sequence[str], *, cancellation: Any = None, **_: object) -> list[Recall]:
        self.asked += queries
        while not self.open.wait(0.01) and not cancellation.cancelled():
            pass
        number = len(self.asked)
        return [Recall(q, tuple(self.memories[(number + i) % 3 :][:3])) for i, q in enumerate(queries)]


@pytest.fixture
def gate(tiny: Bundle, written: list[ExplicitMemory]) -> Gate:
    return Gate(tiny, written)


@pytest.fixture
def gated(tiny: Bundle, gate: Gate) -> Iterator[EdgeModel]:
    settings = EdgeSettings(memory=RecallMode.overlap, lead_tokens=4, deadline_s=30)
    with EdgeModel(Engine(tiny, BatchingDecoder.open(tiny, threads=1), gate, settings)) as model:
        yield model


def prefilled(bundle: Bundle, prompt: Sequence[int], said: list[int], recalls: Sequence[Recalled]) -> list[int]:
    """Greedy choices of a fresh decoder that reads the same tokens in chunks, each with its memories."""
    sequence, text = BatchingDecoder.open(bundle, threads=1).sequence(), [*prompt, *said[:-1]]
    sequence.begin(text, memory=True)
    swaps = [r for r in recalls if not r.recall.error]
    ends = [r.position for r in swaps[1:]] + [len(text)]
    start, choices = swaps[0].position, []
    if start:
        choices += sequence.read(text[:start], all_logits=True).argmax(-1).tolist()
    for swap, end in zip(swaps, ends, strict=True):
        sequence.inject(swap.recall.memories)
        if end > start:
            choices += sequence.read(text[start:end], all_logits=True).argmax(-1).tolist()
        start = end
    return choices[len(prompt) - 1 :]


@pytest.mark.parametrize("mode", ["exact", "overlap", "late"])
def test_a_swap_in_mid_generation_equals_a_fresh_prefill_with_those_memories(
    tiny: Bundle, gated: EdgeModel, gate: Gate, mode: str
) -> None:
    session = gated.session(memory="exact" if mode == "exact" else "overlap")
    prompt = tiny.chat.prompt([{"role": "user", "content": QUESTION}])
    events: list[Event] = []
    # Greedy, but the tiny model must not end its turn: the two ends are forbidden.
    ends = {tiny.tokenizer.end_of_turn_id: -100, tiny.tokenizer.eos_id: -100}
    for event in session.send(QUESTION, max_tokens=44, logit_bias=ends):
        events.append(event)
        count = len(tokens_of(events))
        if mode == "late" and count == 1:
            gate.open.clear()
        if mode == "late" and count == 20:
            gate.open.set()
            wait_until_done(session)
        if mode == "overlap" and count in (13, 29):
            wait_until_done(session)
    recalls = recalls_of(events)
    generated = [r for r in recalls if r.generated]
    said = tokens_of(events)
    places = [r.position - len(prompt.ids) for r in generated]
    assert places[0] == (15 if mode != "late" else 19), "the token just generated is read with the new memories"
    assert generated[0].state == ("late" if mode == "late" else "fetched")
    assert finished(events).statistics.states["late" if mode == "late" else "fetched"] >= 1
    want = prefilled(tiny, prompt.ids, said, recalls)
    allowed = [w for w, s in zip(want, said, strict=True) if w not in ends]
    assert allowed == [s for w, s in zip(want, said, strict=True) if w not in ends]


def wait_until_done(session: ChatSession) -> None:
    """Until what is under way in the background has come; the decode loop itself never waits."""
    stream = session._answer() if session._answer else None
    assert stream is not None
    asked = stream._answer._recalls._pending
    if asked is not None:
        asked.ticket.result(30)


def test_a_recall_that_never_comes_is_superseded_and_counted(gated: EdgeModel, gate: Gate) -> None:
    events: list[Event] = []
    for event in gated.session().send(QUESTION, max_tokens=50, **MANY):
        events.append(event)
        if isinstance(event, Token):
            gate.open.clear()
    recalls = [r for r in recalls_of(events) if r.generated]
    assert [r.state for r in recalls] == ["skipped", "skipped", "skipped"]
    assert all(r.kept for r in recalls), "what was read before is read on"
    assert len(tokens_of(events)) == 50
    assert finished(events).statistics.states["skipped"] == 3


def test_decoding_that_overtakes_the_embedder_waits_for_it_and_says_what_was_left_out(
    gated: EdgeModel, gate: Gate
) -> None:
    gate.queries.text_s = 1e6  # measured when the model was opened
    session, events = gated.session(), list[Event]()
    for event in session.send(QUESTION, max_tokens=42, **MANY):
        events.append(event)
        count = len(tokens_of(events))
        if count == 1:
            gate.open.clear()
        if count == 40 and isinstance(event, Token):
            gate.open.set()
            wait_until_done(session)
    recalls = [r for r in recalls_of(events) if r.generated]
    assert [(r.state, r.recall.reason) for r in recalls] == [("skipped", SLOW), ("late", "")]
    assert [r.chunk for r in recalls] == [recalls[1].chunk + 1, recalls[1].chunk]
    assert recalls[1].recall.memories
    assert finished(events).statistics.reasons == {SLOW: 1}


def test_a_saved_session_goes_on_where_it_was_and_is_refused_by_name(
    tiny: Bundle, model: EdgeModel, tmp_path: Path
) -> None:
    session, path = model.session(), tmp_path / "chat.m3"
    first = finished(list(session.send(QUESTION, max_tokens=20, **MANY)))
    session.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["chat.m3"], "nothing is left beside it"
    loaded = model.load_session(path)
    assert loaded.messages == session.messages
    again = finished(list(loaded.send("And Rome?", max_tokens=2, **MANY)))
    read = loaded.conversation.sequence.tokens
    said = session.conversation.generated[1]
    assert said == read[first.statistics.prompt_tokens :][: len(said)], "read as it was generated"
    assert again.statistics.generated_tokens == 2
    whole = path.read_bytes()
    for damaged in (
        whole[:-1],
        whole[:20],
        b"",
        b"x" + whole[1:],
        whole[:7] + b"\x09" + whole[8:],
        whole[:100] + bytes([whole[100] ^ 1]) + whole[101:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFile):
            model.load_session(path)
    path.write_bytes(whole)
    (tmp_path / "other").mkdir()
    other = tiny_bundle(tmp_path / "other", seed=9)
    named = pytest.raises(ModelMismatch, match="the session was saved with model 0000")
    with EdgeModel.open(other.folder, offline=True, threads=1) as stranger, named:
        stranger.load_session(path)
    with pytest.raises(MissingFile, match="/save"):
        model.load_session(tmp_path / "none")
    with pytest.raises(StorageError):
        session.save(tmp_path / "no folder" / "chat.m3")


def test_an_answer_that_nobody_reads_is_ended_by_the_next_one(model: EdgeModel) -> None:
    session = model.session()
    never_read = session.send("What?", **MANY)
    read = session.send(QUESTION, max_tokens=40, **MANY)
    assert list(never_read) == []
    while not isinstance(next(read), Token):
        pass
    with pytest.raises(SessionBusy, match=r"close\(\)"):
        session.send("And?")
    with pytest.raises(SessionBusy):
        session.save("anywhere")
    session.cancel()
    assert session.send("And?", max_tokens=2, **MANY).text()
    assert [m["content"] for m in session.messages][::2] == [QUESTION, "And?"]


def test_an_answer_that_was_cut_goes_on_and_is_read_whole_by_the_next_turn(model: EdgeModel) -> None:
    whole, cut = model.session(memory="off"), model.session(memory="off")
    with pytest.raises(InvalidInput, match="ask a question first"):
        cut.go_on()
    said = whole.send(QUESTION, max_tokens=8).text()
    begun = cut.send(QUESTION, max_tokens=5).text()
    stopped = cut.go_on(max_tokens=3)
    stopped.cancel()
    assert (stopped.text(), cut.messages[-1]["content"]) == ("", begun)
    assert begun + cut.go_on(max_tokens=3).text() == said
    assert cut.messages == whole.messages
    first, second = (session.send("And Rome?", max_tokens=4).result() for session in (whole, cut))
    assert (second.text, second.statistics.prompt_tokens) == (first.text, first.statistics.prompt_tokens)


def test_one_line_gives_the_text_the_memories_and_what_it_cost(model: EdgeModel) -> None:
    result = model.ask(QUESTION, max_tokens=9)
    stream = model.generate(QUESTION, max_tokens=9)
    assert "".join(stream.deltas) == result.text == stream.text()
    assert len({m.memory_id for m in result.memories}) == len(result.memories) >= 5
    assert result.errors == ()
    assert (result.reason, result.statistics.generated_tokens) == ("length", 9)
    assert all(r.recall.memories == () for r in result.recalls), "keys and values are not kept"
    stream = model.generate("And what of Rome?", max_tokens=2)
    first = next(stream)
    assert isinstance(first, Recalled)
    assert first.chunk in [r.chunk for r in stream.result().recalls], "also of events that were read before"
    stream = model.generate(QUESTION)
    stream.close()
    with pytest.raises(InvalidInput, match="closed before its end"):
        stream.result()


def test_another_thread_may_cancel_an_answer_and_may_not_read_it(gated: EdgeModel, gate: Gate) -> None:
    session = gated.session()
    gate.open.clear()
    stream = session.send(QUESTION, **MANY)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, stream)
        while not gate.asked:  # the other thread is inside the prompt's recall now
            pass
        with pytest.raises(SessionBusy, match="another thread"):
            next(stream)
        session.cancel()
        events = reading.result(60)
    assert (finished(events).reason, tokens_of(events)) == ("cancelled", [])
    assert session.messages == [], "nothing was said, so the question is taken back"
    gate.open.set()
    seen: list[Event] = []
    for event in session.send(QUESTION, max_tokens=40, **MANY):
        seen.append(event)
        if len(tokens_of(seen)) == 5:
            session.cancel()
    assert (len(tokens_of(seen)), finished(seen).reason) == (5, "cancelled")
    assert session.messages[-1] == {"role": "assistant", "content": finished(seen).text}
    list(session.send("Go on", max_tokens=2, **MANY))


def test_closing_the_model_ends_answers_in_order(gated: EdgeModel) -> None:
    stream, idle = gated.session().send(QUESTION, max_tokens=400, **MANY), gated.session()
    events = [next(stream)]
    gated.close()
    assert finished([*events, *stream]).reason == "cancelled"
    for use in (lambda: idle.send("x"), lambda: gated.generate("x"), gated.session):
        with pytest.raises(ModelClosed, match=r"EdgeModel\.open"):
            use()
    gated.close()


def test_closing_the_model_waits_for_the_step_that_another_thread_is_in(
    gated: EdgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, inside, through = gated.engine.decoder.scheduler._runner, threading.Event(), threading.Event()
    run, steps = runner.run, list[Any]()

    def slow(*arguments: Any, **options: Any) -> Any:
        steps.append(arguments)
        inside.set()
        assert through.wait(60)
        return run(*arguments, **options)

    monkeypatch.setattr(runner, "run", slow)
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(list, gated.generate(QUESTION, **MANY))
        assert inside.wait(60)
        closing = pool.submit(gated.close)
        with pytest.raises(TimeoutError):
            closing.result(0.3)
        through.set()
        closing.result(60)
        assert (finished(reading.result(60)).reason, len(steps)) == ("cancelled", 1)


def test_a_saved_conversation_is_its_owners_alone(model: EdgeModel, tmp_path: Path) -> None:
    session = model.session()
    for name in ("text", "memories"):
        session.save(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        session.remember("The safe opens with 4711.")
