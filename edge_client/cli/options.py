"""Options that several commands of `edge-client` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BundleOption = Annotated[
    Path | None, typer.Option("--bundle", help="Folder of the edge bundle. [default: build/bundle]")
]
ServiceOption = Annotated[
    str | None, typer.Option("--service", help="host:port of the service. [default: 127.0.0.1:7430]")
]
KnowledgeBaseOption = Annotated[
    str | None,
    typer.Option(
        "--knowledge-base", "--kb", help="Whose memories are read; several as a,b. [default: default]"
    ),
]
ProviderOption = Annotated[
    str | None, typer.Option("--provider", help="auto, cpu, cuda or tensorrt. [default: auto]")
]
