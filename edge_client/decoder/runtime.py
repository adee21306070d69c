"""ONNX Runtime as the decoder uses it: options of a session, its errors as ours, and where what it makes is kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_client.errors import ProviderError
from memory3.errors import CorruptFile, Memory3Error
from memory3.home import users_folder
from memory3.runtime.embedder import ExecutionProviders
from memory3.runtime.onnx_runtime import ort, runtime_errors

BROKEN = (
    runtime_errors.InvalidProtobuf,
    runtime_errors.InvalidGraph,
    runtime_errors.NoModel,
    runtime_errors.NoSuchFile,
    runtime_errors.InvalidArgument,
)
"""What the runtime raises for a file that is no graph, or of which a part is missing."""
OUT_OF_MEMORY = (
    "bad_alloc",
    "out of memory",
    "failed to allocate",
    "cuda failure 2",
    "alloc_failed",
    "outofmemory",
    "can't allocate memory",
)


def session_options(threads: int, *, rounded: bool = True) -> ort.SessionOptions:
    """Options that the decoder's speed rests on, whatever the provider. rounded: int8 activations on the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # int8 activations in the int4 and int8 kernels: the fast path.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4" if rounded else "0")
    # Threads sleep while nothing is to be done, so that a retrieval at the same time gets its core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def open_session(
    path: Path, options: ort.SessionOptions, chain: ExecutionProviders, provider: str
) -> ort.InferenceSession:
    """A session whose first execution provider runs; the others take the operators that it lacks.

    provider: as messages name it. Raises ProviderError (NOT_INSTALLED, OUT_OF_MEMORY, UNSUPPORTED_GRAPH, LOAD_FAILED),
    CorruptFile.
    """
    with named_errors(str(path)):
        # Without `enable_fallback=0` the runtime would go to the CPU and only print it.
        session = ort.InferenceSession(str(path), options, providers=list(chain), enable_fallback=0)
    if session.get_providers()[0] != chain[0][0]:  # the runtime left it out
        raise ProviderError(
            f"provider {provider}: onnxruntime {ort.__version__} has it, but its libraries do not load "
            "(CUDA 12 with cuDNN 9, and TensorRT 10 for tensorrt): install them, see `edge-client doctor`",
            reason="NOT_INSTALLED",
        )
    return session


def cache_folder(decoder: Path) -> Path:
    """Where what is made for this device is kept: `cache` in the bundle; the user's cache if that is read-only."""
    if os.access(decoder.parent, os.W_OK):
        return decoder.parent / "cache"
    return users_folder("cache", "memory3-edge") / hashlib.sha256(str(decoder.resolve()).encode()).hexdigest()[:16]


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """Errors of the runtime and of allocation, raised again as ours. what: what was to be opened or allocated."""
    try:
        yield
    except Memory3Error:
        raise
    except Exception as error:  # the runtime has no common class for its errors
        message = " ".join(str(error).split())[:400]
        if isinstance(error, MemoryError) or any(text in message.lower() for text in OUT_OF_MEMORY):
            raise ProviderError(
                f"not enough memory for {what}: close other programs, choose a smaller context or fewer parallel "
                f"conversations, or export with --precision int4 ({message})",
                reason="OUT_OF_MEMORY",
            ) from error
        if isinstance(error, runtime_errors.NotImplemented):
            raise ProviderError(
                f"{what} has operators that onnxruntime {ort.__version__} does not run: {message}",
                reason="UNSUPPORTED_GRAPH",
            ) from error
        if isinstance(error, BROKEN) or "external data" in message.lower():
            raise CorruptFile(f"{what} is not a decoder of ours: {message}") from error
        raise ProviderError(f"{what} does not load: {message}") from error
