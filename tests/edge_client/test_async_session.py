"""The asynchronous twins give the same tokens, leave the loop free, and end with their task."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from edge_client import AsyncEdgeModel, EdgeModel, Finished, SessionBusy, Token
from memory_model.bundle import Bundle
from memory_model.errors import InvalidInput
from tests.edge_client.fake_service import FakeService

QUESTION = "What is the code of Lima?"
MANY: dict[str, Any] = {"max_tokens": 40, "temperature": 50.0, "seed": 3}


async def test_async_gives_the_tokens_of_sync(model: EdgeModel, tmp_path: Path) -> None:
    session, twin = model.session("Be brief."), await AsyncEdgeModel(model).session("Be brief.")
    for question in (QUESTION, "And Rome?"):
        want = [e.id for e in session.send(question, **MANY) if isinstance(e, Token)]
        events = [e async for e in twin.send(question, **MANY)]
        assert [e.id for e in events if isinstance(e, Token)] == want
        assert isinstance(events[-1], Finished)
    assert twin.messages == session.messages
    await twin.save(tmp_path / "chat")
    loaded = await AsyncEdgeModel(model).load_session(tmp_path / "chat")
    assert loaded.messages == twin.messages


async def test_it_opens_closes_and_answers_several_tasks(tiny: Bundle, service: FakeService) -> None:
    async with await AsyncEdgeModel.open(
        tiny.folder, service.address, memory="exact", deadline_s=20
    ) as model:

        async def ask(question: str) -> list[int]:
            return [e.id async for e in model.generate(question, **MANY) if isinstance(e, Token)]

        alone = [await ask(q) for q in (QUESTION, "Rome?")]
        assert await asyncio.gather(ask(QUESTION), ask("Rome?")) == alone


async def test_cancelling_the_task_ends_the_answer(model: EdgeModel) -> None:
    session = await AsyncEdgeModel(model).session()
    seen: list[object] = []

    async def read() -> None:
        async for event in session.send(QUESTION, **{**MANY, "max_tokens": 400}):
            seen.append(event)

    task = asyncio.create_task(read())
    while not any(isinstance(e, Token) for e in seen):
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [m["role"] for m in session.messages] == ["user", "assistant"], "it is over: the turn is recorded"
    assert [e async for e in session.send("Go on", **{**MANY, "max_tokens": 2})]


@pytest.mark.parametrize("taken", [0, 1, 5])
async def test_an_answer_that_is_left_is_recorded_as_far_as_it_was_received(
    model: EdgeModel, taken: int
) -> None:
    session = await AsyncEdgeModel(model).session()
    stream = session.send(QUESTION, **{**MANY, "max_tokens": 9})
    text, tokens = "", 0
    async for event in stream:
        if isinstance(event, Token):
            text, tokens = text + event.text, tokens + 1
        if tokens == taken:
            break
        await asyncio.sleep(0.02)  # the thread computes ahead, up to the end of the answer
    await stream.close()
    want = [] if not taken else [QUESTION, text]
    assert [m["content"] for m in session.messages] == want
    assert session.take_back() == QUESTION if taken else not session.messages
    again = await session.send("Go on", **{**MANY, "max_tokens": 2}).result()
    assert again.statistics.generated_tokens == 2


async def test_the_twin_has_all_that_the_model_has(model: EdgeModel) -> None:
    twin = AsyncEdgeModel(model)
    assert {n for n in vars(EdgeModel) if not n.startswith("_")} - set(vars(AsyncEdgeModel)) == {
        "answer", "check_open", "check_text", "checked", "policy_with", "sequence",
    }  # fmt: skip
    assert (await twin.ask(QUESTION, max_tokens=9)).text == model.ask(QUESTION, max_tokens=9).text
    assert (
        "".join([d async for d in twin.complete("A b", **MANY).deltas])
        == model.complete("A b", **MANY).text()
    )
    other = twin.with_knowledge_base("towns")
    assert (await other.ask(QUESTION, max_tokens=2)).memories
    await other.close()


async def test_cancel_gives_finished_and_arguments_are_checked_at_once(model: EdgeModel) -> None:
    session = await AsyncEdgeModel(model).session()
    with pytest.raises(InvalidInput):
        session.send("x", temperature=-1)
    stream = session.send(QUESTION, **{**MANY, "max_tokens": 400})
    events = []
    async for event in stream:
        if not events:
            with pytest.raises(SessionBusy, match="read it to its end, or end it with"):
                session.send("x")
        events.append(event)
        session.cancel()
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "cancelled"
