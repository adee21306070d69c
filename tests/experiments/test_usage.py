"""The most read tenth of a knowledge base has as many of the reads as Zipf's law gives it."""

from pathlib import Path

import pytest

from experiments.usage import best_share, measured


def test_the_most_read_tenth_keeps_its_reads_and_a_tenth_of_the_bytes(tmp_path: Path) -> None:
    warm, left = measured(tmp_path, references=500, reads=20_000, exponent=1.1, keep=0.1, seed=0)
    assert left == pytest.approx(0.1)
    assert warm == pytest.approx(best_share(500, 1.1, 0.1), abs=0.03)


def test_a_tenth_of_a_million_has_nine_tenths_of_the_reads_from_an_exponent_on() -> None:
    assert best_share(1_000_000, 1.1, 0.1) > 0.9
    assert best_share(1_000_000, 1.0, 0.1) == pytest.approx(0.84, abs=0.01)
