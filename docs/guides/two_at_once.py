"""Two questions at the same time in one event loop: python docs/guides/two_at_once.py [BUNDLE] [SERVICE]."""

import asyncio
import sys

from edge_client import EdgeModel


async def main() -> None:
    """Both questions are decoded at once; the loop is free meanwhile. Cancelling a task ends its answer."""
    questions = ["What is the capital of Benin?", "What is the highest point of Togo?"]
    with await asyncio.to_thread(EdgeModel.open, *sys.argv[1:]) as model:
        answers = asyncio.gather(*(model.generate(q, max_tokens=32).aresult() for q in questions))
        for question, result in zip(questions, await asyncio.wait_for(answers, timeout=120), strict=True):
            read = ", ".join(memory.title for memory in result.memories) or "no memory"
            print(f"{question} {result.text} ({read})")


asyncio.run(main())
