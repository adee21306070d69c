"""Where two ways of answering take equally long: the round trip up to which one of them pays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FARTHEST_MS = 60_000
"""Lines that meet beyond a minute are parallel."""


def break_even_ms(
    rtt_ms: Sequence[float], ours_s: Sequence[float], theirs_s: Sequence[float]
) -> tuple[float | None, bool]:
    """The round trip in ms at which ours stops being faster, and whether it lies inside what was measured.

    Inside, it is interpolated between the two nearest measurements. Outside, two straight lines through all of them
    are prolonged: a round trip is waited for a fixed number of times, so both grow by it. None: they never meet there,
    or ours is slower at any round trip.
    """
    order = np.argsort(rtt_ms)
    at = np.asarray(rtt_ms, float)[order]
    lead = (np.asarray(theirs_s, float) - np.asarray(ours_s, float))[order]
    if len(at) < 2 or lead[0] <= 0:
        return None, False
    for place in range(1, len(at)):
        if lead[place] <= 0:
            share = lead[place - 1] / (lead[place - 1] - lead[place])
            return float(at[place - 1] + share * (at[place] - at[place - 1])), True
    slope, start = np.polyfit(at, lead, 1)
    meeting = float(-start / slope) if slope < 0 else np.inf
    return (meeting, False) if meeting <= FARTHEST_MS else (None, False)
