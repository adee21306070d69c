"""How much of a reference a training sequence already contains (paper 3.6, eq. overlap).

    overlap(t, r) = LCS of t and r, the tokens taken from t at most 2 |r| apart, over |r|

A window of 2 |r| + 1 tokens of t holds every such choice, so the overlap is the longest common subsequence
of r with any window. Three exact facts keep nearly all windows unmeasured:

- tokens of t that r does not have count for nothing and are dropped before anything else;
- a window shares at most as many tokens as the multisets of the window and of r have in common;
- when a window moves, the LCS grows at most by the tokens that enter, of those that r has.

Windows are measured best bound first, each by the bit-parallel LCS of Hyyrö (2004): one row of |r| bits is
one Python integer, so a token costs four operations on 128 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memory_model.errors import InvalidInput

Tokens = Sequence[int] | np.ndarray


def overlap(sequence: Tokens, reference: Tokens) -> float:
    """Share (0..1) of `reference` that `sequence` contains in order within 2 |reference| tokens.

    Both are token ids. Raises InvalidInput for an empty reference.
    """
    return _Windows(sequence, reference).longest() / len(reference)


def exceeds(sequence: Tokens, reference: Tokens, threshold: float) -> bool:
    """Whether `overlap(sequence, reference) > threshold`, usually without measuring a single window."""
    windows = _Windows(sequence, reference)
    size = len(reference)
    needed = max(0, int(threshold * size))
    while needed / size <= threshold:
        needed += 1
    if needed == 0 or needed > size:
        return needed == 0
    return windows.longest(floor=needed - 1, stop=needed) == needed


class _Windows:
    """All windows of a sequence that could hold a copy of the reference, with a bound for each.

    Only tokens that the reference has are kept: `at` are their positions, `rows` the bit masks of their
    places in the reference. Window w begins at `at[w]`, which loses none: every common subsequence begins
    at such a token.
    """

    def __init__(self, sequence: Tokens, reference: Tokens) -> None:
        ids, target = np.asarray(sequence, np.int64), np.asarray(reference, np.int64)
        if not target.size:
            raise InvalidInput("the overlap with an empty reference is not defined")
        self.bits = len(target)
        kinds, place, copies = np.unique(target, return_inverse=True, return_counts=True)
        kind = np.searchsorted(kinds, ids).clip(max=len(kinds) - 1)
        self.at = np.flatnonzero(kinds[kind] == ids)
        kind = kind[self.at]
        masks = [0] * len(kinds)
        for bit, k in enumerate(place.tolist()):
            masks[k] |= 1 << bit
        self.rows = [masks[k] for k in kind.tolist()]
        # Window w holds the kept tokens w .. end[w] - 1.
        self.end = np.searchsorted(self.at, self.at + 2 * self.bits, side="right")
        self.bound = self._shared_tokens(kind, copies)

    def _shared_tokens(self, kind: np.ndarray, copies: np.ndarray) -> np.ndarray:
        """Size of the multiset intersection of every window with the reference, int64 [windows].

        Of a token that the reference has c times, an occurrence counts in the windows that hold fewer than c
        occurrences before it: those that begin after the c-th occurrence before it. These are consecutive
        windows, so that all of them are counted by one sum of differences.
        """
        n = len(kind)
        order = np.argsort(kind, kind="stable")
        sorted_kind = kind[order]
        before = np.arange(n) - copies[sorted_kind]
        earlier = np.maximum(before, 0)
        same = (before >= 0) & (sorted_kind[earlier] == sorted_kind)
        first = np.empty(n, np.int64)
        first[order] = np.where(same, order[earlier] + 1, 0)
        first = np.maximum(first, np.searchsorted(self.at, self.at - 2 * self.bits))
        change = np.bincount(first, minlength=n + 1)
        change[1:] -= 1  # an occurrence counts in no window that begins after it
        return np.cumsum(change)[:n]

    def longest(self, floor: int = 0, stop: int | None = None) -> int:
        """The LCS of the reference with the best window if that is more than `floor`, else `floor`.

        Ends as soon as a window reaches `stop` and then gives `stop`.
        """
        best, bound = floor, self.bound.copy()
        end, index = self.end, np.arange(len(bound))
        stop = self.bits if stop is None else stop
        while len(bound) and best < stop:
            window = int(bound.argmax())
            if bound[window] <= best:
                break
            length = self._lcs(window)
            best = max(best, length)
            entering = np.where(index < window, window - index, end - end[window])
            np.minimum(bound, length + entering, out=bound)
        return min(best, stop)

    def _lcs(self, window: int) -> int:
        rows = self.rows[window : int(self.end[window])]
        ones = (1 << self.bits) - 1
        v = ones
        for row in rows:
            both = v & row
            v = ((v + both) | (v - both)) & ones
        return self.bits - v.bit_count()
