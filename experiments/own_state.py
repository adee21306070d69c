"""Retrieval by the model's own state: how well the state of a lower layer searches in place of the embedder.

A device has computed the states of its question's tokens anyway. Their mean after some layer is projected to the
embedder's vectors, so that references keep theirs and the service stays as it is: a ridge regression on the embedder's
vectors of training questions.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from rich.table import Table
from torch import Tensor

from memory3.text.references import split
from memory_model.data.factbook import FACTBOOK
from memory_model.data.rows import QuestionRow, open_rows
from memory_model.eval.retrieval import ReferenceIndex, references_of
from memory_model.eval.scores import Mean
from memory_model.export.embedder_cache import open_embedder
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel, load_model
from memory_model.terminal import console, progress_bar, use_threads

READ = 5
PENALTY = 0.1
"""Of the ridge regression, beside the unit variance of the features."""
LAYERS = [2, 4, 8, 12]


class States:
    """Mean states of texts after chosen layers of a model that is cut after the last of them."""

    def __init__(self, loaded: LoadedModel, layers: Sequence[int]) -> None:
        self.tokenizer, self.model, self.layers = loaded.tokenizer, loaded.model, sorted(layers)
        # The norm in which a layer begins is given the state that the layer before it left.
        self._seen: dict[int, Tensor] = {}
        for layer in self.layers:
            norm = self.model.blocks[layer].input_layernorm
            norm.register_forward_pre_hook(lambda _, given, layer=layer: self._seen.update({layer: given[0]}))
        self.model.layers = self.model.layers[: self.layers[-1] + 1]

    @torch.inference_mode()
    def of(self, texts: Sequence[str], what: str) -> dict[int, Tensor]:
        """float32 [n, D] by layer. The first token is left out: its state is large and the same in every text."""
        found: dict[int, list[Tensor]] = {layer: [] for layer in self.layers}
        with progress_bar(what, len(texts)) as advance:
            for text in texts:
                ids = torch.tensor([[self.tokenizer.bos_id, *self.tokenizer.encode(text)]])
                self.model.hidden(ids, torch.arange(ids.shape[1]))
                for layer in self.layers:
                    states = self._seen[layer][1:].float()
                    found[layer].append(F.normalize(states, dim=-1).mean(0))
                advance()
        return {layer: torch.stack(rows) for layer, rows in found.items()}


class Projection:
    """From standardised states [n, D] to unit vectors [n, dim] of the embedder."""

    def __init__(self, states: Tensor, vectors: Tensor) -> None:
        """Ridge regression of the embedder's vectors of the same texts."""
        self.mean, self.scale = states.mean(0), states.std(0) + 1e-6
        of = self.standardised(states).double()
        square = of.T @ of + PENALTY * len(of) * torch.eye(of.shape[1]).double()
        self.weight = torch.linalg.solve(square, of.T @ vectors.double()).float()

    def standardised(self, states: Tensor) -> Tensor:
        """Unit variance, and a constant in the last column."""
        of = (states - self.mean) / self.scale
        return torch.cat([of, torch.ones(len(of), 1)], dim=1)

    def __call__(self, states: Tensor) -> np.ndarray:
        """float32 [n, dim] of length 1."""
        return F.normalize(self.standardised(states) @ self.weight, dim=-1).numpy()


def own_state(
    training: Annotated[list[Path], typer.Option(help="Questions that the projection is fitted on; may be repeated.")],
    test: Annotated[list[Path], typer.Option(help="Questions that are searched; may be repeated.")],
    model: Annotated[Path | None, typer.Option(help="Model folder, or the name of a packaged one.")] = None,
    layer: Annotated[list[int], typer.Option(help="After so many layers; may be repeated.")] = LAYERS,
    questions: Annotated[int, typer.Option(min=100, help="Drawn from those of the training files.")] = 6000,
    documents: Annotated[Path, typer.Option(help="JSONL whose references are searched, too.")] = FACTBOOK,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: torch's default.")] = 0,
) -> None:
    """Print recall@5 by the embedder, and by the states of layers of the model projected to the embedder's vectors."""
    use_threads(threads)
    folder = ModelFolder.open(model)
    loaded, embedder = load_model(folder), open_embedder(None, folder.embedder)
    drawing = random.Random(0)
    rows = [row for path in training for row in open_rows(path) if row.answerable]
    rows = drawing.sample(rows, min(questions, len(rows)))
    asked = {path.stem: [row for row in open_rows(path) if row.answerable] for path in test}

    count, limit = loaded.tokenizer.count, loaded.config.memory.reference_tokens
    sought = {row: split(row.knowledge, row.title, count, limit) for of in asked.values() for row in of}
    others = references_of(documents, loaded.tokenizer, limit)
    references = list(dict.fromkeys([*(text for texts in sought.values() for text in texts), *others]))
    with progress_bar("embedding", len(references) + len(rows)) as advance:
        index = ReferenceIndex.of(references, embedder, advance, ranking=folder.ranking)
        vectors = torch.from_numpy(ReferenceIndex.of([row.question for row in rows], embedder, advance).vectors)

    states = States(loaded, layer)
    known = states.of([row.question for row in rows], "states: training")
    tested = {name: states.of([row.question for row in of], f"states: {name}") for name, of in asked.items()}
    table = Table(
        "query vectors", *asked, title=f"{folder.name}, {len(references)} references: recall@5 (by vector alone)"
    )
    plain = {name: embedder.embed([row.question for row in of]) for name, of in asked.items()}
    table.add_row(folder.embedder, *_recalls(index, asked, sought, plain))
    for number in states.layers:
        projection = Projection(known[number], vectors)
        found = {name: projection(of[number]) for name, of in tested.items()}
        table.add_row(f"state after {number} layers", *_recalls(index, asked, sought, found))
    console.print(table)


def _recalls(
    index: ReferenceIndex,
    asked: Mapping[str, Sequence[QuestionRow]],
    sought: Mapping[QuestionRow, Sequence[str]],
    vectors: Mapping[str, np.ndarray],
) -> list[str]:
    """For each set: with words and titles as a device searches, and in brackets by vector alone."""
    cells = []
    for name, rows in asked.items():
        questions, shares = [row.question for row in rows], []
        for candidates in (50, 0):
            near = index.nearest(questions, READ, vectors=vectors[name], candidates=candidates, dropping=False)
            hits = [any(index.references[n] in sought[row] for n in of) for row, of in zip(rows, near, strict=True)]
            shares.append(Mean.of([float(hit) for hit in hits]))
        cells.append(f"{shares[0].mean:.3f} ± {shares[0].error:.3f} ({shares[1].mean:.3f})")
    return cells
