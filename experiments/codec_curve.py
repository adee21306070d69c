"""What a codec costs at a rate, in the model's predictions.

Every codec is fitted to the same sample of memories and measured on the same held-out batches:

    divergence  KL of the next-token distribution from that with exact memories, nats an answer token
    flips       share of answer tokens whose likeliest token changes
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from memory_model.cli.options import (
    FACTBOOK,
    AdapterOption,
    CorpusOption,
    DataOption,
    SeedOption,
    ThreadsOption,
    console,
    progress_bars,
    use_threads,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from memory_model.codec.codec import MemoryCodec
    from memory_model.data.batches import Batch
    from memory_model.nn.decoder import Decoder, MemoryBatch

PAPER = "OPQ16_64,Residual2x14,PQ8x10"
PAPER_VECTOR_BYTES = 14
FAMILIES = ("paper", "groups", "heads", "tokens")
_VARIANTS = "paper:14,groups:13,groups:25,heads:13,tokens:4,tokens:6,tokens:8,tokens:13"


@dataclass(frozen=True)
class Variant:
    """One codec: what it codes together and its bytes a vector."""

    family: str
    vector_bytes: int

    @classmethod
    def parse(cls, name: str) -> Variant:
        """Inverse of `name`; raises InvalidInput."""
        from memory_model.errors import InvalidInput

        family, _, size = name.strip().partition(":")
        if family not in FAMILIES or not re.fullmatch("[1-9][0-9]?", size) or int(size) > 64:
            raise InvalidInput(
                f"no codec variant {name!r}: write FAMILY:BYTES with one of {', '.join(FAMILIES)}"
            )
        if family == "paper" and int(size) != PAPER_VECTOR_BYTES:
            raise InvalidInput(f"the paper's codec has {PAPER_VECTOR_BYTES} bytes a vector: write paper:14")
        return cls(family, int(size))

    @property
    def name(self) -> str:
        """`family:bytes`."""
        return f"{self.family}:{self.vector_bytes}"

    def fit(self, groups: Sequence[np.ndarray], metrics: Sequence[np.ndarray], seed: int) -> MemoryCodec:
        """The codec; groups[g]: float32 [n, d] of which row i is the same token in every group."""
        import numpy as np

        from memory_model.codec.faiss import fit_factory
        from memory_model.codec.fit import fit_groups

        if self.family == "paper":
            return fit_factory(np.concatenate(groups), PAPER)
        together = {"groups": 1, "heads": 2, "tokens": len(groups)}[self.family]
        blocks = [np.concatenate(groups[g : g + together], axis=1) for g in range(0, len(groups), together)]
        return fit_groups(blocks, self.vector_bytes * together, 8, metrics, together=together, seed=seed)


class Ruler:
    """Measures what restored memories change in the predictions of answers on held-out batches.

    The budget must keep every token of a reference in every head. Raises InvalidInput otherwise.
    """

    def __init__(self, model: Decoder, prefix: Sequence[int], batches: Sequence[Batch]) -> None:
        import torch

        from memory_model.errors import InvalidInput
        from memory_model.nn.writing import write_memories

        memory = model.config.memory
        if any(h.tokens != memory.reference_tokens for h in memory.heads):
            raise InvalidInput("the curve needs memory heads that keep every token of a reference")
        self.model, self.prefix, self.batches = model, prefix, batches
        with torch.inference_mode():
            self.exact = [
                write_memories(model, b.reference_ids, b.reference_lengths, prefix) for b in batches
            ]
            self.log_p = [self._predict(b, m) for b, m in zip(batches, self.exact, strict=True)]

    def measure(self, codec: MemoryCodec) -> dict[str, float]:
        """divergence, its standard error, flips: see the module."""
        import torch

        divergence: list[Tensor] = []
        flips: list[Tensor] = []
        with torch.inference_mode():
            for batch, exact, log_p in zip(self.batches, self.exact, self.log_p, strict=True):
                coded = self._predict(batch, self._restored(exact, codec))
                divergence.append((log_p.exp() * (log_p - coded)).sum(-1))
                flips.append((log_p.argmax(-1) != coded.argmax(-1)).float())
        spread = torch.cat(divergence)
        return {
            "divergence": float(spread.mean()),
            "divergence_error": float(spread.std() / len(spread) ** 0.5),
            "flips": float(torch.cat(flips).mean()),
        }

    def _restored(self, memory: MemoryBatch, codec: MemoryCodec) -> MemoryBatch:
        """The memories there and back through the codec."""
        import numpy as np
        import torch

        from memory_model.nn.decoder import MemoryBatch

        tokens, sides = self.model.config.memory.reference_tokens, (memory.keys, memory.values)
        places = [
            (side, slice(start, start + tokens))
            for start in self.model.config.memory.offsets
            for side in (0, 1)
        ]
        back = torch.zeros_like(memory.keys), torch.zeros_like(memory.values)
        for block, first in enumerate(range(0, len(places), codec.together)):
            own = places[first : first + codec.together]
            valid = memory.valid[:, own[0][1]]
            vectors = np.concatenate([sides[side][:, rows][valid].numpy() for side, rows in own], axis=1)
            decoded = codec.decode(codec.encode(vectors, block), block)
            for (side, rows), part in zip(own, np.split(decoded, codec.together, axis=1), strict=True):
                back[side][:, rows][valid] = torch.from_numpy(np.ascontiguousarray(part))
        return MemoryBatch(*back, memory.valid)

    def _predict(self, batch: Batch, memory: MemoryBatch) -> Tensor:
        """Log-probabilities [answer tokens, vocabulary] where an answer's token is predicted."""
        import torch

        from memory_model.data.batches import IGNORE
        from memory_model.nn.generate import read

        predicts = torch.zeros_like(batch.labels, dtype=torch.bool)
        predicts[:, :-1] = batch.labels[:, 1:] != IGNORE
        hidden = read(self.model, batch.ids, self.prefix, memory.select(batch.memories), batch.chunks)
        return self.model.head(hidden[predicts]).float().log_softmax(-1)


def codec_curve(
    out: Annotated[Path, typer.Option(help="JSON; variants that are in it are not measured again.")] = Path(
        "build/codec_curve.json"
    ),
    adapter: AdapterOption = None,
    data: DataOption = FACTBOOK,
    corpus: CorpusOption = None,
    variants: Annotated[str, typer.Option(help="FAMILY:BYTES a vector, …")] = _VARIANTS,
    references: Annotated[int, typer.Option(help="References to fit on.")] = 600,
    points: Annotated[int, typer.Option(help="Tokens of them that are kept to fit to.")] = 30000,
    batches: Annotated[int, typer.Option(help="Held-out batches of 10 conversations to measure on.")] = 6,
    seed: SeedOption = 0,
    threads: ThreadsOption = 0,
) -> None:
    """Measure what codecs lose at their rates: how far predictions move, how many answer tokens change."""
    import numpy as np

    from memory_model.cli.training_data import codec_texts
    from memory_model.models.load import load_model
    from memory_model.train.codec_fit import METRIC_BATCHES, reading_metrics, written_blocks

    use_threads(threads)
    wanted = [Variant.parse(name) for name in variants.split(",")]
    found: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    loaded = load_model(adapter=adapter)
    memory, width = loaded.config.memory, loaded.config.head_dim
    held = _held_out(loaded, data, seed)
    ruler = Ruler(loaded.model, loaded.writer.prefix, [held.next() for _ in range(batches)])
    source, texts = codec_texts(loaded, data, corpus, references, seed)
    groups = 2 * len(memory.heads)
    with progress_bars() as progress:
        task = progress.add_task("writing memories", total=len(texts))
        [sample] = written_blocks(loaded.writer, memory, texts, groups, lambda n: progress.advance(task, n))
        sample = np.random.default_rng(seed).permutation(sample)[:points]
        vectors = [sample[:, g * width :][:, :width] for g in range(groups)]
        drawn = (source.next() for _ in range(METRIC_BATCHES))
        metrics = reading_metrics(loaded.model, drawn, loaded.writer.prefix)
        todo = [v for v in wanted if v.name not in found]
        task = progress.add_task("codecs", total=len(todo))
        for variant in todo:
            progress.update(task, description=variant.name)
            size = {"memory_bytes": variant.vector_bytes * memory.vectors}
            found[variant.name] = {**size, **ruler.measure(variant.fit(vectors, metrics, seed))}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(found, indent=1) + "\n")
            progress.advance(task)
    show = Table("codec", "bytes a memory", "divergence", "flips")
    for name, p in sorted(found.items(), key=lambda entry: float(entry[1]["divergence"])):
        divergence = f"{p['divergence']:.5f} ± {p['divergence_error']:.5f}"
        show.add_row(name, f"{p['memory_bytes']:,}", divergence, f"{p['flips']:.2%}")
    console.print(show)


def _held_out(loaded: Any, data: Path, seed: int) -> Any:
    """Conversations about documents that nothing was fitted or tuned to."""
    from memory_model.data import factbook
    from memory_model.data.conversations import FactConversations, Sizes, references_of

    documents = [d for d in factbook.read_jsonl(data) if factbook.held_out(d["key"])]
    references = references_of(documents, loaded.tokenizer)
    sizes = Sizes(unanswerable=0.0, as_text=0.0, taught=0.0)
    return FactConversations(references, loaded.chat, seed + 90, sizes, distil=False)
