"""The device's whole way, readable in one go. Each line is a stage; each stage is a module.

prompt   messages -> tokens -> chunks of 64          memory_model.chat, edge_client.generate.prompt
recall   chunk -> query vector -> hits -> memories   edge_client.generate.chunk_recalls, overlap, recall
inject   memories -> slots of the caches             edge_client.decoder.sequence, kv
decode   tokens -> logits -> token                   edge_client.decoder.batch, sampling
stream   tokens -> text, events                      edge_client.generate.answer, stream_text, events
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np

from edge_client.generate.chunk_recalls import ChunkRecalls
from edge_client.generate.prompt import Chunk, asks
from edge_client.generate.sampling import Picked

Reading = Callable[[Sequence[int]], np.ndarray]


def read_prompt(chunks: Sequence[Chunk], recalls: ChunkRecalls, read: Reading) -> np.ndarray:
    """Every chunk of the prompt reads its own memories; returns the logits after the last token."""
    found = iter(recalls.for_prompt([chunk.query for chunk in chunks if chunk.query is not None]))
    for chunk in chunks:
        if chunk.query is not None:
            recalls.inject(*next(found))
        logits = read(chunk.tokens)
    return logits


def decode(
    logits: np.ndarray, pick: Callable[[np.ndarray], Picked], recalls: ChunkRecalls, read: Reading
) -> Iterator[Picked]:
    """Yield tokens for as long as the caller asks; every 64 of them get the memories of the next 64.

    The first 64 read what the last chunk of the prompt read (paper 3.1). What a chunk reads is asked for
    `lead_tokens` before it begins, so that decoding need not stand still: 0 when it shall wait ("exact").
    """
    for number in count(1):
        picked = pick(logits[-1])
        yield picked
        recalls.said(picked.id)
        if asks(number, recalls.chunk_tokens, recalls.lead_tokens):
            recalls.ask()
        if number % recalls.chunk_tokens == 0:
            recalls.begin_chunk()
        recalls.take_late()
        logits = read([picked.id])
