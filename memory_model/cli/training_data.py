"""What commands that train or measure read: a memory budget, conversations, the corpus, a codec with tables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory_model.cli.options import console

if TYPE_CHECKING:
    from memory_model.codec.codec import ProductCodec
    from memory_model.config import MemoryConfig, ModelConfig
    from memory_model.data.corpus.passages import Passage


def base_to_tune(heads: str, start: Any = None, model: Path | None = None) -> Any:
    """The plain model with the budget that `--heads` says, else that of the adapter `start`, else the shipped one."""
    from memory_model.models.load import load_base
    from memory_model.nn.adapter import Adapter

    loaded = load_base(model)
    budget = (
        parse_budget(heads, loaded.config) if heads else (start or Adapter.load(shipped_adapter())).memory
    )
    config = loaded.config.with_memory(budget)
    loaded.model.set_memory(config)
    return replace(loaded, config=config)


def shipped_adapter() -> Path:
    """The adapter of the default model."""
    from memory_model.assets import asset
    from memory_model.models.load import DEFAULT_MODEL

    return asset(DEFAULT_MODEL, "adapter.safetensors")


def parse_budget(heads: str, shape: ModelConfig) -> MemoryConfig:
    """The memory budget that `--heads` says; `all` is every head of `shape`. Raises InvalidInput."""
    from memory_model.config import MemoryConfig, MemoryHead, uniform_budget
    from memory_model.errors import InvalidInput

    if heads == "all":
        return MemoryConfig(heads=uniform_budget(shape.layers, shape.kv_heads, 128))
    try:
        rows = [entry.replace(".", ":").split(":") for entry in heads.split(",")]
        return MemoryConfig(heads=tuple(MemoryHead(int(a), int(b), int(c)) for a, b, c in rows))
    except ValueError as error:
        raise InvalidInput(
            f"--heads {heads!r}: write layer.head:tokens,… such as 18.2:128,20.2:128, or all"
        ) from error


def chat_pieces(loaded: Any) -> Any:
    """The model's chat template, taken apart for batches."""
    from memory_model.chat import ChatTemplate
    from memory_model.data.batches import ChatPieces

    template = ChatTemplate(loaded.chat_template, loaded.tokenizer)
    return ChatPieces(loaded.tokenizer, lambda messages, prompt: template.text(messages, prompt))


def fact_batches(loaded: Any, data: Path, seed: int, sizes: Any = None, *, distil: bool = True) -> Any:
    """Conversations about a knowledge base of facts, the held-out documents left out."""
    from memory_model.data import factbook
    from memory_model.data.conversations import FactConversations, references_of

    documents = [d for d in factbook.read_jsonl(data) if not factbook.held_out(d["key"])]
    console.print(f"{len(documents)} documents to tune on, the held-out ones left out")
    references = references_of(documents, loaded.tokenizer)
    return FactConversations(references, chat_pieces(loaded), seed, sizes, distil=distil)


def mixture_of(
    weights: str, loaded: Any, data: Path, corpus: Path | None, seed: int, *, distil: bool, sizes: Any = None,
    prose_sizes: Any = None,
) -> Any:  # fmt: skip
    """The mixture that `--mixture facts:4,prose:3,…` says; raises InvalidInput for a task that is none.

    sizes: of the batches of conversations (`memory_model.data.conversations.Sizes`); prose_sizes: of those
    about prose, where they differ.
    """
    from memory_model.data.conversations import AskedConversations, ProseConversations
    from memory_model.data.corpus import asked
    from memory_model.data.keeping import KeepingBatches
    from memory_model.data.mixture import Mixture
    from memory_model.errors import InvalidInput

    sources: dict[str, tuple[float, Any]] = {}
    passages: list[Passage] = []
    for entry in weights.split(","):
        task, _, weight = entry.strip().partition(":")
        try:
            share = float(weight or 1)
        except ValueError as error:
            raise InvalidInput(f"--mixture {entry!r}: write TASK:WEIGHT, such as facts:4") from error
        if task != "facts" and not passages:
            if corpus is None:
                raise InvalidInput(f"task {task} needs --corpus: docs/data.md says what it is")
            passages = training_passages(corpus, without=held_out_titles(data))
        if task == "facts":
            sources[task] = share, fact_batches(loaded, data, seed, sizes, distil=distil)
        elif task == "prose":
            made = ProseConversations(
                passages, chat_pieces(loaded), seed + 1, prose_sizes or sizes, distil=distil
            )
            sources[task] = share, made
        elif task == "asked":
            assert corpus is not None
            known = {(p.source, p.key) for p in passages}
            rows = [row for row in asked.read_asked(corpus / asked.FILE) if (row.source, row.key) in known]
            console.print(f"{len(rows):,} questions that people asked about these passages")
            sources[task] = (
                share,
                AskedConversations(
                    rows, passages, chat_pieces(loaded), seed + 4, prose_sizes or sizes, distil=distil
                ),
            )
        elif task == "keeping":
            texts = [p.text for p in passages]
            sources[task] = share, KeepingBatches(texts, loaded.tokenizer, seed + 2)
        elif task == "continual":
            from memory_model.cli.continual import prepared_sequences
            from memory_model.data.continual import ContinualBatches
            from memory_model.data.retrieved import corpus_files

            assert corpus is not None
            prepared = prepared_sequences(loaded, corpus_files(corpus), without=held_out_titles(data))
            sources[task] = share, ContinualBatches(prepared, seed + 3)
        else:
            raise InvalidInput(
                f"--mixture names no task {task!r}: choose from facts, prose, asked, continual, keeping"
            )
    return Mixture(sources, seed)


def held_out_titles(data: Path) -> Collection[str]:
    """The titles of other texts about a knowledge base's held-out documents, which stay out of training too."""
    from memory_model.data import factbook

    return factbook.HeldOutTitles(factbook.read_jsonl(data))


def training_passages(corpus: Path, without: Collection[str] = ()) -> list[Passage]:
    """The passages of a prepared corpus that are not held out, source by source in their order.

    without: titles whose passages are left out too.
    """
    from memory_model.data.corpus.passages import held_out, read_passages
    from memory_model.errors import MissingFile

    files = sorted(corpus.glob("*.jsonl"))
    if not files:
        raise MissingFile(f"no corpus in {corpus}: docs/data.md says what it is")
    found = [p for path in files for p in read_passages(path) if not held_out(p.source, p.key)]
    found = [p for p in found if p.title not in without]
    console.print(f"{len(found):,} passages to tune on, the held-out ones left out")
    return found


def codec_of_tables(path: Path) -> ProductCodec:
    """The codec of a file, which must be one of tables; raises InvalidInput for an exact one."""
    from memory_model.codec.codec import MemoryCodec, ProductCodec
    from memory_model.errors import InvalidInput

    codec = MemoryCodec.load(path)
    if not isinstance(codec, ProductCodec):
        raise InvalidInput(f"{path} holds an exact codec: one with tables is needed")
    return codec
