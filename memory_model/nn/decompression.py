"""Decompression on a torch device: codes go there, a hundredth of the bytes, and memories stay there as tensors.

A GPU decodes the memories of 32 conversations in the time that a processor takes for one. On a processor the compiled
decoder (`memory3.codec.native`) is faster.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from memory3.codec.codec import ProductCodec


class TorchCodec(ProductCodec):
    """A product codec whose `decode_rows` works on a device, in float32."""

    def __init__(self, codec: ProductCodec, device: torch.device | str) -> None:
        super().__init__(codec.tables, codec.library)
        self.device, tables = torch.device(device), codec.tables
        self._mean, self._rows = self._here(tables.mean), self._here(tables.basis)
        self._parts = [self._part(tables.codewords, tables.bits, 8 * tables.coarse_bytes)]
        if tables.coarse is not None:
            self._parts.append(self._part(tables.coarse, tables.coarse_bits, 0))

    def _here(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self.device)

    def _part(self, codewords: np.ndarray, bits: int, first: int) -> tuple[Tensor, ...]:
        """Codewords, and of each number of `bits` bits from bit `first` of a code on: byte, shift, mask, first row."""
        parts, count, width = codewords.shape
        start, rows = first + bits * np.arange(parts), np.arange(parts, dtype=np.int32) * count
        arrays = codewords.reshape(-1, width), start // 8, (start % 8).astype(np.int32), np.int32(count - 1), rows
        return tuple(map(self._here, arrays))

    @torch.inference_mode()
    def decode_rows(self, codes: np.ndarray, indices: np.ndarray, count: int) -> Tensor:
        """See MemoryCodec; a tensor of the device."""
        # Two bytes more: a number of up to 16 bits is read from three, whatever its first bit.
        bytes_ = self._here(np.pad(codes, ((0, 0), (0, 2)))).int()
        words = torch.zeros(len(codes), len(self._rows), device=self.device)
        for codewords, start, shift, mask, first in self._parts:
            low, middle, high = (bytes_[:, start + offset] for offset in range(3))
            words += codewords[((low | middle << 8 | high << 16) >> shift & mask) + first].flatten(1)
        rows = torch.zeros(count, self.head_dim, device=self.device)
        rows[self._here(indices)] = torch.addmm(self._mean, words, self._rows).view(-1, self.head_dim)
        return rows
