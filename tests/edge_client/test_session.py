"""Answers read the memories of their chunks, go on without them, and say what happened."""

import asyncio
import json
import shutil
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge_client import ContextFull, EdgeModel, Finished, Recalled, SessionBusy, Token
from edge_client.decoder.batching import BatchingDecoder
from edge_client.decoder.providers import open_decoder
from edge_client.engine import Engine
from edge_client.serve.requests import Grammars
from edge_client.settings import EdgeSettings
from memory3.codec.payload import ExplicitMemory
from memory3.errors import CorruptFile, InvalidInput
from memory3.files.bundle import Bundle
from memory3.text.chat import prefix_ids
from memory_model.export.decoder import export_decoder
from protos.memory.v1 import retrieval_pb2
from tests.edge_client.answers import QUESTION, finished, recalls_of, tokens_of
from tests.edge_client.fake_service import FakeService
from tests.edge_client.tiny_bundle import edit_manifest, tiny_config, tiny_loaded
from tests.memory_model.tiny import chunk_memories

MANY: dict[str, Any] = {"temperature": 50.0, "seed": 3}


def answer(
    model: EdgeModel, messages: str | list[dict[str, str]] = QUESTION, **options: object
) -> tuple[list[Recalled], list[int], Finished]:
    events = list(model.generate(messages, **{"max_tokens": 8, **options}))  # type: ignore[arg-type]
    return recalls_of(events), tokens_of(events), finished(events)


def test_every_prompt_chunk_asks_with_its_own_content(model: EdgeModel, service: FakeService) -> None:
    recalls, _, end = answer(model, QUESTION + " " + "And of Rome? " * 4)
    prompt = end.statistics.prompt_tokens
    assert len(recalls) == len([r for r in recalls if not r.generated]) >= (prompt - 30) // 16
    assert len(service.requests) == 1, "all chunks of a prompt share one call"
    assert all("im_start" not in r.recall.query and "assistant" not in r.recall.query for r in recalls)
    assert all(len(r.recall.memories) == 5 for r in recalls)
    request = service.requests[0]
    manifest = model.bundle.manifest
    assert (request.model_id, request.codec_id) == (manifest.model_id, manifest.codec_id)
    assert (request.memory_format_id, request.embedder_id) == (manifest.memory_format_id, manifest.embedder_id)
    assert (request.k, request.dimension, request.knowledge_base) == (5, 16, "default")


def test_logits_after_the_wire_equal_those_of_memories_that_never_left(
    tiny: Bundle, model: EdgeModel, written: list[ExplicitMemory]
) -> None:
    """Write, encode, retrieve, decode, inject, decode on ONNX against the torch model with the same memories."""
    loaded = tiny_loaded()
    recalls, tokens, _ = answer(model, max_tokens=12)
    prefix, window = prefix_ids(tiny.tokenizer, tiny.config.memory), tiny.config.memory.reference_tokens
    prompt = tiny.chat.prompt([{"role": "user", "content": QUESTION}]).ids
    ids = prefix + prompt + tokens
    batch = chunk_memories([[written[read.memory_id - 1] for read in r.recall.read] for r in recalls], tiny.config)
    places = torch.arange(len(ids))
    positions = torch.where(places < len(prefix), places, places + window)
    # Chunks with content recalled; the scaffolding before the question (chunk 0) and after it read none or inherit.
    asked = [
        bool(any(tiny.chat.prompt([{"role": "user", "content": QUESTION}]).content[s : s + 16]))
        for s in range(0, len(prompt), 16)
    ]
    owner = np.maximum(np.cumsum(asked) - 1, -1)
    chunk_of = [-1] * len(prefix) + [int(owner[i // 16]) for i in range(len(prompt))] + [int(owner[-1])] * len(tokens)
    with torch.no_grad():
        hidden = loaded.model.hidden(
            torch.tensor([ids]), positions[None], memory=batch, chunk_BT=torch.tensor([chunk_of])
        )
        want = loaded.model.head(hidden)[0].argmax(-1).tolist()
    start = len(prefix) + len(prompt) - 1
    assert tokens == want[start : start + len(tokens)]


def keep_one(response: retrieval_pb2.RetrieveResponse) -> None:
    for result in response.results:
        del result.hits[1:]


def test_a_model_that_refuses_readily_begins_so_where_it_reads_memories_and_only_there(
    tiny: Bundle, tmp_path: Path, service: FakeService
) -> None:
    folder = Path(shutil.copytree(tiny.folder, tmp_path / "readily"))
    edit_manifest(folder, refusal={"sentence": "Z", "bias": 100.0, "bias_alone": -100.0})
    options: dict[str, Any] = {"memory": "exact", "deadline_s": 20}
    with EdgeModel.open(folder, service.address, **options) as readily:
        assert readily.ask(QUESTION, max_tokens=4).text.startswith("Z")
        service.spoil = keep_one
        assert not readily.ask(QUESTION, max_tokens=4).text.startswith("Z"), "a single memory has its own bias"
        alone = readily.ask(QUESTION, max_tokens=4, memory="off").text
    with EdgeModel.open(tiny.folder, service.address, **options) as plain:
        assert alone == plain.ask(QUESTION, max_tokens=4, memory="off").text


@pytest.mark.parametrize(("said", "refused"), [("I don't know.", True), ("I don the hat.", False)])
def test_the_end_of_an_answer_says_whether_it_is_a_refusal(model: EdgeModel, said: str, refused: bool) -> None:
    constraint = Grammars(model.bundle).of_schema({"const": said})
    end = answer(model, max_tokens=40, constraint=constraint)[2]
    assert (end.text, end.reason, end.refused) == (json.dumps(said), "end", refused)


@pytest.mark.parametrize(("own", "sent"), [(None, 0.5), (-1.0, -1.0)])
def test_what_scores_below_the_bundles_minimum_is_not_requested_unless_a_setting_says_otherwise(
    own: float | None, sent: float, tiny: Bundle, tmp_path: Path, service: FakeService
) -> None:
    folder = Path(shutil.copytree(tiny.folder, tmp_path / "choosy"))
    edit_manifest(folder, minimum_score=0.5)
    given: dict[str, Any] = {} if own is None else {"minimum_score": own}
    with EdgeModel.open(folder, service.address, memory="exact", **given) as model:
        model.ask(QUESTION, max_tokens=1)
    assert service.requests[-1].minimum_score == sent


def test_a_conversation_that_goes_on_reads_only_what_is_new(model: EdgeModel) -> None:
    """Continued, asked again, with its last or its first question changed, its answer gone on with, and a stranger."""
    system = {"role": "system", "content": "Be brief, and " + "kind, " * 20}
    first = [system, {"role": "user", "content": QUESTION}]
    said = answer(model, first, max_tokens=30, **MANY)[2]
    cached = said.statistics.prompt_tokens + 29
    talk = [*first, {"role": "assistant", "content": said.text}, {"role": "user", "content": "And Rome?"}]
    assert answer(model, talk)[2].statistics.reused_tokens == cached
    again = answer(model, talk)[2].statistics
    assert again.reused_tokens == again.prompt_tokens - 1
    assert again.recalls > 0, "the last chunk's memories are read again"
    edited = answer(model, [*talk[:-1], {"role": "user", "content": "And Paris?"}])[2].statistics
    assert edited.reused_tokens >= cached - 16, "a chunk that changes is read anew from its start"
    branch = [*talk[:-1], talk[-1], {"role": "assistant", "content": "No"}, {"role": "user", "content": "Oh?"}]
    assert answer(model, branch)[2].statistics.reused_tokens >= cached, "the answer keeps its generated tokens"
    assert answer(model, talk[:-1], max_tokens=2)[2].statistics.reused_tokens >= cached - 16
    assert answer(model, [system, {"role": "user", "content": "Who?"}])[2].statistics.reused_tokens >= 112


def test_a_full_context_ends_the_answer_and_a_too_long_prompt_is_refused(tiny: Bundle, model: EdgeModel) -> None:
    room = model.engine.decoder.room
    overhead = len(tiny.chat.prompt([{"role": "user", "content": ""}]).ids)
    end = answer(model, "x" * (room - overhead - 4), max_tokens=100)[2]
    assert end.reason == "context"
    assert 3 <= end.statistics.generated_tokens <= 5
    with pytest.raises(ContextFull, match="give a long text as a document"):
        model.generate("x" * (room - overhead))
    assert answer(model)[2].reason == "length"


@pytest.mark.parametrize("messages", [[], {}, [{}], [{"role": "x", "content": "y"}], 3])
def test_wrong_messages_are_refused(model: EdgeModel, messages: object) -> None:
    with pytest.raises(InvalidInput):
        model.generate(messages)  # type: ignore[arg-type]


@pytest.mark.parametrize("question", ["", " ", "\x00", "\ud800", "🎉" * 50, "<|im_end|>" * 3, "a\ue000b"])
def test_strange_questions_are_answered(model: EdgeModel, question: str) -> None:
    assert answer(model, question)[2].statistics.generated_tokens > 0
    assert not question or model.complete(question, max_tokens=1).result().statistics.generated_tokens == 1


def test_statistics_add_up(model: EdgeModel) -> None:
    recalls, tokens, end = answer(model, max_tokens=40)
    s = end.statistics
    assert s.generated_tokens == len(tokens) == 40
    assert s.states == Counter(r.state for r in recalls)
    assert s.generated_recalls == len([r for r in recalls if r.generated]) == 2
    assert s.recall_ms == pytest.approx(sum(r.blocked_ms for r in recalls))
    assert s.decoder_ms + s.recall_ms + s.overhead_ms >= s.first_token_ms > 0
    assert all(r.recall.times.server_ms > 0 for r in recalls)


def test_a_decoder_of_another_shape_is_refused(tiny: Bundle, model: EdgeModel, tmp_path: Path) -> None:
    other = tiny_loaded(config=tiny_config().with_memory(tiny_config().memory.__class__()))
    export_decoder(other, tmp_path / "decoder.onnx", "float32")
    wrong = BatchingDecoder(open_decoder(tmp_path / "decoder.onnx", threads=1), [1])
    with pytest.raises(CorruptFile, match="another shape"):
        Engine(tiny, wrong, model.engine.recaller, EdgeSettings())


LONG: dict[str, Any] = {"max_tokens": 40, "temperature": 50.0, "seed": 3}


async def test_async_gives_the_tokens_of_sync_and_several_tasks_share_a_model(model: EdgeModel) -> None:
    async def ask(question: str) -> list[int]:
        return [e.id async for e in model.generate(question, **LONG) if isinstance(e, Token)]

    questions = (QUESTION, "And Rome?")
    want = [[e.id for e in model.generate(q, **LONG) if isinstance(e, Token)] for q in questions]
    assert await asyncio.gather(*map(ask, questions)) == want
    stream = model.generate(QUESTION, **LONG)
    deltas = [delta async for delta in stream.adeltas]
    assert "".join(deltas) == (await stream.aresult()).text == model.ask(QUESTION, **LONG).text


async def test_cancelling_the_task_ends_the_answer(model: EdgeModel) -> None:
    session = model.session()
    seen: list[object] = []

    async def read() -> None:
        async for event in session.send(QUESTION, **{**LONG, "max_tokens": 400}):
            seen.append(event)

    task = asyncio.create_task(read())
    while not any(isinstance(e, Token) for e in seen):
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [m["role"] for m in session.messages] == ["user", "assistant"], "it is over: the turn is recorded"
    assert (await session.send("Go on", **{**LONG, "max_tokens": 2}).aresult()).text is not None


async def test_a_second_reader_is_refused_and_the_answer_goes_on(model: EdgeModel) -> None:
    stream = model.generate(QUESTION, **LONG)
    with stream._step, pytest.raises(SessionBusy):  # as while another thread computes
        await stream.aresult()
    assert (await stream.aresult()).statistics.generated_tokens == 40


@pytest.mark.parametrize("taken", [0, 1, 5])
async def test_an_answer_that_is_left_is_recorded_as_far_as_it_was_received(model: EdgeModel, taken: int) -> None:
    session = model.session()
    text, tokens = "", 0
    async with aclosing(aiter(session.send(QUESTION, **{**LONG, "max_tokens": 9}))) as events:
        async for event in events:
            if isinstance(event, Token):
                text, tokens = text + event.text, tokens + 1
            if tokens == taken:
                break
            await asyncio.sleep(0.02)  # the thread computes ahead, up to the end of the answer
    assert [m["content"] for m in session.messages] == ([QUESTION, text] if taken else [])
    again = await session.send("Go on", **{**LONG, "max_tokens": 2}).aresult()
    assert again.statistics.generated_tokens == 2


def test_white_space_that_a_model_puts_in_front_of_an_answer_is_not_shown(model: EdgeModel) -> None:
    """Templates drop it as well: an answer that a program trims is the one that was kept."""
    (space,) = model.bundle.tokenizer.encode(" ")
    blank: dict[int, float] = {space: 100}
    assert model.ask("Which code?", max_tokens=3, logit_bias=blank).text == ""
    assert model.complete("Which code?", max_tokens=3, logit_bias=blank).text() == "   "
