"""Switches that keep libraries from reporting what a program does; set when `memory3` is imported, before they load.

The switches are environment variables, so programs that this one starts inherit them. A variable that you have set
yourself keeps its value.
"""

from __future__ import annotations

import os
import sys

OFF = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime 1.31: device id, event database and a collector, from its import on
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub, below transformers and lm-eval: library names in requests
    "ANONYMIZED_TELEMETRY": "False",  # chromadb, which the benchmarks compare with
    "DO_NOT_TRACK": "1",  # the convention of consoledonottrack.com
    "SCARF_NO_ANALYTICS": "true",  # packages that report their use to Scarf
}
"""Value that turns off a library's telemetry, by environment variable."""

TOO_LATE = "onnxruntime" in sys.modules and not os.environ.get("ORT_DISABLE_TELEMETRY")
"""Whether ONNX Runtime was imported before the switches were set."""


def turn_off() -> None:
    """Set every variable of OFF that is not set."""
    for name, value in OFF.items():
        if not os.environ.get(name):
            os.environ[name] = value
