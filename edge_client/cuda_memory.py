"""Device memory by the CUDA runtime library itself: allocate, copy, wait.

A few functions through ctypes, because every JetPack has libcudart and no Python package of CUDA fits all
of its releases. Written by NVIDIA's documentation; not run by the authors, who had no GPU.
"""

from __future__ import annotations

import ctypes

import numpy as np

from edge_client.errors import ProviderError

LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
TO_DEVICE, TO_HOST = 1, 2  # cudaMemcpyKind
MAJOR, MINOR = 75, 76  # cudaDevAttrComputeCapabilityMajor, …Minor


class CudaMemory:
    """The GPU's memory; addresses are plain integers. Raises ProviderError when the library or a call fails."""

    def __init__(self) -> None:
        self._cuda = _library()

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p(self._cuda.cudaGetErrorString(code)).value or b""
            raise ProviderError(f"{name} failed: {text.decode()} ({code})")

    @property
    def architecture(self) -> str:
        """The GPU's architecture, such as "87" for Orin."""
        found = []
        for attribute in (MAJOR, MINOR):
            value = ctypes.c_int()
            self._call("cudaDeviceGetAttribute", ctypes.byref(value), attribute, 0)
            found.append(value.value)
        return f"{found[0]}{found[1]}"

    def allocate(self, size: int) -> int:
        """Zeroed memory of `size` bytes."""
        address = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        self._call("cudaMemset", address, 0, ctypes.c_size_t(max(size, 1)))
        return int(address.value or 0)

    def free(self, address: int) -> None:
        """Give it back."""
        self._call("cudaFree", ctypes.c_void_p(address))

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        self._call(
            "cudaMemcpy", ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(size), kind
        )

    def write(self, address: int, array: np.ndarray) -> None:
        """Copy a contiguous array there."""
        held = np.ascontiguousarray(array)
        self._copy(address, int(held.ctypes.data), held.nbytes, TO_DEVICE)

    def read(self, address: int, array: np.ndarray) -> None:
        """Copy from there into a contiguous array."""
        assert array.flags.c_contiguous
        self._copy(int(array.ctypes.data), address, array.nbytes, TO_HOST)

    def wait(self) -> None:
        """Return when all copies and kernels are done."""
        self._call("cudaDeviceSynchronize")


def _library() -> ctypes.CDLL:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ProviderError(
        f"no CUDA runtime ({', '.join(LIBRARIES)}): install CUDA or add its folder to LD_LIBRARY_PATH"
    )
