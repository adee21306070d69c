"""`edge-client serve`: starts the HTTP server and prints its address."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_client.cli.options import with_options
from edge_client.model import EdgeModel
from edge_client.recall.policy import RecallMode
from edge_client.serve.access import Access, fingerprint, network_address, own_certificate, qr_code
from edge_client.serve.settings import ServeSettings
from edge_client.settings import EdgeSettings
from memory_model.errors import InvalidInput


@with_options("bundle", "service", "knowledge_base", "local", "offline")
def serve(
    given: dict[str, Any],
    memory: Annotated[RecallMode | None, typer.Option("--memory", help="Unless a request says otherwise.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on, else this machine's own.")] = None,
    lan: Annotated[bool, typer.Option("--lan", help="Let the network in, with a key; prints a QR code.")] = False,
    tls: Annotated[bool | None, typer.Option("--tls", help="HTTPS with a certificate that is made for it.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, help="0 takes a free one. [default: 8080]")] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Answers computed at a time. [default: 4]")] = None,
    port_file: Annotated[Path | None, typer.Option(help="Write the port there once the server listens.")] = None,
) -> None:  # fmt: skip
    """Serve the model on this device: OpenAI's interface under /v1, and a page to chat on at /.

    More settings are environment variables EDGE_CLIENT_SERVE_*, such as EDGE_CLIENT_SERVE_API_KEY.
    """
    try:
        import uvicorn

        from edge_client.serve.app import make_app
    except ImportError as error:
        raise InvalidInput(
            f"the server needs packages that are not installed ({error.name}): pip install 'memory3-edge[serve]'"
        ) from error

    settings = ServeSettings(**_given(host="0.0.0.0" if lan else host, port=port, tls=tls))
    access = Access.of(settings)
    edge = EdgeSettings(**given, **_given(memory=memory, parallel=parallel))
    certificate, key = own_certificate() if settings.tls else (None, None)
    listening = _listen(settings.host, settings.port)
    with EdgeModel.open(settings=edge) as model:
        config = uvicorn.Config(
            make_app(model, edge, settings, access), log_level="warning", access_log=False, server_header=False,
            timeout_graceful_shutdown=3, ssl_certfile=certificate, ssl_keyfile=key,
        )  # fmt: skip
        number = listening.getsockname()[1]
        shown = network_address() if settings.host in ("0.0.0.0", "::", "[::]") else settings.host
        url = f"{'https' if settings.tls else 'http'}://{shown}:{number}"
        page = f"{url}/#key={access.key}" if access.made else f"{url}/"
        typer.echo(f"chat at {page}, OpenAI's interface at {url}/v1", err=True)
        if certificate is not None:
            typer.echo(f"SHA-256 of its certificate: {fingerprint(certificate)}", err=True)
        if lan:
            typer.echo(qr_code(page), err=True)
        if port_file is not None:
            port_file.write_text(str(number))
        uvicorn.Server(config).run(sockets=[listening])


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that a reader of the port file may call at once; raises InvalidInput."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), port), family=family, backlog=128)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --port"
        ) from error
