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
        tiny.folder, service.address, recall="exact", deadline_s=20
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


async def test_cancel_gives_finished_and_arguments_are_checked_at_once(model: EdgeModel) -> None:
    session = await AsyncEdgeModel(model).session()
    with pytest.raises(InvalidInput):
        session.send("x", temperature=-1)
    stream = session.send(QUESTION, **{**MANY, "max_tokens": 400})
    with pytest.raises(SessionBusy):
        session.send("x")
    events = []
    async for event in stream:
        events.append(event)
        session.cancel()
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "cancelled"
