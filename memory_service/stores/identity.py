"""Who wrote the memories of a knowledge base: the ids that must agree before anything is read or added."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memory_model.errors import CodecMismatch, EmbedderMismatch, FormatMismatch, IdentityMismatch, ModelMismatch

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


def require_readable(found: WriterIdentity, dimension: int = 0, /, **ids: str) -> None:
    """As require_same for the ids a client sent, by name; an empty one is not checked. dimension: of its vectors."""
    reader = replace(found, **{name: sent for name, sent in ids.items() if sent})  # type: ignore[arg-type]
    if reader != found:
        reader = replace(reader, dimension=dimension or found.dimension)
        require_same(found, reader, "load the bundle that this service offers, or ask a knowledge base of your model")
