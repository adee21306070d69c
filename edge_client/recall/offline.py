"""The pack that the settings name, opened for a bundle: what the device reads when the service is away."""

from __future__ import annotations

from edge_client.recall.pack import MemoryPack
from edge_client.settings import EdgeSettings
from memory_model.bundle import Bundle
from memory_model.errors import InvalidInput


def open_pack(settings: EdgeSettings, bundle: Bundle) -> MemoryPack | None:
    """The pack, or None where the settings name none.

    Raises MissingFile, CorruptFile, an IdentityMismatch, and InvalidInput for one of another knowledge base.
    """
    if settings.pack is None:
        return None
    pack = MemoryPack.open(
        settings.pack, bundle.identity, bundle.manifest.embedder_id, minimum_score=settings.minimum_score
    )
    of = pack.manifest.head.knowledge_base
    if of != settings.knowledge_base:
        raise InvalidInput(
            f"the pack at {settings.pack} is of knowledge base {of!r}, the memories of {settings.knowledge_base!r} are"
            f" asked for: name the same with --knowledge-base {of}, or pull the other pack"
        )
    return pack
