"""`DecoderGraph`: the decoder's weights on ONNX Runtime, opened once and shared by every conversation.

Knows the file and the execution provider; the key-values of a conversation are `edge_client.decoder.runner`'s.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edge_client.decoder.free_memory import return_free_memory
from edge_client.decoder.huge_pages import in_huge_pages
from edge_client.decoder.providers import Active, check_name, open_session
from memory_model.cache_layout import fused_path
from memory_model.config import ModelConfig
from memory_model.errors import CorruptFile, MissingFile

SERVED = ("cpu",)
"""Providers that `edge_client.decoder.runner` can feed: its caches are arrays of the host's, written in place."""


class DecoderGraph:
    """An opened `decoder.onnx`. Thread-safe: any number of decoders may run it at the same time.

    config: the shape in the file's properties. precision: of the weights. fused: whether it is the spelling for
    the CPU provider. inputs: their names. device: "cpu" or "cuda", where its tensors lie. cache_dtype: of keys and
    values. provider: what is really active (cpu); warning: why that is not what was wanted, or "".
    """

    def __init__(self, session: ort.InferenceSession, active: Active) -> None:
        properties = session.get_modelmeta().custom_metadata_map
        self.session = session
        self.config = ModelConfig.from_dict(json.loads(properties["config"]))
        self.precision = properties["precision"]
        self.device = active.device
        self.cache_dtype = np.float16 if properties.get("compute") == "float16" else np.float32
        self.fused = properties.get("operators") == "fused"
        self.inputs = frozenset(given.name for given in session.get_inputs())
        self.provider, self.warning = active.provider, active.warning

    def __del__(self) -> None:
        # The last model with these weights is gone: the system gets their memory, not the C library.
        self.__dict__.clear()
        return_free_memory()

    @classmethod
    def open(cls, path: str | Path, *, threads: int = 1, provider: str = "cpu") -> DecoderGraph:
        """Open `decoder.onnx` as `memory_model.export` writes it, or the spelling for the CPU beside it.

        threads: of the matrix kernels; they sleep while nothing is to be done, so that a retrieval beside
        them gets its core. provider: a name of `edge_client.decoder.providers`; one that cannot be had is replaced by
        the CPU with a warning. Raises MissingFile, CorruptFile, InvalidInput.
        """
        path = Path(path)
        if not path.is_file():
            raise MissingFile(f"no decoder at {path}: make it with `memory-model export`")
        check_name(provider)
        try:
            with in_huge_pages():
                fused = fused_path(path)  # every provider that is served is the CPU
                file = fused if fused.is_file() else path
                opened = open_session(file, session_options(threads), provider, served=SERVED)
            return cls(opened.session, opened.active)
        except Exception as error:  # the runtime has no common class for its errors
            raise CorruptFile(f"{path} is not a decoder of ours: {error}") from error


def session_options(threads: int) -> ort.SessionOptions:
    """Options that the decoder's speed rests on, whatever the provider."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # int8 activations in the int4 and int8 kernels: the fast path.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
