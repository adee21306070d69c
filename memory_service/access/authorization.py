"""Who calls, and what he may do: the scopes of a key on knowledge bases, and the names as its tenant sees them."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum

from memory_service.errors import Unauthenticated

EVERY_BASE = "*"
_SEPARATOR = "/"


class Scope(IntEnum):
    """What may be done with a knowledge base; each includes those before it."""

    READ = 1
    """Retrieve, export, show documents and counts."""
    WRITE = 2
    """Ingest and delete documents."""
    ADMIN = 3
    """Create and delete the knowledge base itself."""


@dataclass(frozen=True)
class Access:
    """One caller. grants: name of a knowledge base, or `*` for all of the tenant's, to the scope on it.

    A tenant's knowledge bases are stored as `tenant/name` and seen as `name`: two tenants may use one name, and
    neither can say the other's. A caller without tenant is the operator and sees all under their stored names.
    """

    key_id: str
    tenant: str
    grants: Mapping[str, Scope] = field(default_factory=dict)

    def scope_on(self, name: str) -> Scope | None:
        """The scope on the knowledge base that the caller knows by this name; None: for him there is none."""
        return max(
            (s for s in (self.grants.get(name), self.grants.get(EVERY_BASE)) if s is not None), default=None
        )

    def stored_name(self, name: str) -> str:
        """The name in the store."""
        return f"{self.tenant}{_SEPARATOR}{name}" if self.tenant else name

    def seen_name(self, stored_name: str) -> str | None:
        """The name as the caller knows it; None: it is not his to see."""
        name = stored_name
        if self.tenant:
            owner, separator, name = stored_name.partition(_SEPARATOR)
            if not separator or owner != self.tenant:
                return None
        return name if self.scope_on(name) is not None else None


OPERATOR = Access(key_id="", tenant="", grants={EVERY_BASE: Scope.ADMIN})
"""Whoever reaches a service without keys."""

_caller: ContextVar[Access] = ContextVar("caller")


def tenant_of(stored_name: str) -> str:
    """The tenant that a stored knowledge base belongs to; empty: the operator."""
    owner, separator, _ = stored_name.partition(_SEPARATOR)
    return owner if separator else ""


def caller() -> Access:
    """Who makes the call that is being answered; raises Unauthenticated outside of one."""
    try:
        return _caller.get()
    except LookupError:
        raise Unauthenticated("nobody is known to make this call") from None


def set_caller(access: Access) -> None:
    """What the present task does from here on, and the tasks and threads it starts (see carrying.py), is for him."""
    _caller.set(access)
