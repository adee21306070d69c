"""A conversation longer than the context: its oldest turns become memories, and it goes on."""

import gc
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client import ChatSession, ContextFull, EdgeModel, Event, Finished, Remembered
from edge_client.decoder.sequence import CachedSequence
from edge_client.errors import Cancellation, StorageError
from edge_client.generate.chunk_recalls import ChunkRecalls
from edge_client.generate.conversation import CLOSE
from edge_client.local.database import KEY_FILE
from edge_client.local.writer import MemoryWriter, Written
from memory3.errors import CorruptFile, InvalidInput
from memory3.files.bundle import Bundle
from memory3.text.chat import Prompt
from tests.edge_client.answers import finished, recalls_of, tokens_of
from tests.edge_client.fake_service import FakeService
from tests.edge_client.tiny_bundle import tiny_loaded

CONTEXT = 480
SYSTEM = "Be brief."
LETTERS = dict.fromkeys(tiny_loaded().tokenizer.encode("abcdefgh "), 100.0)
MANY: dict[str, Any] = {"temperature": 1.0, "max_tokens": 30, "logit_bias": LETTERS}

TALK = """
import sys
from edge_client import EdgeModel

bundle, file, context = sys.argv[1:]
with EdgeModel.open(bundle, offline=True, memory="exact", context=int(context)) as model:
    session = model.session()
    for turn in range(1000):
        session.send(f"My number is {turn}.", max_tokens=30, temperature=50.0, seed=turn).text()
        session.save(file)
        print(turn, flush=True)
"""


@pytest.fixture
def texts_written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the device's writer writes from here on."""
    texts, write = list[str](), MemoryWriter.write

    def noted(self: MemoryWriter, own: list[str], **options: float) -> Written:
        texts.extend(own)
        return write(self, own, **options)

    monkeypatch.setattr(MemoryWriter, "write", noted)
    return texts


@pytest.fixture
def model(tiny: Bundle, service: FakeService) -> Iterator[EdgeModel]:
    with EdgeModel.open(tiny.folder, service.address, memory="exact", context=CONTEXT, deadline_s=20) as opened:
        yield opened


def talk(session: ChatSession, turns: int, **options: Any) -> list[Event]:
    events: list[Event] = []
    for turn in range(turns):
        text = f"My number {len(session.messages)} is {turn * 37}, remember it."
        events += session.send(text, **{**MANY, "seed": turn, **options})
    return events


def remembered(events: list[Event]) -> list[int]:
    return [turn for e in events if isinstance(e, Remembered) for turn in e.turns]


def past_turns(events: list[Event]) -> set[str]:
    """Titles of what was read of the conversation itself."""
    read = (m for r in recalls_of(events) for m in r.recall.read)
    return {m.title for m in read if m.knowledge_base == "conversation"}


def text_in_cache(model: EdgeModel, session: ChatSession) -> str:
    return model.bundle.tokenizer.decode(session.conversation.sequence.tokens)


@pytest.mark.parametrize("memory", ["exact", "overlap"])
def test_a_conversation_goes_on_past_its_context(model: EdgeModel, memory: str) -> None:
    session = model.session(SYSTEM, memory=memory)
    events = talk(session, 12)
    assert remembered(events) == list(range(1, len(remembered(events)) + 1)), "whole turns, the oldest first"
    assert len(remembered(events)) > 5
    assert len(session.messages) == 25, "nothing that was said is lost"
    assert session.tokens <= model.engine.decoder.room
    kept = text_in_cache(model, session)
    assert kept.startswith(f"system\n{SYSTEM}")
    assert session.messages[-2]["content"] in kept
    assert session.messages[1]["content"] not in kept
    assert past_turns(events) & {"turn 1", "turn 2"}
    assert session.conversation.sequence.position <= CONTEXT + model.bundle.config.memory.reference_tokens
    gc.collect()
    assert len(model.engine.decoder._sequences) <= 2, "what was read anew took the place of what was there"
    assert {e.reason for e in events if isinstance(e, Finished)} == {"length"}


def test_a_prompt_that_the_background_reads_is_not_read_again(model: EdgeModel) -> None:
    session = model.session(SYSTEM)
    for turn in range(10):
        events = talk(session, 1)
        if any(isinstance(e, Remembered) for e in events[:3]):
            said, sequence = tokens_of(events), session.conversation.sequence
            assert sequence.tokens == [*session.conversation._prompt.ids, *said[:-1]], turn
            return
    pytest.fail("no turn left before an answer")


def fresh(model: EdgeModel, session: ChatSession, text: Prompt) -> CachedSequence:
    """A sequence that has read a text in chunks, each with the memories that it retrieves."""
    sequence = model.engine.sequence(object())
    own = session.conversation.memories
    recalls = ChunkRecalls(model.engine, sequence, text, session._policy, Cancellation(), own)
    sequence.begin(text.ids, memory=True)
    recalls.read_prompt()
    return sequence


@pytest.mark.parametrize("memory", ["exact", "overlap"])
def test_an_answer_goes_on_while_turns_leave_as_in_a_fresh_session_that_reads_what_is_kept(
    model: EdgeModel, memory: str
) -> None:
    session = model.session(SYSTEM, memory=memory)
    talk(session, 3)
    before, events, evicted_after = session.tokens, list[Event](), 0
    talked = session.conversation
    for event in session.send("Tell me a long story.", **{**MANY, "max_tokens": 280}):
        events.append(event)
        if isinstance(event, Remembered) and not evicted_after:
            evicted_after = len(tokens_of(events))
            if memory == "exact":  # in overlap, what is late is swapped in late
                read = talked.sequence.tokens[:-1]  # one token more was read since
                content = [*talked._prompt.content, *[True] * (len(read) - len(talked._prompt.ids))]
                want = fresh(model, session, Prompt(read, content))
                places = [s.slot for s in (talked.sequence, want)]
                rows, wanted = (
                    model.engine.decoder.scheduler._runner.read_text(p, True, want.length)
                    for p in places
                    if p is not None
                )
                for name, array in rows.items():
                    np.testing.assert_allclose(array, wanted[name], atol=1e-4)
    assert before + 290 > model.engine.decoder.room, "it would not have fitted"
    assert (finished(events).reason, len(tokens_of(events))) == ("length", 280)
    assert 0 < evicted_after < 280
    said = talked.sequence.tokens[-200:]
    assert said == talked.generated[len(session.messages) - 1][-201:-1], "in order, none lost or read twice"


@pytest.mark.parametrize("until", ["forty tokens", "the cache is full"])
def test_what_is_said_while_turns_leave_is_read_in_the_background_and_no_turn_is_lost(
    model: EdgeModel, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    session = model.session(SYSTEM, memory="overlap")
    talk(session, 3)
    talked, decoder, read, write = session.conversation, model.engine.decoder, CachedSequence._read, MemoryWriter.write
    talked._turns_ahead = 1000  # nothing is written ahead
    begun, aside = list[int](), list[int]()

    def slow(self: MemoryWriter, texts: list[str], **options: float) -> Written:
        begun.append(session.tokens)
        while not (len(begun) > 1 or decoder._hurried or (until == "forty tokens" and session.tokens > begun[0] + 40)):
            time.sleep(0.001)
        return write(self, texts, **options)

    def counted(self: CachedSequence, tokens: list[int], all_logits: bool, draft: Sequence[int]) -> np.ndarray:
        if self.per_step is not None:
            aside.append(len(tokens))
        return read(self, tokens, all_logits, draft)

    monkeypatch.setattr(MemoryWriter, "write", slow)
    monkeypatch.setattr(CachedSequence, "_read", counted)
    events = list(session.send("Tell me a long story.", **{**MANY, "max_tokens": 280}))
    assert (finished(events).reason, len(tokens_of(events))) == ("length", 280), "it was not ended"
    assert next(e for e in events if isinstance(e, Remembered)).references
    assert sum(aside) >= len(talked._prompt.ids) + 40 - CLOSE, "what was said meanwhile too"
    assert talked.sequence.tokens[-200:] == talked.generated[len(session.messages) - 1][-201:-1]


def test_turns_are_written_ahead_between_answers_once_and_read_when_they_left(
    model: EdgeModel, texts_written: list[str]
) -> None:
    session, events = model.session(SYSTEM), list[Event]()
    while not remembered(events):
        ahead = list(texts_written)
        assert not past_turns(events), "what is in the cache is not read as a memory too"
        events = talk(session, 1)
        model.engine.background.submit(lambda: None).result()  # the pause between two turns
    assert len(ahead) >= len(remembered(events)) - 1 > 0
    numbered = [text for text in texts_written if "number" in text]
    assert len(numbered) == len(set(numbered)) > 0, "none is written twice"
    assert past_turns(talk(session, 1))


def test_turns_that_left_can_be_taken_back(model: EdgeModel) -> None:
    session = model.session(SYSTEM)
    talk(session, 9)
    taken = [session.take_back() for _ in range(5)]
    talk(session, 1)
    assert session.messages[-2]["content"] in text_in_cache(model, session), "the new question is read"
    past = session.conversation.past
    assert past is not None
    assert not {d.title for d in past.base.documents()} & {f"turn {n}" for n in (5, 6, 7, 8, 9)}, taken
    assert session.messages[1]["content"] not in text_in_cache(model, session), "what left before them is a memory"
    assert past_turns(talk(session, 1)) <= {f"turn {n}" for n in range(1, 6)}


def test_a_saved_conversation_is_encrypted_with_the_key_that_is_named(
    tiny: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("a long random text")
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "key"))
    with EdgeModel.open(tiny.folder, offline=True, memory="exact", context=CONTEXT) as model:
        session = model.session(SYSTEM)
        talk(session, 8)
        session.save(tmp_path / "chat")
        assert b"remember it" not in (tmp_path / "chat").read_bytes()
        assert past_turns(talk(model.load_session(tmp_path / "chat"), 1))
        monkeypatch.delenv(KEY_FILE)
        with pytest.raises(CorruptFile, match="encrypted"):
            model.load_session(tmp_path / "chat")


def test_a_killed_process_leaves_what_it_saved_whole(tiny: Bundle, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TALK, tiny.folder, tmp_path / "chat", str(CONTEXT)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 8:  # the first turns are memories by now, and the next answer or save is under way
            break
    process.kill()
    process.wait()
    with EdgeModel.open(tiny.folder, offline=True, memory="exact", context=CONTEXT) as model:
        loaded = model.load_session(tmp_path / "chat")
        assert [m["content"] for m in loaded.messages][:-1:2][:9] == [f"My number is {n}." for n in range(9)]
        assert past_turns(talk(loaded, 1))


def test_what_could_not_be_written_costs_memories_and_not_the_conversation(
    model: EdgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, write = model.session(SYSTEM), MemoryWriter.write

    def full(self: MemoryWriter, texts: list[str], **_: float) -> Written:
        raise StorageError("no space left", reason="DISK_FULL")

    monkeypatch.setattr(MemoryWriter, "write", full)
    events = talk(session, 6)
    failed = [e for e in events if isinstance(e, Remembered)]
    assert failed
    assert all("DISK_FULL" in e.error and not e.references for e in failed)
    monkeypatch.setattr(MemoryWriter, "write", write)
    events = talk(session, 6)
    assert {"turn 1", "turn 2"} & past_turns(talk(session, 2)), "written with the next turns that left"
    assert not any(e.error for e in events if isinstance(e, Remembered))


def test_a_bundle_that_only_reads_says_what_to_do(model: EdgeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bundle, "writer", None)
    session = model.session(SYSTEM)
    with pytest.raises(ContextFull, match=r"no writer\.onnx.*export it again"):
        talk(session, 12)
    assert session.messages[-1]["role"] == "assistant", "the question that did not fit is not part of it"
    with pytest.raises(StorageError, match=r"writer\.onnx"):
        session.remember("A text.")


def test_a_text_is_remembered_once_also_after_a_fault_and_read_beside_the_services(
    model: EdgeModel, texts_written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, write, steps = model.session(), MemoryWriter.write, list[tuple[int, int]]()
    book = "\n".join(f"Room {n} is kept by {n * 7}." for n in range(40))

    def full_at_second(self: MemoryWriter, texts: list[str], **_: float) -> Written:
        if texts_written:
            raise StorageError("no space left", reason="DISK_FULL")
        return write(self, texts)

    monkeypatch.setattr(MemoryWriter, "write", full_at_second)
    with pytest.raises(StorageError, match="no space"):
        session.remember(book, "Keys")
    assert finished(list(session.send("Who keeps room 3?", **MANY))).reason == "length", "the conversation goes on"
    monkeypatch.setattr(MemoryWriter, "write", write)
    count = session.remember(book, "Keys", progress=lambda done, of: steps.append((done, of)))
    assert count == session.remember(book, "Keys") == len(texts_written) == len(set(texts_written)) >= 20
    assert steps[-1] == (count, count)
    events = list(session.send("Who keeps room 3?", **MANY))
    read = [m for r in recalls_of(events) for m in r.recall.read]
    assert any(m.title == "Keys" and "Room" in (m.text or "") for m in read)
    assert any(m.knowledge_base == "" for m in read), "beside the service's"
    with pytest.raises(InvalidInput, match="no text"):
        session.remember(" ")


def test_a_list_of_messages_that_is_too_long_goes_on_in_the_next_call(model: EdgeModel) -> None:
    """As the page and OpenAI's clients ask: the whole conversation every time."""
    messages, events = [{"role": "system", "content": SYSTEM}], list[Event]()
    for turn in range(10):
        messages.append({"role": "user", "content": f"My number {turn} is {turn * 37}, remember it."})
        events += (answer := list(model.generate(messages, **MANY, seed=turn)))
        messages.append({"role": "assistant", "content": finished(answer).text})
    left = remembered(events)
    assert len(left) == len(set(left)) > 3, "every turn is written once"
    assert past_turns(events)
    question = messages[-2]["content"]
    again = finished(list(model.generate(messages[:-1], **MANY, seed=9)))
    assert again.statistics.reused_tokens > again.statistics.prompt_tokens - len(question) - 40
    assert again.text == messages[-1]["content"]


def test_memories_of_a_conversation_stay_in_it(model: EdgeModel, service: FakeService) -> None:
    session = model.session(SYSTEM)
    events = talk(session, 10)
    ids = {m.memory_id for r in recalls_of(events) for m in r.recall.read if m.knowledge_base}
    assert ids
    sent = {memory_id for request in service.requests for memory_id in request.held_ids}
    assert sent
    assert not sent & ids
    assert not past_turns(list(model.session(SYSTEM).send("What is my number?", **MANY)))


def test_a_long_history_that_is_sent_at_once_reports_what_its_answer_read(model: EdgeModel) -> None:
    history = [
        {"role": role, "content": f"{role} says {turn * 37} in turn {turn}."}
        for turn in range(12)
        for role in ("user", "assistant")
    ]
    question = {"role": "user", "content": "What did I say in turn 3?"}
    result = model.ask([*history, question], max_tokens=2)
    assert result.recalls
    assert {memory.knowledge_base for memory in result.memories} & {"conversation"}
    assert [recalled.chunk for recalled in result.recalls] == [*range(len(result.recalls))]
    assert result.statistics.recalls == len(result.recalls)
    assert result.statistics.reused_tokens == 0
    again = model.ask([*history, question, {"role": "assistant", "content": result.text}, question], max_tokens=2)
    assert again.statistics.reused_tokens > 0


def test_a_character_that_was_cut_is_whole_when_the_answer_goes_on(model: EdgeModel) -> None:
    first, *rest = tiny_loaded().tokenizer.encode("🎉")
    session = model.session(memory="off")
    cut = session.send("hi", max_tokens=2, logit_bias={first: 100.0}).result()
    assert "\ufffd" not in cut.text
    session.conversation.generated[1] = [first]
    for byte in rest:
        session.go_on(max_tokens=1, logit_bias={byte: 100.0}).result()
    assert session.messages[-1]["content"] == cut.text + "🎉"
