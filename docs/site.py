"""Lays out the documents as mkdocs wants them, in build/docs, and builds the site strictly: `make docs`.

The layout is that of the repository, so links between documents stay as they are. A link to what is no page (a source
file, a test) becomes plain text. The references of commands and wire are made here; the repository does not keep them.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pydantic_settings import BaseSettings

from edge_client.serve.access import ServeSettings
from edge_client.settings import EdgeSettings
from memory_service.api import backup_ages, gauges
from memory_service.client.connection import Connection
from memory_service.settings import Settings
from memory_service.telemetry.metrics import REGISTRY

ROOT = Path(__file__).resolve().parents[1]
STAGED = ROOT / "build" / "docs"
OUTSIDE = ("README.md", "CHANGELOG.md", "data/README.md", "deploy/helm/memory-service/README.md")
"""Pages that do not lie in docs/."""
PROGRAMS = {
    "memory-model": "memory_model.cli",
    "memory-service": "memory_service.cli",
    "edge-client": "edge_client.cli.main",
}
SETTINGS: dict[str, type[BaseSettings]] = {
    "the service": Settings,
    "the commands that call the service": Connection,
    "a device": EdgeSettings,
    "`edge-client serve`": ServeSettings,
}
_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s#]+)(#[^)]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def stage(folder: Path = STAGED) -> None:
    """Copy all pages and their pictures into `folder`, emptied before, and make the generated ones."""
    shutil.rmtree(folder, ignore_errors=True)
    docs = (path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".png", ".svg"))
    sources = [*(ROOT / name for name in OUTSIDE), *sorted(docs)]
    for source in sources:
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(linked(source, set(sources)), encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    commands = folder / "docs" / "commands.md"
    commands.write_text(commands_page(), encoding="utf-8")
    (folder / "docs" / "grpc.md").write_text(contract_page(), encoding="utf-8")


def commands_page() -> str:
    """Every command with its options, as typer writes them down, then settings and metrics."""
    parts = ["# Commands\n"]
    for name, module in PROGRAMS.items():
        command = [sys.executable, "-m", "typer", module, "utils", "docs", "--name", name]
        told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
        parts.append(re.sub(r"^#", "##", told, flags=re.MULTILINE))
    return "\n".join(parts) + "\n" + settings_and_metrics()


def settings_and_metrics() -> str:
    """All settings, and the service's metrics, with those that only a running service registers."""
    parts = []
    for whose, settings in SETTINGS.items():
        parts.append(
            f"\n## Settings of {whose}\n\n{inspect.getdoc(settings)}\n\n| variable | default | |\n|---|---|---|"
        )
        for name, field in settings.model_fields.items():
            # A default that is computed depends on the machine: its description says what it is.
            fixed = field.default is not None and field.default_factory is None
            default = f"`{getattr(field.default, 'value', field.default)}`" if fixed else ""
            variable = f"{settings.model_config['env_prefix']}{name.upper()}"
            parts.append(f"| `{variable}` | {default} | {field.description or ''} |")
    parts.append("\n## Metrics of the service\n\n| metric | type | counts |\n|---|---|---|")
    always = [metric for metric in REGISTRY.collect() if metric.name.startswith("memory_service_")]
    for metric in (*always, *gauges.families(), *backup_ages.families()):
        parts.append(
            f"| `{metric.name}{'_total' * (metric.type == 'counter')}` | {metric.type} | {metric.documentation} |"
        )
    return "\n".join(parts) + "\n"


def contract_page() -> str:
    """The proto files, whose comments define every call, field, limit and error."""
    parts = ["# gRPC\n\nThe contract `memory.v1`; [the wire](wire.md) is the overview.\n"]
    for file in sorted((ROOT / "protos" / "memory" / "v1").glob("*.proto")):
        parts.append(f"## {file.name}\n\n```protobuf\n{file.read_text(encoding='utf-8').strip()}\n```\n")
    return "\n".join(parts)


def linked(page: Path, staged: set[Path]) -> str:
    """The text of a page, with links to what is not staged as plain text."""

    def kept(link: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", link[3]) or (page.parent / link[3]).resolve() in staged:
            return link[0]
        return link[2]

    parts = _FENCE.split(page.read_text(encoding="utf-8"))
    return "".join(part if number % 2 else _LINK.sub(kept, part) for number, part in enumerate(parts))


def main() -> int:
    """Stage and build; arguments go to mkdocs instead of `build --strict`, such as `serve`."""
    stage()
    mkdocs = ROOT / "build" / "docs-venv" / "bin" / "mkdocs"
    command = [mkdocs, *(sys.argv[1:] or ("build", "--strict"))]  # --quiet would hide warnings from --strict, too
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
