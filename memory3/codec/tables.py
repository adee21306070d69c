"""`ProductTables`: the arrays of a product codec, their shapes checked; bit strings."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from memory3.errors import InvalidInput

COARSE_SUBSPACES = 2


@dataclass(frozen=True)
class ProductTables:
    """Tables of a product codec, float32; d = together * head_dim is the width of what one code holds.

    mean [d], basis [d_out, d] (rows orthonormal for OPQ, identity without), codewords [M, 2^bits, d_out/M], coarse
    [2, 2^coarse_bits, d_out/2] or None (the `Residual2x14` stage). together: vectors in a code. What encoding projects
    with is the basis' inverse, unless the file has a map into [d, d_out], or in its place the metric [together,
    head_dim, head_dim] of each vector, block by block, of which the map follows: metric @ basis^T.
    """

    mean: np.ndarray
    basis: np.ndarray
    codewords: np.ndarray
    coarse: np.ndarray | None = None
    into: np.ndarray | None = None
    together: int = 1
    metric: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Raise InvalidInput when the shapes do not belong together or a number is not finite."""
        (d,), out, (parts, words, width) = self.mean.shape, len(self.basis), self.codewords.shape
        if self.together < 1 or d % self.together:
            raise InvalidInput(f"a codec of width {d} cannot hold {self.together} vectors in a code")
        expected: dict[str, tuple[int, ...]] = {
            "mean": (d,),
            "basis": (out, d),
            "codewords": (parts, words, out // parts),
            "into": (d, out),
            "metric": (self.together, d // self.together, d // self.together),
        }
        if self.coarse is not None:
            expected["coarse"] = (COARSE_SUBSPACES, self.coarse.shape[1], out // COARSE_SUBSPACES)
        for name, array in self.arrays().items():
            if array.shape != expected[name] or not np.isfinite(array).all():
                raise InvalidInput(f"codec table {name} has shape {array.shape}, expected finite {expected[name]}")
        if words & (words - 1) or parts * width != out or not 1 <= self.bits <= 16:
            raise InvalidInput(f"codec tables of {parts} x {words} codewords of {width} do not make {out} dimensions")

    def projection(self) -> np.ndarray:
        """What vectors are projected with when they are encoded, float32 [d, d_out]."""
        if self.into is not None:
            return self.into
        if self.metric is None:
            return np.linalg.pinv(self.basis.astype(np.float64)).astype(np.float32)
        wide = self.metric.shape[1]
        columns = self.basis.reshape(len(self.basis), self.together, wide)
        return np.concatenate([own @ columns[:, n].T for n, own in enumerate(self.metric)])

    @property
    def bits(self) -> int:
        """Bits of one product code."""
        return int(self.codewords.shape[1]).bit_length() - 1

    @property
    def coarse_bits(self) -> int:
        """Bits of one of the two coarse codes; 0 without a coarse stage."""
        return 0 if self.coarse is None else int(self.coarse.shape[1]).bit_length() - 1

    @property
    def coarse_bytes(self) -> int:
        """Bytes in front of a code that hold both coarse codes, as FAISS packs them."""
        return (COARSE_SUBSPACES * self.coarse_bits + 7) // 8

    @property
    def code_bytes(self) -> int:
        """Bytes of one code."""
        return self.coarse_bytes + (len(self.codewords) * self.bits + 7) // 8

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, as they are saved."""
        named = {"mean": self.mean, "basis": self.basis, "codewords": self.codewords}
        optional = {"coarse": self.coarse, "into": self.into, "metric": self.metric}
        return {**named, **{name: array for name, array in optional.items() if array is not None}}

    @property
    def codec_id(self) -> str:
        """SHA-256 over what decodes; how a codec encodes does not change what its codes mean."""
        digest = hashlib.sha256(f"together {self.together}".encode() if self.together > 1 else b"")
        for name, array in sorted(self.arrays().items()):
            if name not in ("into", "metric"):
                digest.update(f"{name}{(1, *array.shape)}".encode())  # files count sets of tables, always one
                digest.update(np.ascontiguousarray(array, "<f4").tobytes())
        return digest.hexdigest()


def pack_bits(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers int64 [n, count] of `bits` bits each as little-endian bit strings uint8 [n, bytes]."""
    if bits == 8:
        return numbers.astype(np.uint8)
    if bits == 4:
        nibbles = np.pad(numbers.astype(np.uint8), ((0, 0), (0, numbers.shape[1] % 2)))
        return np.asarray(nibbles[:, 0::2] | nibbles[:, 1::2] << 4)
    spread = (numbers[:, :, None] >> np.arange(bits)) & 1
    return np.packbits(spread.astype(np.uint8).reshape(len(numbers), -1), axis=1, bitorder="little")


def unpack_bits(codes: np.ndarray, bits: int, count: int) -> np.ndarray:
    """`count` numbers of `bits` bits each, int64 [n, count], from little-endian bit strings uint8 [n, bytes]."""
    if bits == 8:
        return codes[:, :count].astype(np.int64)
    if bits == 4:
        numbers = np.empty((len(codes), 2 * codes.shape[1]), np.int64)
        numbers[:, 0::2], numbers[:, 1::2] = codes & 15, codes >> 4
        return numbers[:, :count]
    spread = np.unpackbits(codes, axis=1, count=count * bits, bitorder="little")
    return np.asarray(spread.reshape(len(codes), count, bits) @ (1 << np.arange(bits)))
