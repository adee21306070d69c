"""Decompression on a torch device: codes go there, a hundredth of the bytes, and memories stay there as tensors.

A GPU decodes the memories of 32 conversations in the time that a processor takes for one. On a processor the compiled
decoder (`memory_model.codec.native`) is faster.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from memory_model.codec.codec import MemoryCodec, ProductCodec


class TorchCodec(MemoryCodec):
    """A product codec that decodes on a device, in float32. It encodes as the codec does, in numpy."""

    def __init__(self, codec: ProductCodec, device: torch.device | str) -> None:
        self.codec, self.device, tables = codec, torch.device(device), codec.tables
        self.head_dim, self.together = codec.head_dim, codec.together
        self.code_bytes, self.codec_id = codec.code_bytes, codec.codec_id
        self._mean, self._basis = self._here(tables.mean), self._here(tables.basis)
        self._parts = [_Part(self, tables.codewords, tables.bits, 8 * tables.coarse_bytes)]
        if tables.coarse is not None:
            self._parts.append(_Part(self, tables.coarse, tables.coarse_bits, 0))

    def _here(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self.device)

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """See MemoryCodec."""
        return self.codec.encode(vectors)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """See MemoryCodec."""
        return self._decoded(codes).cpu().numpy()

    @torch.inference_mode()
    def decode_rows(self, codes: np.ndarray, places: np.ndarray, count: int) -> Tensor:
        """See MemoryCodec; a tensor of the device."""
        rows = torch.zeros(count, self.head_dim, device=self.device)
        rows[self._here(places)] = self._decoded(codes).view(-1, self.head_dim)
        return rows

    @torch.inference_mode()
    def _decoded(self, codes: np.ndarray) -> Tensor:
        # Two bytes more: a number of up to 16 bits is read from three bytes, whatever its first bit.
        bytes_ = self._here(np.pad(codes, ((0, 0), (0, 2)))).int()
        words = sum(part.words(bytes_) for part in self._parts)
        return torch.addmm(self._mean, cast(Tensor, words), self._basis)

    def save(self, path: object) -> None:
        """See MemoryCodec."""
        self.codec.save(path)  # type: ignore[arg-type]


class _Part:
    """Codewords [parts, words, width], and where their numbers of `bits` bits lie in a code, from bit `first` on."""

    def __init__(self, codec: TorchCodec, codewords: np.ndarray, bits: int, first: int) -> None:
        parts, count, width = codewords.shape
        start = first + bits * np.arange(parts)
        self._codewords = codec._here(codewords.reshape(-1, width))
        self._bytes, self._shift = codec._here(start // 8), codec._here((start % 8).astype(np.int32))
        self._mask, self._rows = count - 1, codec._here(np.arange(parts, dtype=np.int32) * count)

    def words(self, bytes_: Tensor) -> Tensor:
        """The codewords that codes int32 [n, bytes] name, side by side: float32 [n, parts * width]."""
        low, middle, high = (bytes_[:, self._bytes + offset] for offset in range(3))
        numbers = (low | middle << 8 | high << 16) >> self._shift & self._mask
        return self._codewords[numbers + self._rows].flatten(1)
