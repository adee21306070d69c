"""What all commands share: the service's address, our errors as one line, other people's text without markup."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, TypeVar

import grpc
import typer
from rich.console import Console

from memory_model.errors import Memory3Error
from memory_model.printable import printable
from memory_service.client.connection import connected

Address = Annotated[str, typer.Option("--address", envvar="MEMORY_SERVICE_ADDRESS", help="host:port of the service")]


Stub = TypeVar("Stub")


@contextlib.contextmanager
def errors_for_people() -> Iterator[None]:
    """Prints our errors as one line and exits with 1; anything else is a bug and keeps its traceback."""
    try:
        yield
    except Memory3Error as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {plain(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from error


@contextlib.contextmanager
def asking(stub: Callable[[grpc.Channel], Stub], address: str) -> Iterator[Stub]:
    """A stub of the service, with its errors for people."""
    with errors_for_people(), connected(address) as channel:
        yield stub(channel)


def plain(text: str) -> str:
    """Text in which rich sees no markup and a terminal no command."""
    return printable(text).replace("[", "\\[")
