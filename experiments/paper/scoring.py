"""Log likelihoods and greedy texts of many questions that begin alike: what they share is read once.

The examples are read without memory, the question and its continuations with the memories of the question. (The paper
retrieves for each 64 tokens of a prompt, examples included.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memory3.text.tokenizer import Tokenizer
from memory_model.nn.decoder import MemoryBatch
from memory_model.nn.serving import BatchedDecoder

_BLOCK = 256
"""Tokens that are read at once: masks over a long prompt would be large."""


class SharedPrompts:
    """Sequences of a decoder that hold what the texts of a group of questions begin with. One thread at a time."""

    def __init__(self, engine: BatchedDecoder, shared: Sequence[int]) -> None:
        self.engine, self.shared = engine, len(shared)
        self._read(0, list(shared), engine.prefix)
        self._copy(engine.prefix, engine.prefix + self.shared, engine.sequences)

    def remember(self, memory: MemoryBatch | None) -> None:
        """All sequences read these memories [1, 1, m], or none."""
        self._remember(range(self.engine.sequences), memory)

    def _remember(self, sequences: Sequence[int], memory: MemoryBatch | None) -> None:
        self.engine.clear(sequences)
        if memory is not None:
            sides = (memory.keys, memory.values, memory.valid)
            self.engine.inject(sequences, MemoryBatch(*(x.expand(len(sequences), *x.shape[1:]) for x in sides)))

    @torch.inference_mode()
    def likelihoods(self, options: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """Log likelihood (nats) of each (context, continuation); contexts begin with what is shared."""
        whole = [[*context, *continuation] for context, continuation in options]
        # What all contexts begin with but for a token, whose logits each option needs.
        base = max(self.shared, min(common_prefix(whole), *(len(context) for context, _ in options)) - 1)
        found: list[float] = []
        P, together = self.engine.prefix, self.engine.sequences
        self._read(0, whole[0][self.shared : base], P + self.shared)
        self._copy(P + self.shared, P + base, together)
        for start in range(0, len(whole), together):
            part = options[start : start + together]
            rest = [text[base:-1] for text in whole[start : start + together]]
            longest = max(map(len, rest))
            padded = [[*text, *[0] * (longest - len(text))] for text in rest]
            logits = self.engine.run(0, padded, [P + base] * len(padded), every=True).unflatten(0, (len(part), -1))
            for row, (context, continuation) in zip(logits, part, strict=True):
                first = len(context) - base - 1
                own = row[first : first + len(continuation)].log_softmax(-1)
                found.append(float(own.gather(1, torch.tensor(continuation, device=own.device)[:, None]).sum()))
        return found

    @torch.inference_mode()
    def greedy(
        self,
        prompts: Sequence[list[int]],
        memories: Sequence[MemoryBatch | None],
        tokenizer: Tokenizer,
        until: str,
        longest: int,
    ) -> list[str]:
        """Greedy texts after prompts that begin with what is shared, at most one a sequence, up to a stop or a mark."""
        made: list[list[int]] = [[] for _ in prompts]
        behind = []
        for number, (prompt, memory) in enumerate(zip(prompts, memories, strict=True)):
            self._remember([number], memory)
            behind.append(self._read(number, prompt[self.shared :], self.engine.prefix + self.shared)[-1])
        logits, lengths = torch.stack(behind), [self.engine.prefix + len(prompt) for prompt in prompts]
        done = [False] * len(prompts)
        for _ in range(longest):
            tokens = logits.argmax(-1).tolist()
            for number, token in enumerate(tokens):
                if not done[number]:
                    done[number] = token in tokenizer.stop_ids
                    made[number] += [] if done[number] else [token]
                    done[number] |= until in tokenizer.decode(made[number])
            if all(done):
                break
            logits = self.engine.run(0, [[token] for token in tokens], lengths, every=False)
            lengths = [length + (not over) for length, over in zip(lengths, done, strict=True)]
        return [tokenizer.decode(ids).partition(until)[0] for ids in made]

    def _read(self, sequence: int, ids: list[int], length: int) -> torch.Tensor:
        """Logits [1, V] behind ids; an empty list reads nothing."""
        logits = torch.empty(0)
        for start in range(0, len(ids), _BLOCK):
            block = ids[start : start + _BLOCK]
            logits = self.engine.run(sequence, [block], [length + start], every=False)
        return logits

    @torch.inference_mode()
    def _copy(self, start: int, end: int, sequences: int) -> None:
        """Rows of the first sequence to the others."""
        for rows in self.engine.text.values():
            rows[1:sequences, :, start:end] = rows[:1, :, start:end]


def common_prefix(texts: Sequence[Sequence[int]]) -> int:
    """Tokens that all begin with."""
    least = min(map(len, texts))
    return next((n for n in range(least) if len({text[n] for text in texts}) > 1), least)
