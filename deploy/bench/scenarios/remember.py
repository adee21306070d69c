"""Writing memories on the device: references a second, the cost to simultaneous decoding, and a local search."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from deploy.bench.answers.answering import Endless
from deploy.bench.answers.knowledge import fewer_of_large, portions
from deploy.bench.intervals import interleave, median_interval, ratio_interval
from deploy.bench.scenario import BUILD, Keys, Scenario, Settings, Sheet, figure, with_intervals
from edge_client import EdgeModel, Token
from edge_client.local.folder import remember
from edge_client.local.knowledge_base import LocalKnowledgeBase
from edge_client.local.records import LocalDocument
from edge_client.local.writer import MemoryWriter, Written
from memory3.files.bundle import Bundle
from memory3.files.knowledge_file import Head
from memory3.text.words import query_words

TITLE_WORDS = "What is the capital of Norway?"


class RememberSettings(Settings):
    """references: about so many a round; None: 48 of a model of 135M parameters, of others by their size.

    answer_tokens: of the answers meanwhile. stored: references of the search.
    """

    rounds: int = 5
    references: int | None = Field(default=None, ge=1, le=1000)
    answer_tokens: int = Field(default=128, ge=2, le=2048)
    stored: int = Field(default=100_000, ge=100, le=1_000_000)


def measure(settings: RememberSettings) -> Keys:
    """Remembering alone, decoding alone, decoding while a thread remembers, and searching, in turn."""
    bundle = Bundle.open(settings.bundle)
    embedder = bundle.embedder()
    head = Head.of("bench", bundle.identity, bundle.manifest.embedder_id, embedder.dim)
    tokens, rounds = bundle.config.memory.reference_tokens, settings.rounds + settings.warm_up
    references = settings.references or fewer_of_large(48, bundle.config)
    given = list(islice(portions(bundle.tokenizer.count, tokens, references), rounds))
    queries = np.random.default_rng(1).standard_normal((rounds, head.dimension)).astype(np.float32)
    BUILD.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=BUILD) as folder,
        EdgeModel.open(bundle.folder, offline=True, local=folder, threads=settings.threads, provider="cpu") as model,
    ):
        large = filled(Path(folder, "large.db"), head, settings.stored)
        writer = MemoryWriter(bundle, embedder=embedder, decoder=model.engine.decoder)
        endless = Endless(bundle.tokenizer)
        pauses: dict[str, list[float]] = {"usual_pause_ms": [], "pause_ms": []}

        def remembering(number: int, ended: Callable[[], bool] = lambda: False) -> float:
            base = LocalKnowledgeBase.create(Path(folder, f"{time.monotonic_ns()}.db"), head)
            began, references = time.perf_counter(), 0
            for one in remember(base, writer, given[number].documents):
                references += one.references if one.outcome == "stored" else 0
                if ended():
                    break
            base.close()
            return references / (time.perf_counter() - began)

        def decoding(number: int, pause: str = "usual_pause_ms") -> float:
            """Tokens a second behind the first; of the same answer alone and while memories are written."""
            events = model.generate(
                f"{number}: tell me a story.", memory="off", max_tokens=settings.answer_tokens, constraint=endless
            )
            came = [time.perf_counter() for event in events if isinstance(event, Token)]
            pauses[pause].append(1e3 * max(b - a for a, b in pairwise(came)))
            return (len(came) - 1) / (came[-1] - came[0])

        def while_writing(number: int) -> float:
            over = threading.Event()

            def go_on() -> None:
                while not over.is_set():
                    remembering(number, over.is_set)

            thread = threading.Thread(target=go_on)
            thread.start()
            try:
                return decoding(number, "pause_ms")
            finally:
                over.set()
                thread.join()

        def searching(number: int) -> float:
            began = time.perf_counter()
            large.retrieve(queries[[number]], k=5, words=[query_words(TITLE_WORDS)])
            return 1e3 * (time.perf_counter() - began)

        variants: dict[str, Callable[[int], float]] = {
            "remember": remembering,
            "alone": decoding,
            "writing": while_writing,
            "search": searching,
        }
        samples = interleave(variants, settings.rounds, warm_up=settings.warm_up, label="remembering")
    return with_intervals(
        {"model": bundle.manifest.name, "threads": settings.threads, "stored": settings.stored},
        references_per_s=median_interval(samples["remember"]),
        tokens_per_s=median_interval(samples["alone"]),
        decoder_share=ratio_interval(samples["writing"], samples["alone"]),
        **{name: median_interval(each[settings.warm_up :]) for name, each in pauses.items()},
        search_ms=median_interval(samples["search"]),
    )


def filled(path: Path, head: Head, count: int) -> LocalKnowledgeBase:
    """A knowledge base of random unit vectors, with texts of eighty words and payloads of a byte."""
    base, rng = LocalKnowledgeBase.create(path, head), np.random.default_rng(0)
    for start in range(0, count, 1000):
        rows = rng.standard_normal((min(1000, count - start), head.dimension)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        texts = [10 * f"Reference {start + n} says that {n * 37} is a number. " for n in range(len(rows))]
        base.add(LocalDocument(f"document {start}"), texts, Written([b"\0"] * len(rows), rows))
    return base


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """One row."""
    names = ("references_per_s", "tokens_per_s", "decoder_share", "pause_ms", "usual_pause_ms", "search_ms")
    search = f"search of {result['stored']:,}, ms ↓"
    share, pause = "decoder's share while remembering ↑", "longest pause between two tokens, ms ↓"
    columns = ("references/s ↑", "tokens/s alone ↑", share, pause, "alone, ms ↓", search)
    note = "One thread writes, embeds and stores durably. A search queries random vectors by vector and words."
    return [
        Sheet(
            f"remembering on the device, {result['model']}, {result['threads']} decoder threads",
            columns,
            [tuple(figure(result, name) for name in names)],
            note,
        )
    ]


SCENARIO = Scenario(
    name="remember",
    summary="Writing memories on the device: speed, effect on decoding, and a local search.",
    settings=RememberSettings,
    measure=measure,
    sheets=sheets,
    quick={"rounds": 1, "warm_up": 0, "references": 8, "answer_tokens": 16, "stored": 2000},
)
