"""Who wrote the memories of a knowledge base: the ids that must agree before anything is read or added."""

from __future__ import annotations

from dataclasses import dataclass

from memory_model.errors import (
    CodecMismatch,
    EmbedderMismatch,
    FormatMismatch,
    IdentityMismatch,
    ModelMismatch,
)

_MISMATCHES: tuple[tuple[str, type[IdentityMismatch]], ...] = (
    ("model_id", ModelMismatch),
    ("memory_format_id", FormatMismatch),
    ("codec_id", CodecMismatch),
    ("embedder_id", EmbedderMismatch),
)


@dataclass(frozen=True)
class WriterIdentity:
    """Ids (hexadecimal SHA-256) of what turns text into a vector and a payload; `dimension` is the vector's length."""

    model_id: str
    codec_id: str
    memory_format_id: str
    embedder_id: str
    dimension: int


def require_same(found: WriterIdentity, reader: WriterIdentity, remedy: str) -> None:
    """Raises the mismatch of the first id in which `reader` differs from what was `found` in a knowledge base.

    Embedders whose vectors have another length too are an EmbedderMismatch that says both lengths.
    """
    if found == reader:
        return
    if found.dimension != reader.dimension:
        remedy = f"its vectors have {found.dimension} numbers, this embedder's {reader.dimension}; {remedy}"
    for name, mismatch in _MISMATCHES:
        theirs, ours = getattr(found, name), getattr(reader, name)
        if theirs != ours:
            raise mismatch(theirs, ours, remedy)
    raise EmbedderMismatch(found.embedder_id, reader.embedder_id, remedy)


def require_readable(
    found: WriterIdentity,
    dimension: int = 0,
    /,
    *,
    model_id: str,
    codec_id: str,
    memory_format_id: str,
    embedder_id: str,
) -> None:
    """As require_same for the ids a client sent; an empty one is not checked. dimension: of the vectors it sent."""
    if (
        model_id in ("", found.model_id) and codec_id in ("", found.codec_id)
        and memory_format_id in ("", found.memory_format_id) and embedder_id in ("", found.embedder_id)
    ):  # fmt: skip
        return
    reader = WriterIdentity(
        model_id=model_id or found.model_id,
        codec_id=codec_id or found.codec_id,
        memory_format_id=memory_format_id or found.memory_format_id,
        embedder_id=embedder_id or found.embedder_id,
        dimension=dimension or found.dimension,
    )
    require_same(
        found, reader, "load the bundle that this service offers, or ask a knowledge base of your model"
    )
