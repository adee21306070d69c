"""`ProductTables`: the arrays of a product codec, their shapes checked; `PlacedCodes`: codes and where they go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memory_model.errors import InvalidInput

COARSE_SUBSPACES = 2


@dataclass(frozen=True)
class ProductTables:
    """Tables of the blocks of a product codec, float32 unless said otherwise; d is a block's width.

    mean [b, d], basis [b, d_out, d] (rows orthonormal for OPQ, identity without), codewords
    [b, M, 2^bits, d_out/M], coarse [b, 2, 2^coarse_bits, d_out/2] or None (the `Residual2x14` stage).
    together: groups in a block, d = together * head_dim. into [b, d, d_out]: the map that encoding
    projects with, None where it is the basis' inverse.
    """

    mean: np.ndarray
    basis: np.ndarray
    codewords: np.ndarray
    coarse: np.ndarray | None = None
    into: np.ndarray | None = None
    together: int = 1

    @property
    def bits(self) -> int:
        """Bits of one product code."""
        return int(self.codewords.shape[2]).bit_length() - 1

    @property
    def coarse_bits(self) -> int:
        """Bits of one of the two coarse codes; 0 without a coarse stage."""
        return 0 if self.coarse is None else int(self.coarse.shape[2]).bit_length() - 1

    @property
    def coarse_bytes(self) -> int:
        """Bytes in front of a code that hold both coarse codes, as FAISS packs them."""
        return (COARSE_SUBSPACES * self.coarse_bits + 7) // 8

    @property
    def code_bytes(self) -> int:
        """Bytes of one vector's code."""
        return self.coarse_bytes + (self.codewords.shape[1] * self.bits + 7) // 8

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, as they are saved."""
        named = {"mean": self.mean, "basis": self.basis, "codewords": self.codewords}
        optional = {"coarse": self.coarse, "into": self.into}
        return {**named, **{name: array for name, array in optional.items() if array is not None}}

    def check(self) -> None:
        """Raise InvalidInput when the shapes do not belong together or a number is not finite."""
        g, d = self.mean.shape
        out = self.basis.shape[1]
        _, M, words, width = self.codewords.shape
        expected: dict[str, tuple[int, ...]] = {
            "mean": (g, d), "basis": (g, out, d), "codewords": (g, M, words, out // M)
        }  # fmt: skip
        if self.coarse is not None:
            expected["coarse"] = (g, COARSE_SUBSPACES, self.coarse.shape[2], out // COARSE_SUBSPACES)
        if self.into is not None:
            expected["into"] = (g, d, out)
        if self.together < 1 or d % self.together:
            raise InvalidInput(f"a codec of width {d} cannot hold {self.together} vectors in a code")
        for name, array in self.arrays().items():
            if array.shape != expected[name] or not np.isfinite(array).all():
                raise InvalidInput(
                    f"codec table {name} has shape {array.shape}, expected finite {expected[name]}"
                )
        if words & (words - 1) or M * width != out or not 1 <= self.bits <= 16:
            raise InvalidInput(
                f"codec tables of {M} x {words} codewords of {width} do not make {out} dimensions"
            )


@dataclass(frozen=True)
class PlacedCodes:
    """codes uint8 [n, code_bytes], blocks int64 [n], places int64 [n * together], rows float32 [m, head_dim].

    The `together` vectors of code i are written to the rows that places[i * together:][:together] number; the other
    rows are left as they are. All C-contiguous.
    """

    codes: np.ndarray
    blocks: np.ndarray
    places: np.ndarray
    rows: np.ndarray
