"""What a caller may do: scopes on knowledge bases, tenants in their names, and the knowledge bases it may open."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from memory_model.errors import IdentityMismatch
from memory_service.errors import BadRequest, KnowledgeBaseNotFound, ScopeTooSmall
from memory_service.settings import DEFAULT_KNOWLEDGE_BASE
from memory_service.stores import require_sound, unknown_knowledge_base
from memory_service.stores.identity import require_same

if TYPE_CHECKING:
    from memory_service.stores import KnowledgeBase, Store
    from memory_service.write.encoder import EncoderDescription

EVERY_BASE = "*"
_SEPARATOR = "/"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_REMEDY = "start the service with that model, or delete the knowledge base and ingest it again"


class Scope(IntEnum):
    """What may be done with a knowledge base; each includes those before it."""

    READ = 1  # retrieve, export, show documents and counts
    WRITE = 2  # ingest and delete documents
    ADMIN = 3  # create and delete the knowledge base itself


@dataclass(frozen=True)
class Access:
    """One caller. grants: name of a knowledge base, or `*` for all of the tenant's, to the scope on it.

    key_id: id of the API key, or the identity of the client certificate. A tenant's knowledge bases are stored as
    `tenant/name` and seen as `name`. A caller without tenant is the operator and sees all under their stored names.
    """

    key_id: str
    tenant: str
    grants: Mapping[str, Scope] = field(default_factory=dict)

    def scope_on(self, name: str) -> Scope | None:
        """The scope on the knowledge base that the caller knows by this name; None: it has none."""
        return max(filter(None, (self.grants.get(name), self.grants.get(EVERY_BASE))), default=None)

    def stored_name(self, name: str) -> str:
        """The name in the store."""
        return f"{self.tenant}{_SEPARATOR}{name}" if self.tenant else name

    def seen_name(self, stored_name: str) -> str | None:
        """The name as the caller knows it; None: the caller may not see it."""
        name = stored_name
        if self.tenant:
            owner, separator, name = stored_name.partition(_SEPARATOR)
            if not separator or owner != self.tenant:
                return None
        return name if self.scope_on(name) is not None else None


OPERATOR = Access(key_id="", tenant="", grants={EVERY_BASE: Scope.ADMIN})
"""The caller of a service without keys."""
NOBODY = Access(key_id="", tenant="")
"""A caller that is not known, or not yet; may do nothing."""


def tenant_of(stored_name: str) -> str:
    """The tenant that a stored knowledge base belongs to; empty: the operator."""
    owner, separator, _ = stored_name.partition(_SEPARATOR)
    return owner if separator else ""


class Catalogue:
    """The knowledge bases of one store as one encoder and a caller may use them. Thread-safe as the store is.

    One that the caller has no scope on is answered exactly as one that does not exist.
    """

    def __init__(self, store: Store, encoder: EncoderDescription) -> None:
        self.store = store
        self.encoder = encoder

    def find(self, access: Access, name: str, scope: Scope = Scope.READ) -> KnowledgeBase:
        """The caller's knowledge base of this name, usable or not; empty means the default one.

        Raises KnowledgeBaseNotFound, and ScopeTooSmall when the caller may see it but not do this.
        """
        name = name or DEFAULT_KNOWLEDGE_BASE
        held = access.scope_on(name)
        with contextlib.suppress(KnowledgeBaseNotFound):
            if held is not None:
                base = self.store.knowledge_base(access.stored_name(name))
                _require(held, scope, name)
                return base
        seen = [access.seen_name(base.name) for base in self.store.knowledge_bases()]
        raise unknown_knowledge_base(name, [name for name in seen if name])

    def require_ours(self, access: Access, base: KnowledgeBase) -> None:
        """Raises KnowledgeBaseDamaged, or the mismatch of the first id in which its writer differs from our encoder."""
        require_sound(base)
        what = f"knowledge base {access.seen_name(base.name)!r} cannot be used: {_REMEDY}"
        require_same(base.identity, self.encoder.identity, what)

    def all(self, access: Access) -> list[KnowledgeBase]:
        """Those that the caller may see, by name; damaged ones too."""
        return [base for base in self.store.knowledge_bases() if access.seen_name(base.name) is not None]

    def mismatch(self, base: KnowledgeBase) -> str:
        """Why our encoder may not use the knowledge base; empty when it may."""
        try:
            require_same(base.identity, self.encoder.identity, _REMEDY)
            return ""
        except IdentityMismatch as error:
            return str(error)

    def create(self, access: Access, name: str, description: str = "") -> KnowledgeBase:
        """A new knowledge base of our encoder; raises BadRequest for an invalid name, KnowledgeBaseExists."""
        parts = name.split(_SEPARATOR, 1) if not access.tenant else [name]  # the operator may name a tenant's
        if not all(_NAME.fullmatch(part) for part in parts):
            rule = "1 to 64 letters, digits, '_', '-' or '.', the first a letter or digit"
            raise BadRequest(f"{name[:80]!r} is no name for a knowledge base: expected {rule}", field="name")
        if len(description.encode()) > 1024:
            raise BadRequest("the description is longer than 1024 bytes", field="description")
        held = access.scope_on(name)
        if held is None:
            raise ScopeTooSmall(f"this caller may not create a knowledge base called {name!r}")
        _require(held, Scope.ADMIN, name)
        return self.store.create(access.stored_name(name), description, self.encoder.identity)


def _require(held: Scope, needed: Scope, name: str) -> None:
    if held < needed:
        raise ScopeTooSmall(
            f"this caller may {held.name.lower()} knowledge base {name!r}, and this call needs"
            f" {needed.name.lower()}: use a key with that scope",
            held=held.name.lower(), needed=needed.name.lower(),
        )  # fmt: skip
