"""Libraries that a reader needs, loaded when the first file of its kind is read."""

from __future__ import annotations

import importlib
from typing import Any

from memory3.errors import MissingFile

_PACKAGES = {
    "compressed_rtf": "compressed-rtf",
    "pypdf": "pypdf",
    "pyarrow": "pyarrow",
    "rapidocr_onnxruntime": "rapidocr-onnxruntime",
    "yaml": "pyyaml",
}


def imported(module: str, extra: str = "formats") -> Any:
    """A library of an extra; raises MissingFile with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        package = _PACKAGES.get(name, name)
        raise MissingFile(f"reading it needs {package}, of the extra {extra}: pip install {package}") from error
