"""Which rows share a node of the graph: those with equal vectors, and those whose vectors are nearly the node's.

node       of the graph; holds the vector of its first variant, the leader
variant    a distinct vector of 16-bit floats near its node's; those that do not lead have their vectors here
row        of a reference; several rows have one variant
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

NEAR = 0.985
"""From this cosine on a vector joins a node. Texts that differ in a word or a number are closer, others are not."""
MOST_NEAR = 2048
"""Variants of a node: each search that meets it compares them all. What comes then begins a node of its own."""


@dataclass(frozen=True)
class Rows:
    """A set of rows. bits: uint8 [n / 8]; count: how many there are; nodes: of an index, those with such rows."""

    bits: np.ndarray
    count: int
    nodes: dict[int, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, member: np.ndarray) -> Rows:
        """member: bool [n], by row."""
        return cls(np.packbits(member, bitorder="little"), int(np.count_nonzero(member)))

    def has(self, rows: np.ndarray) -> np.ndarray:
        """Which of these rows, int64 [n], are in the set, bool [n]."""
        within = rows < 8 * len(self.bits)
        found = np.zeros(len(rows), bool)
        inside = rows[within]
        found[within] = (self.bits[inside >> 3] >> (inside & 7).astype(np.uint8)) & 1
        return found


class Grown:
    """An array that grows at its end."""

    def __init__(self, dtype: Any, width: int = 0, values: np.ndarray | None = None) -> None:
        self._values = np.zeros((16, width) if width else 16, dtype) if values is None else values
        self._count = 0 if values is None else len(values)

    def __len__(self) -> int:
        return self._count

    def all(self) -> np.ndarray:
        """What is in it, not a copy."""
        return self._values[: self._count]

    def append(self, value: Any) -> None:
        """Adds one at the end."""
        if self._count == len(self._values):
            larger = np.zeros((max(16, 2 * self._count), *self._values.shape[1:]), self._values.dtype)
            larger[: self._count] = self._values
            self._values = larger
        self._values[self._count] = value
        self._count += 1


class VectorGroups:
    """Rows, variants and nodes. Not thread-safe: the index locks.

    rows: int64, as they were added; near: vectors of the variants that lead no node, float16 [n, dimension].
    """

    def __init__(self, dimension: int, arrays: list[np.ndarray] | None = None) -> None:
        """arrays: what `write` wrote."""
        rows, variants, nodes, near_indices, near = arrays if arrays is not None else (None,) * 5
        self.rows = Grown(np.int64, values=rows)
        self._variant_of = Grown(np.int32, values=variants)
        self._node_of = Grown(np.int32, values=nodes)
        self._near_index_of = Grown(np.int32, values=near_indices)  # in `near`, -1 for leaders
        self.near = Grown(np.float16, dimension, values=near)
        self._first = Grown(np.int64)  # row of a variant
        self._more: dict[int, list[int]] = {}  # further rows of a variant
        self._leader = Grown(np.int32)  # of a node
        self._others: dict[int, list[int]] = {}  # further variants of a node
        self._known: dict[tuple[int, bytes], int] = {}  # those by node and vector
        if arrays is not None:
            self._index()

    def _index(self) -> None:
        """Makes what follows from the arrays."""
        variants, nodes, near_indices = self._variant_of.all(), self._node_of.all(), self._near_index_of.all()
        _, first = np.unique(variants, return_index=True)
        self._first = Grown(np.int64, values=self.rows.all()[first])
        again = np.ones(len(variants), bool)
        again[first] = False
        for row, variant in zip(self.rows.all()[again].tolist(), variants[again].tolist(), strict=True):
            self._more.setdefault(variant, []).append(row)
        self._leader = Grown(np.int32, values=np.flatnonzero(near_indices < 0).astype(np.int32))
        for variant in np.flatnonzero(near_indices >= 0).tolist():
            node = int(nodes[variant])
            self._others.setdefault(node, []).append(variant)
            self._known[node, self.near.all()[near_indices[variant]].tobytes()] = variant

    def begin(self, row: int, node: int) -> None:
        """A row whose vector is a new node's."""
        self._leader.append(len(self._node_of))
        self._add_variant(row, node, -1)

    def join(self, row: int, vector: np.ndarray, node: int, leader: np.ndarray) -> bool:
        """Adds a row to a node, if that has room. leader: the node's own vector."""
        code, others = vector.astype(np.float16), self._others.get(node, [])
        raw = code.tobytes()
        if np.array_equal(code, leader.astype(np.float16)):
            same = int(self._leader.all()[node])
        else:
            same = self._known.get((node, raw), -1)
        if same >= 0:
            self._more.setdefault(same, []).append(row)
            self.rows.append(row)
            self._variant_of.append(same)
            return True
        if len(others) == MOST_NEAR:
            return False
        variant = len(self._node_of)
        self._others.setdefault(node, []).append(variant)
        self._known[node, raw] = variant
        self._add_variant(row, node, len(self.near))
        self.near.append(code)
        return True

    def _add_variant(self, row: int, node: int, near_index: int) -> None:
        self.rows.append(row)
        self._variant_of.append(len(self._node_of))
        self._node_of.append(node)
        self._near_index_of.append(near_index)
        self._first.append(row)

    def nodes_of(self, allowed: Rows) -> np.ndarray:
        """Which nodes have rows that are allowed, bool [nodes]; kept with these."""
        if (known := allowed.nodes.get(id(self))) is None:
            known = np.zeros(len(self._leader), bool)
            known[self._node_of.all()[self._variant_of.all()[allowed.has(self.rows.all())]]] = True
            allowed.nodes[id(self)] = known
        return known

    def best(
        self,
        query: np.ndarray,
        nodes: np.ndarray,
        scores: np.ndarray,
        wanted: int,
        allowed: Rows | None,
        others: list[int] | None = None,
    ) -> list[tuple[int, float]]:
        """The best (row, score) of these nodes and of all their variants, or of the variants `others`.

        scores: of the nodes' leaders. allowed: None for all rows.
        """
        leader = self._leader.all()
        found: list[tuple[float, int]] = []
        for node, score in zip(nodes.tolist(), scores.tolist(), strict=True):
            if node >= 0:
                found.append((score, int(leader[node])))
                if others is None and node in self._others:
                    found += self._scored(self._others[node], query)
        if others:
            found += self._scored(others, query)
        return self._rows_of(found, wanted, allowed)

    def others_of(self, nodes: np.ndarray | None) -> list[int]:
        """The variants that lead none of these nodes, bool [n]; None: of any."""
        if nodes is None:
            return [variant for variants in self._others.values() for variant in variants]
        return [variant for node, variants in self._others.items() if nodes[node] for variant in variants]

    def _scored(self, variants: list[int], query: np.ndarray) -> list[tuple[float, int]]:
        vectors = self.near.all()[self._near_index_of.all()[variants]].astype(np.float32)
        return list(zip((vectors @ query).tolist(), variants, strict=True))

    def _rows_of(self, found: list[tuple[float, int]], wanted: int, allowed: Rows | None) -> list[tuple[int, float]]:
        """Rows of variants with their scores, best first."""
        found.sort(key=lambda one: -one[0])
        first, best = self._first.all(), list[tuple[int, float]]()
        for score, variant in found:
            rows = [int(first[variant]), *self._more.get(variant, ())]
            if allowed is not None:
                rows = np.array(rows)[allowed.has(np.array(rows))].tolist()
            best += [(row, score) for row in rows[: wanted - len(best)]]
            if len(best) == wanted:
                break
        return best

    def write(self, file: IO[bytes]) -> None:
        """Behind what is in the file."""
        for one in (self.rows, self._variant_of, self._node_of, self._near_index_of, self.near):
            np.save(file, one.all(), allow_pickle=False)

    @classmethod
    def read(cls, file: IO[bytes], dimension: int) -> VectorGroups:
        """What `write` wrote."""
        return cls(dimension, [np.load(file, allow_pickle=False) for _ in range(5)])
