"""A prompt cut into chunks, and the query text of each (paper 3.1).

The grid is fixed to the conversation: chunk n holds text tokens 64 n to 64 n + 63. A query is made of
what people and the model wrote up to the chunk's end, never of the template's scaffolding; a turn with less than 64
such tokens looks further back, and a chunk without any reads what the chunk before it read. So a chunk's memories
follow from the text up to its end, by which `CachedSequence` decides what need not be read again.

A question may be about something else than those before it, or need them ("And how high is it?"). So a query's vector
lies between that of the question alone and that of all; its words are its own, and those of earlier questions only tell
which document is meant (decision 0005).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.retrieval import Query
from memory3.text.chat import Prompt
from memory3.text.tokenizer import Tokenizer

_EARLIER = 3
"""Turns of the same speaker that a query looks back on."""


@dataclass(frozen=True)
class Chunk:
    """Tokens that are read together, with the same memories.

    start: index of the first one in the text. query: what to recall with; None keeps the memories of the chunk
    before.
    """

    start: int
    tokens: list[int]
    query: Query | None


def cut(prompt: Prompt, tokenizer: Tokenizer, chunk_tokens: int, start: int = 0, *, held: bool = True) -> list[Chunk]:
    """The chunks of `prompt` from token `start` on; the first is shorter if `start` is inside the grid.

    held: whether the slots hold the memories of the token before `start`. If not, the first chunk requests them even
    where it has no content: the last content before it is what those were found with.
    """
    chunks: list[Chunk] = []
    while start < len(prompt.ids):
        end = min((start // chunk_tokens + 1) * chunk_tokens, len(prompt.ids))
        query_start = start if held or chunks else 0
        query = query_text(prompt, tokenizer, query_start, end, chunk_tokens)
        chunks.append(Chunk(start, prompt.ids[start:end], query))
        start = end
    return chunks


def query_text(prompt: Prompt, tokenizer: Tokenizer, start: int, end: int, limit: int) -> Query | None:
    """The last turn up to `end`, and the same speaker's before it, or the other's if there is none.

    Each from its end, at most `limit` content tokens together, the newest first. None if the chunk itself holds no
    content.
    """
    if not any(prompt.content[start:end]):
        return None
    turns: list[list[int]] = []
    was_content = False
    for token, is_content in zip(prompt.ids[end - 1 :: -1], prompt.content[end - 1 :: -1], strict=True):
        if is_content:
            if not was_content:
                if len(turns) > 2 * _EARLIER:
                    break
                turns.append([])
            turns[-1].append(token)
        was_content = is_content
    texts, left = [], limit
    for turn in [turns[0], *(turns[2::2] or turns[1:])]:
        texts.append(tokenizer.decode(turn[:left][::-1]).strip())
        left = max(left - len(turn), 0)
    text, *earlier = texts
    earlier = [turn for turn in earlier if turn]
    if not text:
        text, earlier = (earlier[0], []) if earlier else ("", [])
    return Query(text, earlier) if text else None


def last_turn(prompt: Prompt) -> int:
    """Where in the text the last of what people and the model wrote begins; 0 if they wrote nothing."""
    wrote = False
    for n in range(len(prompt.ids) - 1, -1, -1):
        if wrote and not prompt.content[n]:
            return n + 1
        wrote = wrote or prompt.content[n]
    return 0


def requests_recall(generated: int, chunk_tokens: int, lead_tokens: int = 0) -> bool:
    """Whether the next chunk's memories are requested now, after `generated` tokens of an answer.

    lead_tokens: how long before the chunk's end; 0 requests at its end (paper 3.1). At least one of the chunk's own
    tokens is always there.
    """
    return generated > 0 and (generated + min(lead_tokens, chunk_tokens - 1)) % chunk_tokens == 0
