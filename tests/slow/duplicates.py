"""Recall of the local store on corpora with duplicates, against comparing every vector: a table.

    python -m tests.slow.duplicates --count 100000

Each query is the vector of a document, a little moved; its recall is the share of the five nearest that are found. It
is reported for documents that have no duplicate, and for the duplicates. Vectors are of topics, as texts are;
duplicates are copies of 20 of them, equal or nearly so. A tenth of the documents is deleted and a tenth replaced before
the queries.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memory_service.stores.local.store import LocalStore
from memory_service.stores.store import Query
from tests.memory_service.stored import IDENTITY, document

DIMENSION, GROUPS, TOPICS, K = 384, 20, 400, 5
SHARES = (0.0, 0.01, 0.1, 0.5)
NOISE = {
    "equal": (0.0, 0.0),
    "cosine 0.999": (0.0316, 0.0316),
    "cosine 0.99": (0.1, 0.1),
    "cosine 0.985": (0.1234, 0.1234),
    "0.985 to 0.999": (0.0316, 0.1234),
}
"""Least and largest length by which a copy is moved; two that are moved by d have a cosine of 1 / (1 + d²)."""
_BATCH = 500
_SAME_SCORE = 2e-3  # vectors are kept as 16-bit floats


class Outcome(NamedTuple):
    """Recall over the queries: on average, of their worst tenth, and how many find the document they come from.

    copies_…: of queries that come from duplicates.
    """

    mean: float
    worst_decile: float
    own: float
    copies_mean: float
    copies_worst_decile: float
    written_per_s: float
    query_ms: float


Noise = tuple[float, float]


def corpus(count: int, share: float, noise: Noise) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors float32 [count, DIMENSION], and which are duplicates, bool [count]."""
    chance = np.random.default_rng(int(1000 * share + 1e4 * sum(noise)))
    topics = chance.standard_normal((TOPICS, DIMENSION))
    copies = int(count * share)

    def of_topics(n: int) -> np.ndarray:
        return unit(topics[chance.integers(TOPICS, size=n)] + 0.8 * chance.standard_normal((n, DIMENSION)))

    repeated = of_topics(GROUPS)[chance.integers(GROUPS, size=copies)]
    lengths = chance.uniform(*noise, size=(copies, 1))
    repeated = unit(repeated + lengths / np.sqrt(DIMENSION) * chance.standard_normal(repeated.shape))
    order = chance.permutation(count)
    vectors = np.concatenate([of_topics(count - copies), repeated])[order]
    return vectors, (np.arange(count) >= count - copies)[order]


def unit(vectors: np.ndarray) -> np.ndarray:
    """At length one."""
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def measured(count: int, share: float, noise: Noise, queries: int) -> Outcome:
    """One row of the table."""
    vectors, duplicate = corpus(count, share, noise)
    template = document("d", "text")
    chance = np.random.default_rng(7)
    deleted = chance.permutation(count)[: count // 10]
    replaced = chance.permutation(count)[: count // 10]

    with tempfile.TemporaryDirectory() as folder, closing(LocalStore(Path(folder))) as store:
        base = store.create("kb", "", replace(IDENTITY, dimension=DIMENSION))

        def write(numbers: np.ndarray, version: int) -> None:
            for start in range(0, len(numbers), _BATCH):
                batch = []
                for number in numbers[start : start + _BATCH].tolist():
                    one = replace(template.references[0], memory_id=2 * number + version, vector=vectors[number])
                    content_hash = number.to_bytes(31, "big") + bytes([version])
                    batch.append(replace(template, key=f"d{number}", content_hash=content_hash, references=[one]))
                store.write(base, batch)

        began = time.perf_counter()
        write(np.arange(count), 0)
        written_per_s = count / (time.perf_counter() - began)
        for start in range(0, len(deleted), _BATCH):
            store.delete(base, [f"d{number}" for number in deleted[start : start + _BATCH]])
        living = np.ones(count, bool)
        living[deleted] = False
        write(replaced[living[replaced]], 1)

        def searched(chosen: np.ndarray) -> tuple[list[float], float, float]:
            """Recall of each query, share of those that find their own document, ms a query."""
            noise = chance.standard_normal((len(chosen), DIMENSION))
            moved = unit(vectors[chosen] + 0.3 / np.sqrt(DIMENSION) * noise)
            began = time.perf_counter()
            hits = [store.retrieve(base, Query(query[None], K)).hits[0] for query in moved]
            query_ms = 1000 * (time.perf_counter() - began) / max(1, len(chosen))
            recalls, own = [], 0
            for query, number, found in zip(moved, chosen.tolist(), hits, strict=True):
                scores = np.where(living, vectors @ query, -1.0)
                least = np.partition(scores, -K)[-K] - _SAME_SCORE
                numbers = [int(hit.document_key[1:]) for hit in found]
                recalls.append(sum(scores[one] >= least for one in numbers) / K)
                own += number in numbers
            return recalls, own / max(1, len(chosen)), query_ms

        recalls, own, query_ms = searched(np.flatnonzero(~duplicate & living)[:queries])
        of_copies, _, _ = searched(np.flatnonzero(duplicate & living)[:queries])
    mean, worst = _mean_and_worst(recalls)
    return Outcome(mean, worst, own, *_mean_and_worst(of_copies), written_per_s, query_ms)


def _mean_and_worst(recalls: list[float]) -> tuple[float, float]:
    """Of all and of the worst tenth; 1 where there are none."""
    if not recalls:
        return 1.0, 1.0
    return float(np.mean(recalls)), float(np.mean(sorted(recalls)[: max(1, len(recalls) // 10)]))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="references")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--shares", type=float, nargs="*", default=SHARES, help="of duplicates")
    parser.add_argument("--kinds", nargs="*", choices=NOISE, default=list(NOISE), help="of duplicates")
    given = parser.parse_args()
    print(
        "| duplicates | share | recall@5 | worst decile | finds its own document | of copies | worst decile"
        " | written/s | query, ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        noise = NOISE[kind]
        for share in given.shares:
            one = measured(given.count, share, noise, given.queries)
            print(
                f"| {kind} | {share:.0%} | {one.mean:.3f} | {one.worst_decile:.3f} | {one.own:.3f}"
                f" | {one.copies_mean:.3f} | {one.copies_worst_decile:.3f}"
                f" | {one.written_per_s:,.0f} | {one.query_ms:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
