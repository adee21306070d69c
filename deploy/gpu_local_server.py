"""What explicit memory costs a local server of batch 32: the paper's local-server table, in one job for one GPU.

It measures the engine of `edge-client serve --provider torch` without HTTP and scheduler (`make bench-local-server`).
It is no scenario of `deploy/bench`, because it runs from a copy of the repository on a lent GPU, where torch and the
ground's packages are all that is installed.

    python -m deploy.gpu_local_server                                       # the paper's 2.4 B shape, bfloat16
    python -m deploy.gpu_local_server --shape qwen2.5-coder-1.5b --batch 1  # the default model's, one conversation
    python -m deploy.gpu_local_server --device cpu --shape tiny --rounds 2  # does it start at all?

As in the paper: 32 prompts of 128 tokens, 128 tokens are generated for each, throughput is 32 * 128 over the time for
both. A sequence reads 5 memories a chunk of 64 tokens; the first generated chunk keeps those of the last prompt chunk,
so there are 3 retrievals of 32 queries. Memories lie in a device's knowledge base, a generation reads each once, and
its file is dropped from the page cache before. On an A800 the paper has 733 tokens/s with memory, 1131 without.

Four variants in turn: `without` has no memory slots at all, `exact` waits for every retrieval, `overlap` retrieves in
a thread while tokens are read or generated, and `text` reads the five references of a chunk as text, once, before the
prompt, as retrieval-augmented generation does (its search costs nothing here). A retrieval is a search by given
vectors, reading, decompression and the copy into the slots; the embedder is no part of it. Weights and memories are
random: times are real, text is not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, astuple
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch

from deploy.bench.intervals import interleave, median_interval, ratio_interval
from edge_client.local.knowledge_base import LocalKnowledgeBase
from memory3.codec.codec import ProductCodec
from memory3.codec.payload import HEADER, MAGIC, MemoryFormat
from memory3.codec.tables import ProductTables
from memory3.config import MEMORY_FORMAT_VERSION, MemoryConfig, ModelConfig
from memory3.files.knowledge_file import Head, Reference
from memory_model.nn.decoder import Decoder, MemoryBatch
from memory_model.nn.decompression import TorchCodec
from memory_model.nn.serving import BatchedDecoder
from memory_model.nn.writing import stack_memories
from testing.shapes import SHAPES

DIMENSION = 1024
"""Numbers in a vector of a reference, as BGE-M3's."""
PREFIX = [1, 2, 3]
LEAD_TOKENS = 16
"""`overlap` asks so long before a chunk ends."""
PAPER = {"gpu": "A800", "tokens_per_s": {"without": 1131.0, "with": 733.0}, "ratio": 0.648}


def main(arguments: list[str] | None = None) -> int:
    """Make model, store and prompts, measure, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-local-server.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="memory3-2b", choices=SHAPES)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--answer-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=8, help="after one that is thrown away")
    parser.add_argument("--references", type=int, default=4800, help="in the store")
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("torch sees no GPU: run this on one, or give --device cpu --shape tiny", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


def random_decoder(config: ModelConfig, device: str, dtype: torch.dtype) -> Decoder:
    """Random weights, made where they are used."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return Decoder(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(torch.float32)


def random_format(config: ModelConfig, device: str) -> MemoryFormat:
    """The paper's codec, `OPQ,Residual2x14,PQ8x10`, with random tables, that decompresses on a device."""
    rng, d = np.random.default_rng(0), config.head_dim
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0].astype(np.float32)
    coarse = rng.standard_normal((2, 1 << 14, d // 2), np.float32)
    words = 0.3 * rng.standard_normal((8, 1 << 10, d // 8), np.float32)
    tables = ProductTables(np.zeros(d, np.float32), basis, words, coarse)
    return MemoryFormat(config, "5e" * 32, TorchCodec(ProductCodec(tables), device))


class LocalMemories:
    """Random full memories in a device's knowledge base. A query is the sum of the vectors that it is to find."""

    def __init__(self, folder: Path, memory_format: MemoryFormat, count: int, device: str, dtype: torch.dtype) -> None:
        """Write `count` memories to a new file in `folder`."""
        self.path, self.format, self.device, self.dtype = folder / "random.memories", memory_format, device, dtype
        self.memory, identity = memory_format.config.memory, memory_format.identity
        short = (bytes.fromhex(i)[:16] for i in astuple(identity))
        header = HEADER.pack(MAGIC, MEMORY_FORMAT_VERSION, self.memory.reference_tokens, *short)
        rng = np.random.default_rng(1)
        self.vectors = rng.standard_normal((count, DIMENSION), np.float32)
        self.vectors /= np.linalg.norm(self.vectors, axis=1, keepdims=True)
        self.base = LocalKnowledgeBase.create(self.path, Head.of("random", identity, "00" * 32, DIMENSION))
        for number, vector in enumerate(self.vectors):
            payload, text = header + rng.bytes(memory_format.full_bytes), f"reference {number}"
            crc32c = google_crc32c.value(payload)
            self.base.append([Reference(number + 1, str(number), "", 0, text, vector, payload, crc32c)])
        self.stream = torch.cuda.Stream() if device.startswith("cuda") else None
        self.found: list[int] = []
        self._next = 0

    def forget_pages(self) -> None:
        """Drop the file from the page cache."""
        self.base.content()  # empties the journal into it
        with self.path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def retrieve(self, sequences: int) -> MemoryBatch:
        """Memories [sequences, 1, k] on the device, of the next queries. `found` notes how many differ."""
        k = self.memory.memories_per_chunk
        those = (self._next + np.arange(sequences * k)) % len(self.vectors)
        self._next = int(those[-1]) + 1
        queries = self.vectors[those].reshape(sequences, k, -1).sum(axis=1)
        hits = self.base.retrieve(queries, k=k).hits
        payloads = {hit.memory_id: hit.payload for of_query in hits for hit in of_query if hit.payload}
        self.found.append(len(payloads))
        rows = [[payloads[hit.memory_id] for hit in of_query] for of_query in hits]
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            decoded = [self.format.decode(row) for row in rows]
            read = stack_memories(decoded, self.format.config, self.device)
            keys, values = (side.to(self.dtype) for side in (read.keys, read.values))
            memories = MemoryBatch(keys, values, read.valid)
            if self.stream:
                self.stream.synchronize()
        return memories


def generate(
    engine: BatchedDecoder,
    prompts: list[list[int]],
    answer_tokens: int,
    chunk_tokens: int,
    memories: LocalMemories | None = None,
    thread: ThreadPoolExecutor | None = None,
) -> torch.Tensor:
    """Read the prompts and answer greedily: int64 [B, answer_tokens].

    thread: retrieves while the decoder works, beginning LEAD_TOKENS before the end of a chunk; None: every
    retrieval is waited for at the end of its chunk.
    """
    everyone, chunks = list(range(len(prompts))), range(0, len(prompts[0]), chunk_tokens)
    lead = min(LEAD_TOKENS, chunk_tokens - 1) if thread else 0

    def ask() -> Future[MemoryBatch]:
        assert memories is not None
        if thread:
            return thread.submit(memories.retrieve, len(prompts))
        done: Future[MemoryBatch] = Future()
        done.set_result(memories.retrieve(len(prompts)))
        return done

    engine.clear(everyone)
    coming = ask() if memories else None
    for start in chunks:
        if coming:
            engine.inject(everyone, coming.result())
            coming = ask() if start != chunks[-1] else None
        logits = engine.prefill(everyone, [p[start : start + chunk_tokens] for p in prompts])
    tokens = logits.argmax(-1)
    answers = torch.empty(len(prompts), answer_tokens, dtype=torch.long, device=tokens.device)
    answers[:, 0] = tokens
    for number in range(1, answer_tokens):
        left = answer_tokens - number
        if memories and (number + lead) % chunk_tokens == 0 and left > lead:
            answers[:, :number].tolist()  # a query is text: it waits for the tokens
            coming = ask()
        if number % chunk_tokens == 0 and coming:
            engine.inject(everyone, coming.result())
            coming = None
        tokens = engine.step(tokens).argmax(-1)
        answers[:, number] = tokens
    return answers.cpu()


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures of one run."""
    config, cuda = SHAPES[options.shape], options.device.startswith("cuda")
    dtype, chunk = torch.bfloat16 if cuda else torch.float32, config.memory.chunk_tokens
    memories = LocalMemories(folder, random_format(config, options.device), options.references, options.device, dtype)
    model = random_decoder(config, options.device, dtype)
    capacity = len(PREFIX) + options.prompt_tokens + options.answer_tokens
    reading = BatchedDecoder(model, PREFIX, options.batch, capacity)
    model.set_memory(config.with_memory(MemoryConfig(reference_tokens=config.memory.reference_tokens)))
    plain = BatchedDecoder(model, PREFIX, options.batch, capacity)
    text_tokens = config.memory.memories_per_chunk * config.memory.reference_tokens
    with_text = BatchedDecoder(model, PREFIX, options.batch, capacity + text_tokens)
    rng = np.random.default_rng(2)
    texts = rng.integers(0, config.vocabulary, (options.batch, text_tokens + options.prompt_tokens)).tolist()
    prompts = [text[text_tokens:] for text in texts]

    def speed(engine: BatchedDecoder, *more: Any, read: list[list[int]] = prompts, at_once: int = chunk) -> float:
        memories.forget_pages()
        seconds = _timed(partial(generate, engine, read, options.answer_tokens, at_once, *more), cuda)
        return float(options.batch * options.answer_tokens / seconds)

    with ThreadPoolExecutor(1) as thread:
        variants: dict[str, Callable[[int], float]] = {
            "without": lambda _: speed(plain),
            "exact": lambda _: speed(reading, memories),
            "overlap": lambda _: speed(reading, memories, thread),
            "text": lambda _: speed(with_text, read=texts, at_once=len(texts[0])),
        }
        speeds = interleave(variants, options.rounds)
        retrieval_ms = [1e3 * _timed(partial(memories.retrieve, options.batch), cuda) for _ in range(options.rounds)]
    memories.base.close()
    copy = copy_bytes_per_s(options.device)
    steps = {name: step_cost(engine, options) for name, engine in (("without", plain), ("with", reading))}
    return {
        "gpu": torch.cuda.get_device_name() if cuda else "none: a processor",
        "torch": torch.__version__,
        "shape": config.name,
        **{name: getattr(options, name) for name in ("batch", "prompt_tokens", "answer_tokens")},
        "retrievals": -(-options.prompt_tokens // chunk) + -(-options.answer_tokens // chunk) - 1,
        "different_memories": float(np.mean(memories.found)),
        "tokens_per_s": {name: asdict(median_interval(values)) for name, values in speeds.items()},
        "ratio_exact": asdict(ratio_interval(speeds["exact"], speeds["without"])),
        "ratio_overlap": asdict(ratio_interval(speeds["overlap"], speeds["without"])),
        "ratio_to_text": asdict(ratio_interval(speeds["overlap"], speeds["text"])),
        "paper": PAPER,
        "retrieval_ms": asdict(median_interval(retrieval_ms)),
        "step_ms": {name: 1e3 * took for name, (took, _) in steps.items()},
        "step_bytes": {name: read for name, (_, read) in steps.items()},
        "copy_gb_per_s": copy / 1e9,
        "bandwidth_share": {name: read / took / copy for name, (took, read) in steps.items()},
    }


def step_cost(engine: BatchedDecoder, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds of a step halfway through an answer, and the bytes of weights and of valid cache rows that it reads."""
    memory, everyone = engine.config.memory, list(range(engine.sequences))
    engine.clear(everyone)
    if memory.heads:
        rows = engine.sequences, 1, memory.memories_per_chunk, memory.budget
        keys = torch.zeros(*rows, engine.config.head_dim, dtype=engine.dtype, device=engine.device)
        valid = torch.ones(rows, dtype=torch.bool, device=engine.device)
        engine.inject(everyone, MemoryBatch(keys, keys, valid))
    text = options.prompt_tokens + options.answer_tokens // 4
    engine.prefill(everyone, [[5] * text for _ in everyone])
    tokens, count = torch.full((engine.sequences,), 5, device=engine.device), options.answer_tokens // 2

    def steps() -> None:
        for _ in range(count):
            engine.step(tokens)

    took = _timed(steps, engine.device.type == "cuda") / count
    vector = 2 * engine.config.head_dim * engine.dtype.itemsize
    text_rows = engine.config.layers * engine.config.kv_heads * (engine.prefix + text + (count + 1) / 2)
    slot_rows = memory.memories_per_chunk * memory.budget
    read = *engine.model.layers.parameters(), engine.model.norm.weight, engine.model.head_weight
    weights = sum(x.nbytes for x in read)  # of the embedding a step reads a row for each sequence
    return took, weights + engine.sequences * vector * (text_rows + slot_rows)


def copy_bytes_per_s(device: str) -> float:
    """Bytes read plus bytes written a second by the best of some copies."""
    cuda = device.startswith("cuda")
    source = torch.ones((1 << 30) if cuda else (1 << 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(_timed(lambda: target.copy_(source), cuda) for _ in range(7))


def _timed(call: Callable[[], object], cuda: bool) -> float:
    """Seconds of a call, its work on the device included."""
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
