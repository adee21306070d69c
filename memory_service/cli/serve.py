"""`memory-service serve` and `memory-service migrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memory3.printable import counted
from memory_service.settings import CONFIG_VARIABLE, DEFAULT_ADDRESS, Settings, load_settings
from memory_service.stores.address import parse_address

Store = Annotated[str | None, typer.Option(help=Settings.model_fields["store"].description)]
Config = Annotated[Path | None, typer.Option(envvar=CONFIG_VARIABLE, help="TOML file of settings")]


def all_settings() -> str:
    """A line for each setting: name, what it is, default."""

    def line(name: str) -> str:
        field = Settings.model_fields[name]
        fixed = isinstance(field.default, bool | int | float | str) and field.default != ""
        default = str(field.default).lower() if isinstance(field.default, bool) else f"{field.default}"
        return f"{name}: {field.description}" + (f" ({default.removesuffix('.0')})" if fixed else "")

    return "\n".join(["All settings (default):", *map(line, Settings.model_fields)])


def serve(
    listen: Annotated[str | None, typer.Option(help=f"host:port or unix:/path; default {DEFAULT_ADDRESS}")] = None,
    store: Store = None,
    port_file: Annotated[Path | None, typer.Option(help="file to write the port to, once ready")] = None,
    bundle: Annotated[Path | None, typer.Option(help="bundle for devices, with the embedder")] = None,
    bundle_variants: Annotated[
        Path | None, typer.Option(help="folder of more bundles of its model, for devices of other precisions")
    ] = None,
    embedder: Annotated[Path | None, typer.Option(help="folder of another embedder")] = None,
    model: Annotated[
        Path | None, typer.Option(help="folder of the model that writes memories; default: the bundle's")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="key file; without it, no authentication")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="allow other machines without keys")] = None,
    config: Config = None,
) -> None:
    """Serve until SIGTERM. You can also give every setting as MEMORY_SERVICE_<NAME> or in the --config file."""
    from memory_service.api.models import check_bundles
    from memory_service.api.server import run, serve_until_signal
    from memory_service.telemetry.logs import configure_logs, logger
    from memory_service.write.model_encoder import ModelEncoder

    given = {
        "listen": listen,
        "store": store,
        "port_file": port_file,
        "bundle": bundle,
        "bundle_variants": bundle_variants,
        "embedder": embedder,
        "model": model,
        "keys": keys,
        "insecure": insecure,
    }
    settings = load_settings(config, {name: value for name, value in given.items() if value is not None})
    configure_logs(settings.log_level)
    check_bundles(settings)  # a wrong one makes no store
    address = parse_address(settings.store)
    logger().info("loading", model=str(settings.model or "the bundle's"), store=str(address))  # which takes seconds
    run(serve_until_signal(settings, lambda: ModelEncoder.open(settings)))


def migrate(store: Store = None, config: Config = None) -> None:
    """Migrate a store to this version's format and exit; `serve` does the same at start."""
    from memory_service.stores.opening import open_store
    from memory_service.telemetry.logs import configure_logs

    settings = load_settings(config, {"store": store} if store else {})
    configure_logs(settings.log_level)
    opened = open_store(settings.store, settings.store_options())
    try:
        count = len(opened.knowledge_bases())
    finally:
        opened.close()
    typer.echo(f"{parse_address(settings.store)} is up to date, {counted(count, 'knowledge base')}")
