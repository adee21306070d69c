"""What this machine has of NVIDIA's: a GPU, its libraries, and which of ONNX Runtime's providers use it."""

from __future__ import annotations

import ctypes
import importlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from memory3.runtime.onnx_runtime import ort

INSTALL = (
    "pip install 'memory3-edge[edge-{extra}]' && pip uninstall --yes onnxruntime && "
    "pip install --force-reinstall --no-deps 'onnxruntime-gpu<1.27'"
)


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU. architecture: compute capability without the dot, "87" for Orin."""

    name: str
    architecture: str


@cache
def gpu() -> Gpu | None:
    """The first NVIDIA GPU, as its driver names it; None without a driver or GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, value, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    driver.cuDeviceGetName(name, len(name), device)
    capability = ""
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability += str(value.value)
    return Gpu(name.value.decode(errors="replace"), capability)


@cache
def tensorrt_version() -> str:
    """The version of the TensorRT library that loads, such as "10.3.0"; "" without one."""
    with suppress(ImportError, OSError):  # PyPI's wheel of the libraries loads them from its own folder
        importlib.import_module("tensorrt_libs")
    try:
        library = ctypes.CDLL("libnvinfer.so.10")
    except OSError:
        return ""
    number = int(library.getInferLibVersion())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def missing(execution_provider: str, extra: str) -> str:
    """Why an execution provider cannot use a GPU here, and what to install; "" if nothing is known against it."""
    if gpu() is None:
        return "no NVIDIA GPU: libcuda.so.1, which the driver brings, does not load or finds none"
    if execution_provider not in ort.get_available_providers():
        return (
            f"onnxruntime {ort.__version__} is built without it: install the extra edge-{extra} "
            f"({INSTALL.format(extra=extra)}); on a Jetson the wheel that `edge-client doctor` names"
        )
    return ""
