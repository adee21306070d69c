"""Decompression: five memories from their bytes, ours against FAISS's decoder of the same codes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from deploy.bench.intervals import interleave, median_interval, ratio_interval
from deploy.bench.scenario import BUILD, Keys, Scenario, Settings, Sheet, figure, with_intervals
from memory3.codec.codec import ProductCodec, TableCodec
from memory3.codec.loading import load_codec
from memory3.codec.native.library import installed
from memory3.codec.payload import HEADER, ExplicitMemory, MemoryFormat
from memory3.codec.tables import ProductTables
from memory3.config import ModelConfig
from memory3.files.bundle import Bundle
from memory_model.codec.faiss import tables_of_index
from testing.shapes import MEMORY3_2B

REPEATS = 5
"""Calls timed together: one is shorter than what a scheduler may take away."""
PAPER_FACTORY = "OPQ20_80,Residual2x14,PQ8x10"
"""The paper's codec (appendix B) in FAISS's words: 14 bytes for a vector of 80."""
CLUSTERS, TRAINING_VECTORS = 512, 41_000
PAPER_CODEC = BUILD / "codec-paper.faiss"


def measure(settings: Settings) -> Keys:
    """Top level: the paper's shape and codec. `default_model`: the codec of the bundle, whose model is measured."""
    shape = MEMORY3_2B
    with threadpool_limits(settings.threads):
        faiss.omp_set_num_threads(settings.threads)
        index = paper_index(PAPER_CODEC)
        codec = ProductCodec(tables_of_index(index), installed())
        paper = _measure(MemoryFormat(shape, "00" * 32, codec), index, settings)
        default = _default_model(settings)
    return {**paper, "default_model": default, "measured_model": default["model"]}


def _default_model(settings: Settings) -> Keys:
    bundle = Bundle.open(settings.bundle)
    codec = load_codec(bundle.folder / "codec.npz")
    index = index_of_tables(codec.tables) if isinstance(codec, ProductCodec) else None
    return _measure(MemoryFormat(bundle.config, bundle.manifest.model_id, codec), index, settings)


def _measure(memory_format: MemoryFormat, index: Any, settings: Settings) -> Keys:
    """Five full memories of clustered vectors: both decoders in turn, and how far their vectors are apart.

    index: FAISS's decoder of the same codes; None for a codec that it has none of.
    """
    config, codec = memory_format.config, memory_format.codec
    memories = random_memories(config)
    payloads = memory_format.encode(memories)
    native, library = codec.native if isinstance(codec, TableCodec) else None, installed()
    variants = {"ours": _timed(lambda: memory_format.decode(payloads))}
    codes = np.frombuffer(b"".join(p[HEADER.size :] for p in payloads), np.uint8).reshape(-1, codec.code_bytes)
    if index is not None:
        variants["FAISS"] = _timed(lambda: index.sa_decode(codes))
    times = interleave(variants, settings.rounds, warm_up=settings.warm_up)
    keys: Keys = {
        "model": config.name,
        "decoder": f"{getattr(native, 'name', 'scalar')}, {library.name}" if library and native else "numpy",
        "vectors": 2 * config.memory.budget * len(payloads),
        "bytes": sum(map(len, payloads)),
    }
    keys = with_intervals(keys, decode_ms=median_interval(times["ours"]))
    if index is None:
        return keys
    assert isinstance(codec, ProductCodec)
    return with_intervals(
        {**keys, "faiss_difference": _difference(codec, codes, index)},
        faiss_decode_ms=median_interval(times["FAISS"]),
        speedup=ratio_interval(times["FAISS"], times["ours"]),
    )


def random_memories(config: ModelConfig) -> list[ExplicitMemory]:
    """As many memories as a chunk reads, each of full length."""
    memory = config.memory
    vectors = clustered_vectors(memory.memories_per_chunk * 2 * memory.budget, config.head_dim)
    keys, values = vectors.reshape(2, memory.memories_per_chunk, memory.budget, config.head_dim)
    return [ExplicitMemory(k, v, memory.reference_tokens) for k, v in zip(keys, values, strict=True)]


def clustered_vectors(count: int, width: int, seed: int = 0) -> np.ndarray:
    """float32 [count, width] around random centres: decoding takes the same time whatever the vectors say."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).standard_normal((CLUSTERS, width), np.float32)
    noise = 0.5 * rng.standard_normal((count, width), np.float32)
    return np.asarray(centres[rng.integers(0, CLUSTERS, count)] + noise)


def paper_index(path: Path) -> Any:
    """The paper's codec, trained on clustered vectors in few iterations; read from `path` if it is there."""
    if not path.is_file():
        index: Any = faiss.index_factory(80, PAPER_FACTORY)
        rotation: Any = faiss.downcast_VectorTransform(index.chain.at(0))
        rotation.niter, rotation.niter_pq, rotation.niter_pq_0, rotation.max_train_points = 2, 2, 4, 10240
        layers: Any = faiss.downcast_index(index.index)
        coarse: Any = faiss.downcast_index(layers.q1.quantizer)
        coarse.pq.cp.niter, coarse.pq.cp.min_points_per_centroid = 2, 1
        layers.pq.cp.niter = 5
        index.train(clustered_vectors(TRAINING_VECTORS, 80, seed=1))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        faiss.write_index(index, str(partial))
        partial.replace(path)
    return faiss.read_index(str(path))


def index_of_tables(tables: ProductTables) -> Any:
    """A FAISS index with a codec's tables, without its mean: product codewords, then the transposed basis.

    FAISS inverts a linear map by its transpose if it knows that the map is orthonormal, which is what our codec
    does with any basis; so the index decodes to our vectors less the mean, by the same arithmetic.
    """
    basis, codewords = tables.basis, tables.codewords
    width_out, width = basis.shape
    parts, words, _ = codewords.shape
    quantizer = faiss.IndexPQ(width_out, parts, int(words).bit_length() - 1)
    faiss.copy_array_to_vector(np.ascontiguousarray(codewords, np.float32).ravel(), quantizer.pq.centroids)
    quantizer.is_trained = True
    linear = faiss.LinearTransform(width, width_out, False)
    faiss.copy_array_to_vector(np.ascontiguousarray(basis, np.float32).ravel(), linear.A)
    linear.is_trained = linear.is_orthonormal = True
    index = faiss.IndexPreTransform(linear, quantizer)
    index.is_trained = True
    return index


def _timed(decode: Callable[[], Any]) -> Callable[[int], float]:
    def once(_: int) -> float:
        began = time.perf_counter()
        for _ in range(REPEATS):
            decode()
        return 1e3 * (time.perf_counter() - began) / REPEATS

    return once


def _difference(codec: ProductCodec, codes: np.ndarray, index: Any) -> float:
    """Length of the difference between our vectors and FAISS's over their length: the decoder's own error."""
    theirs = index.sa_decode(codes) + codec.tables.mean
    return float(f"{np.linalg.norm(codec.decode(codes) - theirs) / np.linalg.norm(theirs):.1e}")


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """Both shapes, one a row."""
    rows = [
        (
            f"{keys['model']}, {keys['vectors']} vectors, {keys['bytes']} bytes",
            keys["decoder"],
            *(figure(keys, name) for name in ("decode_ms", "faiss_decode_ms", "speedup", "faiss_difference")),
        )
        for keys in (result, result.get("default_model"))
        if keys
    ]
    columns = ("five memories", "our decoder", "ours, ms ↓", "FAISS, ms ↓", "speedup ↑", "relative difference ↓")
    note = (
        "Ours includes everything from payloads to memories, as on a device: compiled if there is a C compiler, else"
        " numpy. FAISS's is `sa_decode` of the same codes in one call; it has none of scalar codes. Vectors are random"
        " clusters. The last column is the norm of the difference over the norm of the vectors; the codes themselves"
        " lose several times as much."
    )
    return [Sheet("decompression", columns, rows, note)]


SCENARIO = Scenario(
    name="codec",
    summary="Decompressing five memories, against FAISS's decoder of the same codes.",
    settings=Settings,
    measure=measure,
    sheets=sheets,
    quick={"rounds": 5},
)
