"""Which knowledge base a call may use: the caller's own, by name, sound, and written by the model this service runs."""

from __future__ import annotations

import re

from memory_model.errors import IdentityMismatch
from memory_service.access.authorization import Access, Scope, caller
from memory_service.errors import BadRequest, KnowledgeBaseNotFound, ScopeTooSmall
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE
from memory_service.stores import KnowledgeBase, Store
from memory_service.stores.identity import require_same
from memory_service.write.encoder import EncoderDescription

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_REMEDY = "start the service with that model, or delete the knowledge base and ingest it again"


class Catalogue:
    """The knowledge bases of one store as one encoder and the caller may see them. Thread-safe as the store is.

    What a caller has no scope on is answered exactly as what does not exist, before the store is asked.
    """

    def __init__(self, store: Store, encoder: EncoderDescription) -> None:
        self.store = store
        self.encoder = encoder

    def find(self, name: str, scope: Scope = Scope.READ) -> KnowledgeBase:
        """The caller's knowledge base of this name, usable or not; empty means the default one.

        Raises KnowledgeBaseNotFound, and ScopeTooSmall when the caller may see it but not do this.
        """
        access = caller()
        name = name or DEFAULT_KNOWLEDGE_BASE
        held = access.scope_on(name)
        if held is None:
            raise self._missing(name, access)
        try:
            base = self.store.knowledge_base(access.stored_name(name))
        except KnowledgeBaseNotFound:
            raise self._missing(name, access) from None
        _require(held, scope, name)
        return base

    def open(self, name: str, scope: Scope = Scope.READ) -> KnowledgeBase:
        """The knowledge base to read or write; empty means the default one.

        Raises what `find` raises, or the mismatch of the first id in which its writer differs from our encoder.
        A damaged one is refused by the store itself.
        """
        base = self.find(name, scope)
        seen = self.seen_name(base)
        require_same(
            base.identity, self.encoder.identity, f"knowledge base {seen!r} cannot be used: {_REMEDY}"
        )
        return base

    def all(self) -> list[KnowledgeBase]:
        """Those that the caller may see, by name; damaged ones too."""
        access = caller()
        return [base for base in self.store.knowledge_bases() if access.seen_name(base.name) is not None]

    def seen_name(self, base: KnowledgeBase) -> str:
        """The name by which the caller knows a knowledge base that he was given."""
        return caller().seen_name(base.name) or ""

    def mismatch(self, base: KnowledgeBase) -> str:
        """Why our encoder may not use the knowledge base; empty when it may."""
        try:
            require_same(base.identity, self.encoder.identity, _REMEDY)
        except IdentityMismatch as error:
            return str(error)
        return ""

    def create(self, name: str, description: str = "") -> KnowledgeBase:
        """A new knowledge base of our encoder; raises BadRequest for a name that is none, KnowledgeBaseExists."""
        access = caller()
        parts = name.split("/", 1) if not access.tenant else [name]  # the operator may name a tenant's
        if not all(_NAME.fullmatch(part) for part in parts):
            rule = "1 to 64 letters, digits, '_', '-' or '.', the first a letter or digit"
            raise BadRequest(f"{name[:80]!r} is no name for a knowledge base: expected {rule}", field="name")
        if len(description.encode()) > 1024:
            raise BadRequest("the description is longer than 1024 bytes", field="description")
        held = access.scope_on(name)
        if held is None:
            raise ScopeTooSmall(f"this API key may not create a knowledge base called {name!r}")
        _require(held, Scope.ADMIN, name)
        return self.store.create(access.stored_name(name), description, self.encoder.identity)

    def _missing(self, name: str, access: Access) -> KnowledgeBaseNotFound:
        seen = [access.seen_name(base.name) for base in self.store.knowledge_bases()]
        known = ", ".join(sorted(name for name in seen if name)[:20]) or "none"
        return KnowledgeBaseNotFound(
            f"no knowledge base is called {name[:80]!r}; there are: {known}", knowledge_base=name
        )


def _require(held: Scope, needed: Scope, name: str) -> None:
    if held < needed:
        raise ScopeTooSmall(
            f"this API key may {held.name.lower()} knowledge base {name!r}, and this call needs"
            f" {needed.name.lower()}: ask for a key with that scope",
            held=held.name.lower(), needed=needed.name.lower(),
        )  # fmt: skip
