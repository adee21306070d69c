"""What is extrapolated follows from what was measured, and the page holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.bench.scenarios import capacity
from deploy.bench.scenarios.capacity import BEGIN, END, CapacitySettings, measure, sheets, write_page
from deploy.bench.service.capacity import Growth


def row(references: int, memory: float, disk: float, ms: float) -> dict[str, Any]:
    return {"references": references, "memory_bytes": memory, "disk_bytes": disk, "search_p50_ms": ms}


def test_lines_go_through_the_large_sizes() -> None:
    rows = [
        row(100, 9e9, 9e9, 9.0),
        row(1 << 14, 1300 << 14, 5000 << 14, 1.4),
        row(1 << 16, 1300 << 16, 5000 << 16, 1.6),
    ]
    needs = Growth.of(rows).needs(1 << 26, payload_bytes=40_000, machine_bytes=64 << 30)
    assert needs["memory_bytes"] == pytest.approx(1300 << 26, rel=1e-6)
    assert needs["disk_bytes"] == pytest.approx(45_000 << 26, rel=1e-6)
    assert needs["shards"] == 2
    assert needs["search_p50_ms"] == pytest.approx(
        2.5, abs=0.01
    )  # 2^25 on each machine: nine doublings of 0.1 ms


def test_what_did_not_grow_is_taken_as_constant() -> None:
    growth = Growth.of([row(10_000, 5.0, 5.0, 0.5), row(20_000, 5.0, 5.0, 0.3)])
    assert growth.needs(10**9, 0, 10)["search_p50_ms"] == pytest.approx(0.4)
    assert growth.needs(10**9, 0, 10)["shards"] == 1


def test_the_page_is_written_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    measured = {
        **row(10_000, 1e7, 4e7, 0.4),
        "engine": "file",
        "search_p99_ms": 1.0,
        "recall_at_5": 0.99,
        "fill_s": 10.0,
    }
    expected = {"file": [Growth.of([measured]).needs(110_000_000, 39_424, 64 * 10**9)]}
    machine = {
        "date": "2026-11-21T00:00:00", "commit": "abc", "cpu": "a processor", "cores_usable": 1, "cores": 2,
        "load_average": [0.5, 0, 0], "copy_gb_per_s": 10.0, "python": "3.11", "versions": {},
    }  # fmt: skip
    result = {
        "rows": [measured], "expected": expected, "payload_bytes": 39_424, "machine_gb": 64.0, "dim": 1024,
        "machine": machine, "settings": {"threads": 1}, "options": {"threads": 1}, "threads": 1,
    }  # fmt: skip
    write_page(result, page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "110,000,000" in text
    assert "old" not in text
    assert "times are many times too long" not in text
    result["machine"]["load_average"] = [9.0, 0, 0]
    write_page(result, page)
    assert "other work (load 9): times are many times too long" in page.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="lacks"):
        write_page(result, _without_marks(tmp_path))


def test_small_sizes_are_shown_and_nothing_is_extrapolated_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost(engine: str, size: int) -> dict[str, Any]:
        more = {"engine": engine, "search_p99_ms": 1.0, "recall_at_5": 0.99, "fill_s": 10.0}
        return {**row(size, 1e7, 4e7, 0.4), **more}

    monkeypatch.setattr(
        capacity, "cost_of", lambda engine, collection, _: cost(engine, collection.references)
    )
    monkeypatch.setattr(capacity, "BUILD", tmp_path)
    quick = measure(CapacitySettings(sizes=(1000, 3000)))
    (sheet,) = sheets(quick)
    assert len(sheet.rows) == 4
    assert "Not extrapolated" in sheet.note
    capacity.plot(quick, tmp_path / "quick.svg")
    whole = measure(CapacitySettings(sizes=(10_000, 100_000), most={"chdb": 10_000}))
    measured, expected = sheets(whole)
    assert len(measured.rows) == 3
    assert {store for store, *_ in expected.rows} == {"file://"}


def _without_marks(folder: Path) -> Path:
    page = folder / "other.md"
    page.write_text("nothing", encoding="utf-8")
    return page
