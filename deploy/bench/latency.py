"""Latencies in HDR histograms: percentiles to three digits at any count, and a text form that can be merged."""

from __future__ import annotations

import math
from typing import Any

from hdrh.histogram import HdrHistogram

LARGEST_US = 3_600_000_000
DIGITS = 3
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


class Latencies:
    """Durations, counted in microseconds up to an hour. Not thread-safe."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(1, LARGEST_US, DIGITS)

    def add(self, seconds: float) -> None:
        """Count one; what is shorter than a microsecond counts as one."""
        self._histogram.record_value(min(max(1, round(1e6 * seconds)), LARGEST_US))

    @property
    def count(self) -> int:
        """How many were added."""
        return int(self._histogram.get_total_count())

    def percentile_ms(self, percent: float) -> float:
        """The smallest latency that `percent` of all do not exceed; 0 if there are none."""
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(percent / 100 * self.count - 1e-9))  # the histogram itself would round it
        return float(self._histogram.get_value_at_percentile(100 * rank / self.count)) / 1e3

    def summary(self) -> dict[str, Any]:
        """Count, mean, percentiles and maximum in milliseconds; `hdr` is the histogram itself, compressed."""
        if not self.count:
            return {"count": 0}
        percentiles = {f"p{percent:g}_ms": self.percentile_ms(percent) for percent in PERCENTILES}
        return {
            "count": self.count,
            "mean_ms": round(self._histogram.get_mean_value() / 1e3, 4),
            **percentiles,
            "max_ms": self._histogram.get_max_value() / 1e3,
            "hdr": self._histogram.encode().decode("ascii"),
        }

    def merge(self, hdr: str) -> None:
        """Add all of another histogram's, given as its `hdr` text."""
        self._histogram.decode_and_add(hdr.encode("ascii"))

    def curve(self, points: int = 60) -> list[tuple[float, float]]:
        """(percentile, ms) pairs for a plot, denser towards 100."""
        if not self.count:
            return []
        nines = [100 * (1 - 10 ** (-4 * n / points)) for n in range(points + 1)]
        most = 100 * (1 - 1 / self.count)
        return [(p, self.percentile_ms(p)) for p in nines if p <= most] or [(50.0, self.percentile_ms(50))]
