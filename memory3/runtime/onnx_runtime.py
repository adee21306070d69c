"""ONNX Runtime with its telemetry off: the only module that imports `onnxruntime`; all others import it from here.

ONNX Runtime 1.31 writes a device id and an event database, and looks up its collector, as soon as it is imported.
`ORT_DISABLE_TELEMETRY`, set before, prevents all three. If a program has imported it before, the files exist already;
this module turns off the later events and warns.
"""

from __future__ import annotations

import warnings

from memory3.telemetry import TOO_LATE, turn_off

turn_off()

import onnxruntime as ort  # noqa: E402  # after the switch
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors  # noqa: E402

__all__ = ["ort", "runtime_errors"]

if TOO_LATE and hasattr(ort, "disable_telemetry_events"):
    ort.disable_telemetry_events()
    warnings.warn(
        "onnxruntime was imported before memory3 and may have reported its start: import edge_client or memory3 first,"
        " or set ORT_DISABLE_TELEMETRY=1 in the environment of the program",
        RuntimeWarning,
        stacklevel=2,
    )
