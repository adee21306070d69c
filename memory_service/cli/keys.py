"""`memory-service keys`: API keys, certificates and quotas in the key file; a running service sees changes at once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from memory3.errors import InvalidInput, shortened
from memory3.printable import printable
from memory_service.access.keys import KeyFile, ScopeName, changing
from memory_service.cli.columns import show_columns
from memory_service.client.connection import plain

keys_app = typer.Typer(no_args_is_help=True, help="API keys: create, list, revoke; quotas of tenants.")

_FILE_HELP = "key file of the service"
File = Annotated[Path, typer.Option("--keys", envvar="MEMORY_SERVICE_KEYS", help=_FILE_HELP)]
Tenant = Annotated[str, typer.Option(help="tenant of the key; default: the operator")]


@keys_app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a note for people, such as the owner")],
    keys: File,
    grant: Annotated[
        list[str],
        typer.Option(metavar="BASE:SCOPE", help="read, write or admin on a knowledge base, or on all ('*:read')"),
    ],
    tenant: Tenant = "",
    expires_days: Annotated[int | None, typer.Option(min=0, max=36500, help="expire after this many days")] = None,
) -> None:
    """Create a key and print it; it cannot be shown again.

    Example: memory-service keys create phones --keys keys.json --grant 'notes:read'
    """
    expires = timedelta(days=expires_days) if expires_days is not None else None
    with changing(keys) as file:
        file, key, secret = file.with_new(name, tenant, _grants(grant), expires)
        file.write(keys)
    message = f"key {key.id} for {plain(name)}; copy it now, only its hash is stored:"
    Console(stderr=True, highlight=False).print(message, soft_wrap=True)
    typer.echo(secret)


def _grants(given: list[str]) -> dict[str, str]:
    grants: dict[str, str] = {}
    for text in given:
        base, separator, scope = text.rpartition(":")
        if scope not in get_args(ScopeName) or not separator or base in grants:
            scopes = ", ".join(get_args(ScopeName))
            raise InvalidInput(f"--grant {shortened(text)!r}: expected BASE:SCOPE, each base once; scopes are {scopes}")
        grants[base] = scope
    return grants


@keys_app.command("certificate")
def certificate(
    identity: Annotated[str, typer.Argument(metavar="IDENTITY", help="subject alternative name or common name")],
    keys: File,
    grant: Annotated[
        list[str] | None, typer.Option(metavar="BASE:SCOPE", help="as in `create`; without it, all grants are removed")
    ] = None,
    tenant: Tenant = "",
) -> None:
    """Set the grants of clients that present a certificate with this identity and no API key (mTLS)."""
    with changing(keys) as file:
        file.with_certificate(identity, tenant, _grants(grant or [])).write(keys)
    typer.echo(f"{printable(identity)}: {' '.join(grant or []) or 'nothing'}")


@keys_app.command("list")
def show(keys: File) -> None:
    """List all keys, without their secrets, and all certificates."""
    file = KeyFile.read(keys)
    rows = []
    for key in file.keys:
        ends = f"{key.expires_at:%Y-%m-%d}" if key.expires_at else ""
        created = f"{key.created_at:%Y-%m-%d}"
        rows.append((key.id, key.name, key.tenant, _shown(key.grants), created, ends, key.state()))
    for one in file.certificates:
        rows.append(("certificate", one.identity, one.tenant, _shown(one.grants), "", "", "active"))
    show_columns(("id", "name", "tenant", "grants", "created", "ends", "state"), rows)


def _shown(grants: Mapping[str, str]) -> str:
    return " ".join(f"{base}:{scope}" for base, scope in sorted(grants.items()))


@keys_app.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(metavar="ID")], keys: File) -> None:
    """Revoke a key; running services reject it within a second."""
    with changing(keys) as file:
        file.with_revoked(key_id).write(keys)
    typer.echo(f"revoked {key_id}")


@keys_app.command("quota")
def quota(
    tenant: Annotated[str, typer.Argument(metavar="TENANT")],
    keys: File,
    references: Annotated[int | None, typer.Option(min=0, help="largest number of references; 0: no limit")] = None,
    size_bytes: Annotated[int | None, typer.Option("--bytes", min=0, help="most stored bytes; 0: no limit")] = None,
    requests_per_s: Annotated[float | None, typer.Option(min=0, help="most calls per second; 0: no limit")] = None,
) -> None:
    """Set a tenant's limits of storage and calls; those that are not given stay as they are.

    A limit that was never given is the service's default.
    """
    with changing(keys) as file:
        file = file.with_quota(tenant, references, size_bytes, requests_per_s)
        file.write(keys)
    limits = file.quotas[tenant]
    shown = {"references": limits.references, "bytes": limits.bytes, "calls per second": limits.requests_per_s}
    typer.echo(f"{tenant}: {', '.join(f'{name}: {_limit(limit)}' for name, limit in shown.items())}")


def _limit(limit: float | None) -> str:
    if limit is None:
        return "the service's default"
    return f"{limit:,}" if limit else "no limit"
