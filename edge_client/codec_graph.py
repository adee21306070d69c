"""The codec on an accelerator: the bundle's `codec.onnx` in place of its tables, where the provider is not the CPU.

On a CPU the tables are as fast and need no session, so the graph is left alone there. A graph that decodes
anything else than they do is not used, and the log says so.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edge_client.providers import open_session
from memory_model.bundle import Bundle
from memory_model.codec.codec import MemoryCodec
from memory_model.codec.payload import MemoryFormat
from memory_model.errors import InvalidInput

log = logging.getLogger(__name__)

FILE = "codec.onnx"
TOLERANCE = 1e-3
"""Largest relative error against the tables: accelerators may round products to fewer bits."""


class GraphCodec(MemoryCodec):
    """Decodes by an opened graph; everything else is as in `tables`. Thread-safe."""

    def __init__(self, session: ort.InferenceSession, tables: MemoryCodec) -> None:
        self._session = session
        self.head_dim, self.code_bytes = tables.head_dim, tables.code_bytes
        self.groups, self.together, self.codec_id = tables.groups, tables.together, tables.codec_id

    def decode(self, codes: np.ndarray, blocks: int | np.ndarray) -> np.ndarray:
        """float32 [n, together * head_dim]; blocks do not matter, there is one set of tables."""
        codes = np.ascontiguousarray(codes, np.uint8)
        if codes.ndim != 2 or codes.shape[1] != self.code_bytes:
            raise InvalidInput(f"codes have shape {codes.shape}, expected [n, {self.code_bytes}]")
        return np.asarray(self._session.run(["vectors"], {"codes": codes})[0])


def device_format(bundle: Bundle, provider: str) -> MemoryFormat:
    """The bundle's memory format, decoding by the graph where `provider` is active and is not the CPU."""
    path, plain = bundle.folder / FILE, bundle.memory_format
    if provider == "cpu" or not path.is_file():
        return plain
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    opened = open_session(path, options, provider)
    if opened.active.provider == "cpu":
        return plain
    codec = GraphCodec(opened.session, plain.codec)
    if (error := relative_error(codec, plain.codec)) > TOLERANCE:
        log.warning("codec_graph_refused provider=%s error=%.3g", opened.active.provider, error)
        return plain
    return MemoryFormat(bundle.config, bundle.manifest.model_id, codec)


def relative_error(codec: MemoryCodec, tables: MemoryCodec, count: int = 256) -> float:
    """How far two codecs decode random codes apart."""
    codes = np.random.default_rng(0).integers(0, 256, (count, tables.code_bytes)).astype(np.uint8)
    wanted = tables.decode(codes, 0)
    found = codec.decode(codes, 0)
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) or 1.0))


def open_codec_graph(path: str | Path, tables: MemoryCodec, provider: str = "cpu") -> GraphCodec:
    """The graph at `path` on a provider, also on the CPU: for comparisons."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return GraphCodec(open_session(path, options, provider).session, tables)
