"""What five memories cost a decoding step: the exported decoder with and without them, round by round in turn.

    python -m deploy.edge_speed --decoder build/bundle/decoder.onnx

The memories are random numbers of full length: speed does not depend on what they say. Prints medians over all steps,
the ratio of the medians with its spread over the rounds, and the milliseconds of a step outside the runtime's `run`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edge_client.decoder import OnnxDecoder
from memory_model.memory import ExplicitMemory

PROMPT_TOKENS = 128


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--decoder", type=Path, default=Path("build/bundle/decoder.onnx"))
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--tokens", type=int, default=128)
    arguments.add_argument("--threads", type=int, default=1)
    options = arguments.parse_args()
    decoder = OnnxDecoder(options.decoder, threads=options.threads)
    inside = _timed_run(decoder)
    rng = np.random.default_rng(0)
    config = decoder.config
    shape = (config.memory.budget, config.head_dim)
    memories = []
    for _ in range(config.memory.memories_per_chunk):
        keys, values = rng.standard_normal((2, *shape), np.float32)
        memories.append(ExplicitMemory(keys, values, config.memory.reference_tokens))
    prompt = rng.integers(0, config.vocabulary, PROMPT_TOKENS).tolist()
    steps: dict[int, list[float]] = {0: [], len(memories): []}
    outside: list[float] = []
    inject: list[float] = []
    ratios = []
    for _ in range(options.rounds):
        for count in steps:
            decoder.rewind(0)
            began = time.perf_counter()
            decoder.inject(memories[:count])
            if count:
                inject.append(time.perf_counter() - began)
            for start in range(0, PROMPT_TOKENS, config.memory.chunk_tokens):
                decoder.run(prompt[start : start + config.memory.chunk_tokens], 200 + start)
            for token in range(options.tokens):
                before, began = inside[0], time.perf_counter()
                decoder.run([5], 200 + PROMPT_TOKENS + token)
                took = time.perf_counter() - began
                steps[count].append(took)
                outside.append(took - (inside[0] - before))
        without, with_all = (median(s[-options.tokens :]) for s in steps.values())
        ratios.append(without / with_all)
    for count, times in steps.items():
        print(f"{count} memories: {1 / median(times):.1f} tokens/s (median step)")
    print(f"ratio with / without: median {median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"outside run: {1e6 * median(outside):.0f} us a step; inject: {1e3 * median(inject):.2f} ms")


def _timed_run(decoder: OnnxDecoder) -> list[float]:
    """A running total (one number, seconds) of the time spent inside the runtime."""
    total = [0.0]
    run: Callable[[Any], None] = decoder.graph.session.run_with_iobinding

    def timed(binding: Any) -> None:
        began = time.perf_counter()
        run(binding)
        total[0] += time.perf_counter() - began

    decoder.graph.session.run_with_iobinding = timed
    return total


if __name__ == "__main__":
    main()
