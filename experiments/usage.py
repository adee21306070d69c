"""How many reads find a memory when only the most read references keep theirs: Zipf's law on the local store.

Documents of one reference, with the stand-in encoder of the tests. Reads are counted, memories dropped, and new reads
of the same law find what is left. The law alone gives the largest share that the most read ones can have.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated

import google_crc32c
import numpy as np
import typer
from rich.table import Table

from memory_model.terminal import console
from memory_service.ops.cooling import cool
from memory_service.stores.local.store import LocalStore
from memory_service.stores.store import NewDocument, NewReference
from memory_service.write.document import memory_id_of
from testing.encoders import identity_of, payload_of, vector_of

_AT_ONCE = 1000
_COUNTED_AT_ONCE = 50_000
_LARGE = 1_000_000


def weights_of(references: int, exponent: float) -> np.ndarray:
    """The share of the reads that each rank has, float64 [references]."""
    weights = np.arange(1, references + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())


def best_share(references: int, exponent: float, keep: float) -> float:
    """The share of the reads that go to the most read references, of which a share is kept."""
    return float(weights_of(references, exponent)[: int(keep * references)].sum())


def _document(number: int) -> NewDocument:
    key, text, identity = f"d{number}", f"Text {number}.", identity_of("test")
    payload, content_hash = payload_of(text, identity.model_id), number.to_bytes(32, "big")
    memory_id = memory_id_of(key, content_hash, 0, payload)
    reference = NewReference(memory_id, text, vector_of(text), payload, google_crc32c.value(payload))
    return NewDocument(key, "", {}, content_hash, [reference])


def measured(folder: Path, references: int, reads: int, exponent: float, keep: float, seed: int) -> tuple[float, float]:
    """Of new reads the share that finds a memory, and the share of the memories' bytes that are left."""
    random = np.random.default_rng(seed)
    of_rank, weights = random.permutation(references), weights_of(references, exponent)
    with closing(LocalStore(folder)) as store:
        base = store.create("zipf", "", identity_of("test"))
        for start in range(0, references, _AT_ONCE):
            store.write(base, [_document(n) for n in range(start, min(start + _AT_ONCE, references))])
        before = store.statistics(base).payload_bytes
        for _ in range(-(-reads // _COUNTED_AT_ONCE)):
            drawn = Counter(of_rank[random.choice(references, _COUNTED_AT_ONCE, p=weights)].tolist())
            store.add_reads(base, {(f"d{number}", 0): count for number, count in drawn.items()})
        cool(store, base, keep)
        keys = store.unwritten(base, references)
        cold = np.zeros(references, bool)
        cold[[int(key[1:]) for key in keys]] = True
        again = of_rank[random.choice(references, reads, p=weights)]
        return float(1 - cold[again].mean()), store.statistics(base).payload_bytes / before


def usage(
    references: Annotated[int, typer.Option(min=10, help="References of the knowledge base.")] = 100_000,
    reads: Annotated[int, typer.Option(min=1, help="Reads before memories are dropped, and after.")] = 1_000_000,
    exponent: Annotated[float, typer.Option(help="Of Zipf's law: rank r is read r^-exponent times as often.")] = 1.1,
    keep: Annotated[float, typer.Option(min=0, max=1, help="Share of the references that keep memories.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the reads.")] = 0,
) -> None:
    """Measure how many reads find a memory when the most read tenth of the references keeps theirs."""
    with tempfile.TemporaryDirectory() as folder, console.status("writing, reading and dropping"):
        warm, left = measured(Path(folder), references, reads, exponent, keep, seed)
    table = Table("references", "reads with a memory", "bytes of memories")
    table.add_row(f"{references:,}, measured", f"{warm:.3f}", f"{left:.3f}")
    for count in sorted({references, _LARGE}):
        table.add_row(f"{count:,}, by the law alone", f"{best_share(count, exponent, keep):.3f}", f"{keep:.3f}")
    console.print(table)
