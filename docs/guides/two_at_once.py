"""Two questions at the same time in one event loop: python docs/guides/two_at_once.py [BUNDLE] [SERVICE]."""

import asyncio
import sys

from edge_client import AsyncEdgeModel, Finished


async def answer(model: AsyncEdgeModel, question: str) -> str:
    """The whole answer. Cancelling the task would end it within one step of the decoder."""
    async for event in model.generate(question, max_tokens=32):
        if isinstance(event, Finished):
            return f"{question} {event.text} ({event.reason})"
    raise AssertionError("an answer always ends with Finished")


async def main() -> None:
    """Both questions are decoded at once; the loop is free meanwhile."""
    questions = ["What is the capital of Benin?", "What is the highest point of Togo?"]
    async with await AsyncEdgeModel.open(*sys.argv[1:]) as model:
        answers = asyncio.gather(*(answer(model, question) for question in questions))
        for line in await asyncio.wait_for(answers, timeout=120):
            print(line)


asyncio.run(main())
