"""The device's whole way, readable in one go. Each line is a stage; each stage is a module.

prompt   messages -> tokens -> chunks of 64          memory_model.chat, edge_client.prompt
recall   chunk -> query vector -> hits -> memories   edge_client.recall
inject   memories -> slots of the caches             edge_client.caches
decode   tokens -> logits -> token -> text           edge_client.decoder, sampling, stream_text
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from edge_client.prompt import Chunk
from edge_client.recall import Recall

Recalling = Callable[[Sequence[str]], list[Recall]]
Injecting = Callable[[int, Recall], None]
Reading = Callable[[Sequence[int]], np.ndarray]


def read_prompt(chunks: Sequence[Chunk], recall: Recalling, inject: Injecting, read: Reading) -> np.ndarray:
    """Every chunk of the prompt reads its own memories; returns the logits after the last token."""
    recalls = iter(recall([chunk.query for chunk in chunks if chunk.query is not None]))
    for chunk in chunks:
        if chunk.query is not None:
            inject(chunk.start, next(recalls))
        logits = read(chunk.tokens)
    return logits


def decode(
    logits: np.ndarray, pick: Callable[[np.ndarray], int], chunk_tokens: int, say: Callable[[list[int]], str],
    recall: Recalling, inject: Injecting, read: Reading,
) -> Iterator[int]:  # fmt: skip
    """Yield tokens for as long as the caller asks; every 64 of them recall the memories of the next 64.

    The first 64 read what the last chunk of the prompt read (paper 3.2).
    """
    generated: list[int] = []
    while True:
        token = pick(logits[-1])
        yield token
        generated.append(token)
        if len(generated) % chunk_tokens == 0 and (query := say(generated[-chunk_tokens:])):
            inject(-1, recall([query])[0])
        logits = read([token])
