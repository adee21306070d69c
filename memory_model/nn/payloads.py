"""Payloads to memories on a device: the codec's tables and its arithmetic as torch tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from memory_model.codec.codec import ProductCodec
from memory_model.codec.payload import MemoryFormat
from memory_model.codec.tables import COARSE_SUBSPACES, ProductTables
from memory_model.nn.decoder import MemoryBatch


class PayloadReader:
    """Payloads to memories on a device. Thread-safe: holds tables only."""

    def __init__(
        self, memory_format: MemoryFormat, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:  # fmt: skip
        """Product codecs decode on the device in float32; others on the processor. dtype: of the memories."""
        self.format, self.device, self.dtype = memory_format, torch.device(device), dtype
        codec = memory_format.codec
        self._tables: ProductTables | None = codec.tables if isinstance(codec, ProductCodec) else None
        if self._tables is not None:
            self._words = self._on_device(self._tables.codewords).flatten(0, 2)
            self._basis, self._mean = self._on_device(self._tables.basis), self._on_device(self._tables.mean)
            if self._tables.coarse is not None:
                self._coarse = self._on_device(self._tables.coarse).flatten(0, 2)

    @torch.inference_mode()
    def read(self, payloads: Sequence[Sequence[bytes | memoryview]]) -> MemoryBatch:
        """Memories [n, 1, m] of each sequence's payloads; missing ones are not valid.

        Raises what `MemoryFormat.decode` raises.
        """
        memory, d = self.format.config.memory, self.format.config.head_dim
        n, m, size = len(payloads), max(map(len, payloads), default=0), 2 * memory.budget
        codes, blocks, places = [], [], []
        for sequence, row in enumerate(payloads):
            for number, payload in enumerate(row):
                _, own, block, place = self.format.codes(payload)
                codes.append(own)
                blocks.append(block)
                places.append(place + (sequence * m + number) * size)
        rows = torch.zeros(n * m * size, d, dtype=self.dtype, device=self.device)
        valid = torch.zeros(n * m * size, dtype=torch.bool, device=self.device)
        if codes:
            written = self._on_device(np.concatenate(places))
            vectors = self._vectors(np.concatenate(codes), np.concatenate(blocks))
            rows[written] = vectors.view(-1, d).to(self.dtype)
            valid[written] = True
        keys, values = rows.view(n, 1, m, 2, memory.budget, d).unbind(3)
        return MemoryBatch(keys, values, valid.view(n, 1, m, 2, memory.budget)[:, :, :, 0])

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _vectors(self, codes: np.ndarray, blocks: np.ndarray) -> Tensor:
        """float32 [n, together * d] of codes uint8 [n, code_bytes] of these blocks [n]."""
        tables = self._tables
        if tables is None:
            return self._on_device(self.format.codec.decode(codes, blocks))
        count, parts, words = tables.codewords.shape[:3]
        which = self._on_device(blocks if count > 1 else np.zeros_like(blocks))[:, None]
        on_device = self._on_device(codes)

        def looked_up(table: Tensor, packed: Tensor, bits: int, parts: int, words: int) -> Tensor:
            part = torch.arange(parts, device=self.device)
            index = unpacked(packed, bits, parts) + (which * parts + part) * words
            return table[index].flatten(1)

        found = looked_up(self._words, on_device[:, tables.coarse_bytes :], tables.bits, parts, words)
        if tables.coarse is not None:
            packed, coarse_words = on_device[:, : tables.coarse_bytes], tables.coarse.shape[2]
            found += looked_up(self._coarse, packed, tables.coarse_bits, COARSE_SUBSPACES, coarse_words)
        if count == 1:
            return torch.addmm(self._mean[0], found, self._basis[0])
        vectors = torch.empty(len(found), self._mean.shape[1], device=self.device)
        for block in np.unique(blocks).tolist():
            own = self._on_device(np.flatnonzero(blocks == block))
            vectors[own] = torch.addmm(self._mean[block], found[own], self._basis[block])
        return vectors


def unpacked(codes: Tensor, bits: int, count: int) -> Tensor:
    """`count` numbers of `bits` bits (at most 16), int64 [n, count], of little-endian bit strings uint8 [n, bytes]."""
    first = torch.arange(count, device=codes.device) * bits
    padded = F.pad(codes, (0, 2)).long()
    three = sum((padded[:, first // 8 + byte] << 8 * byte for byte in (1, 2)), padded[:, first // 8])
    return (three >> first % 8) & ((1 << bits) - 1)
