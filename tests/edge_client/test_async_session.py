"""A stream read in asyncio gives the same tokens, leaves the loop free, and ends with its task."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from edge_client import EdgeModel, SessionBusy, Token

QUESTION = "What is the code of Lima?"
MANY: dict[str, Any] = {"max_tokens": 40, "temperature": 50.0, "seed": 3}


async def test_async_gives_the_tokens_of_sync_and_several_tasks_share_a_model(model: EdgeModel) -> None:
    async def ask(question: str) -> list[int]:
        return [e.id async for e in model.generate(question, **MANY) if isinstance(e, Token)]

    questions = (QUESTION, "And Rome?")
    want = [[e.id for e in model.generate(q, **MANY) if isinstance(e, Token)] for q in questions]
    assert await asyncio.gather(*map(ask, questions)) == want
    stream = model.generate(QUESTION, **MANY)
    deltas = [delta async for delta in stream.adeltas]
    assert "".join(deltas) == (await stream.aresult()).text == model.ask(QUESTION, **MANY).text


async def test_cancelling_the_task_ends_the_answer(model: EdgeModel) -> None:
    session = model.session()
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
    assert (await session.send("Go on", **{**MANY, "max_tokens": 2}).aresult()).text is not None


async def test_a_second_reader_is_refused_and_the_answer_goes_on(model: EdgeModel) -> None:
    stream = model.generate(QUESTION, **MANY)
    with stream._step, pytest.raises(SessionBusy):  # as while another thread computes
        await stream.aresult()
    assert (await stream.aresult()).statistics.generated_tokens == 40


@pytest.mark.parametrize("taken", [0, 1, 5])
async def test_an_answer_that_is_left_is_recorded_as_far_as_it_was_received(model: EdgeModel, taken: int) -> None:
    session = model.session()
    text, tokens = "", 0
    async with aclosing(aiter(session.send(QUESTION, **{**MANY, "max_tokens": 9}))) as events:
        async for event in events:
            if isinstance(event, Token):
                text, tokens = text + event.text, tokens + 1
            if tokens == taken:
                break
            await asyncio.sleep(0.02)  # the thread computes ahead, up to the end of the answer
    assert [m["content"] for m in session.messages] == ([QUESTION, text] if taken else [])
    again = await session.send("Go on", **{**MANY, "max_tokens": 2}).aresult()
    assert again.statistics.generated_tokens == 2
