"""Console scripts: Ctrl-C while a program is being loaded ends it silently, with the shell's exit code 130.

Importing this module leaves Ctrl-C to the system until the program is loaded; nothing else imports it.
"""

from __future__ import annotations

try:
    import signal
    from importlib import import_module

    _before = signal.getsignal(signal.SIGINT)
    if _before is not signal.SIG_IGN:  # a shell's background job stays one
        signal.signal(signal.SIGINT, signal.SIG_DFL)
except KeyboardInterrupt:
    raise SystemExit(130) from None


def _run(module: str) -> None:
    app = import_module(module).app
    try:
        signal.signal(signal.SIGINT, _before)
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def edge_client() -> None:
    """`edge-client`."""
    _run("edge_client.cli.main")


def memory_model() -> None:
    """`memory-model`."""
    _run("memory_model.cli")


def memory_service() -> None:
    """`memory-service`."""
    _run("memory_service.cli")
