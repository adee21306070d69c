"""What a caller may do: scopes on knowledge bases, and tenants in their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from memory3.errors import shortened
from memory_service.errors import ScopeTooSmall

EVERY_BASE = "*"
_SEPARATOR = "/"
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
"""Of a tenant, and of a knowledge base."""
OPERATORS_NAME = f"({NAME}/)?{NAME}"
"""Of a knowledge base as the operator knows it."""


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

    def require(self, name: str, needed: Scope) -> None:
        """Raises ScopeTooSmall when the scope on the knowledge base of this name is none or smaller."""
        held = self.scope_on(name)
        if held is None:
            raise ScopeTooSmall(f"this caller may not create a knowledge base called {shortened(name, 80)!r}")
        if held < needed:
            raise ScopeTooSmall(
                f"this caller may {held.name.lower()} knowledge base {shortened(name, 80)!r}, and this call needs"
                f" {needed.name.lower()}: use a key with that scope",
                held=held.name.lower(),
                needed=needed.name.lower(),
            )

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


def is_name(access: Access, name: str) -> bool:
    """Whether the caller may call a knowledge base so; the operator may name a tenant's."""
    return re.fullmatch(NAME if access.tenant else OPERATORS_NAME, name) is not None


def tenant_of(stored_name: str) -> str:
    """The tenant that a stored knowledge base belongs to; empty: the operator."""
    owner, separator, _ = stored_name.partition(_SEPARATOR)
    return owner if separator else ""
