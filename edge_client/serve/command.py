"""`edge-client serve`: starts the HTTP server and prints its address."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from edge_client.cli.options import BundleOption, ServiceOption
from edge_client.model import EdgeModel
from edge_client.recall.policy import RecallMode
from edge_client.serve.settings import ServeSettings
from edge_client.settings import EdgeSettings
from memory_model.errors import InvalidInput

err = Console(stderr=True, highlight=False)


def serve(
    bundle: BundleOption = None,
    service: ServiceOption = None,
    knowledge_base: Annotated[
        str | None,
        typer.Option(
            "--knowledge-base",
            "--kb",
            help="Read unless a request names another; several as a,b. [default: default]",
        ),
    ] = None,
    memory: Annotated[
        RecallMode | None,
        typer.Option("--memory", help="Unless a request says otherwise. [default: overlap]"),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", help="Address to listen on; others than this machine's own need a key."),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, help="0 takes a free one. [default: 8080]")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option("--parallel", min=1, help="Answers computed at a time. [default: 4]")
    ] = None,
    port_file: Annotated[
        Path | None, typer.Option("--port-file", help="Write the port there once the server listens.")
    ] = None,
) -> None:
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

    settings = ServeSettings(**_given(host=host, port=port))
    settings.check()
    edge = EdgeSettings(
        **_given(
            bundle=bundle, service=service, knowledge_base=knowledge_base, memory=memory, parallel=parallel
        )
    )
    listening = _listen(settings.host, settings.port)
    with EdgeModel.open(settings=edge) as model:
        app = make_app(model, edge, settings)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3
        )
        shown, number = listening.getsockname()[:2]
        shown = f"[{shown}]" if ":" in shown else shown
        err.print(f"chat at http://{shown}:{number}/, OpenAI's interface at http://{shown}:{number}/v1")
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
