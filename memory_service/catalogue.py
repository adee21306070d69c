"""Which knowledge base a request may use: by name, sound, and written by the model this service runs."""

from __future__ import annotations

import re

from memory_model.errors import IdentityMismatch
from memory_service.encoder import EncoderDescription
from memory_service.errors import BadRequest
from memory_service.identity import require_same
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE
from memory_service.stores import KnowledgeBase, Store

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_REMEDY = "start the service with that model, or delete the knowledge base and ingest it again"


class Catalogue:
    """The knowledge bases of one store as one encoder may see them. Thread-safe as the store is."""

    def __init__(self, store: Store, encoder: EncoderDescription) -> None:
        self.store = store
        self.encoder = encoder

    def open(self, name: str) -> KnowledgeBase:
        """The knowledge base to read or write; empty means the default one.

        Raises KnowledgeBaseNotFound, or the mismatch of the first id in which its writer differs from our
        encoder. A damaged one is refused by the store itself.
        """
        base = self.store.knowledge_base(name or DEFAULT_KNOWLEDGE_BASE)
        require_same(
            base.identity, self.encoder.identity, f"knowledge base {base.name!r} cannot be used: {_REMEDY}"
        )
        return base

    def mismatch(self, base: KnowledgeBase) -> str:
        """Why our encoder may not use the knowledge base; empty when it may."""
        try:
            require_same(base.identity, self.encoder.identity, _REMEDY)
        except IdentityMismatch as error:
            return str(error)
        return ""

    def create(self, name: str, description: str = "") -> KnowledgeBase:
        """A new knowledge base of our encoder; raises BadRequest for a name that is none, KnowledgeBaseExists."""
        if not _NAME.fullmatch(name):
            rule = "1 to 64 letters, digits, '_', '-' or '.', the first a letter or digit"
            raise BadRequest(f"{name[:80]!r} is no name for a knowledge base: expected {rule}", field="name")
        if len(description.encode()) > 1024:
            raise BadRequest("the description is longer than 1024 bytes", field="description")
        return self.store.create(name, description, self.encoder.identity)
