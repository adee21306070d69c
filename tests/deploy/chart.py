"""The chart as helm renders it, with the values that tests of several files give."""

import functools
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from deploy.kube_tools import tool
from testing.programs import ROOT

CHART = ROOT / "deploy" / "helm" / "memory-service"
KUBERNETES = ("1.27.0", kubernetes_validate.latest_version())
CUSTOM = {"Certificate", "ServiceMonitor", "PrometheusRule", "GRPCRoute"}
URL = "clickhouse://m@ch:8123/m"
EXTERNAL = {"kind": "external", "external": {"url": URL, "existingSecret": "s"}}

Manifest = dict[str, Any]


@functools.cache
def helm() -> Path:
    return tool("helm")


def run(*arguments: str | Path, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    given = ["-f", "-"] if values is not None else []
    return subprocess.run(
        [helm(), *arguments, *given],
        input=yaml.safe_dump(values) if values is not None else None,
        capture_output=True,
        text=True,
        timeout=60,
    )


def render(values: dict[str, Any] | None = None, *options: str | Path) -> list[Manifest]:
    done = run("template", "memories", CHART, "--namespace", "shop", *options, values=values or {})
    assert done.returncode == 0, done.stderr
    return [m for m in yaml.safe_load_all(done.stdout) if m]


def of_kind(manifests: list[Manifest], kind: str, suffix: str = "") -> Manifest:
    (found,) = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"].endswith(suffix)]
    return found
