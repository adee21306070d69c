"""What a knowledge base costs, by its size: measured up to what fits, extrapolated to the paper's 110 million."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from deploy.bench.plots import drawing
from deploy.bench.scenario import BUILD, Keys, Scenario, Settings, Sheet
from deploy.bench.service.capacity import LEAST_REFERENCES, PAPER_REFERENCES, Growth
from deploy.bench.service.data import PAYLOAD_BYTES, Collection
from deploy.bench.service.growth import SMALL_PAYLOAD_BYTES, cost_of
from deploy.bench.service.kept import Kept
from deploy.bench.tables import as_markdown, machine_line

_GB = 1e9


class CapacitySettings(Settings):
    """sizes: numbers of references. machine_gb: memory of one machine for its store, for the number of shards.

    most: the largest size of an engine that takes long to fill. resume: go on where an interrupted run was, with the
    sizes that it has measured.
    """

    sizes: tuple[int, ...] = (1000, 10_000, 30_000, 100_000)
    engines: tuple[str, ...] = ("file", "chdb")
    dimension: int = Field(default=1024, ge=8)
    queries: int = Field(default=300, ge=10)
    machine_gb: float = Field(default=64.0, gt=0)
    wanted: tuple[int, ...] = (1_000_000, 10_000_000, PAPER_REFERENCES)
    most: dict[str, int] = Field(default_factory=dict)
    resume: bool = False


def measure(settings: CapacitySettings) -> Keys:
    """Every engine at every size, then the lines through those that were measured at sizes large enough for it."""
    kept = Kept(BUILD / "capacity-parts", resume=settings.resume)

    def row(engine: str, size: int) -> Keys:
        collection = Collection(size, settings.dimension, settings.queries, payload_bytes=SMALL_PAYLOAD_BYTES)
        return kept.part(
            f"{engine}-{size}x{settings.dimension}", lambda: cost_of(engine, collection, BUILD / "capacity")
        )

    rows = [
        row(engine, size)
        for engine in settings.engines
        for size in settings.sizes
        if size <= settings.most.get(engine, size)
    ]
    expected = {}
    for engine in settings.engines:
        of_engine = [row for row in rows if row["engine"] == engine]
        if max(row["references"] for row in of_engine) < LEAST_REFERENCES:
            continue
        growth = Growth.of(of_engine)
        machine_bytes = round(settings.machine_gb * _GB)
        expected[engine] = [growth.needs(size, PAYLOAD_BYTES, machine_bytes) for size in settings.wanted]
    return {
        "rows": rows, "expected": expected, "payload_bytes": PAYLOAD_BYTES, "machine_gb": settings.machine_gb,
        "dim": settings.dimension, "threads": settings.threads,
    }  # fmt: skip


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """What was measured, and what follows from it."""
    measured = [
        (
            f"{row['engine']}://", f"{row['references']:,}", f"{row['memory_bytes'] / 1e6:,.0f}",
            f"{row['disk_bytes'] / 1e6:,.0f}", f"{row['search_p50_ms']:.3g}", f"{row['search_p99_ms']:.3g}",
            f"{row['recall_at_5']:.3f}", f"{row['references'] / row['fill_s']:,.0f}",
        )
        for row in result["rows"]
    ]  # fmt: skip
    expected = [
        (
            f"{engine}://", f"{row['references']:,}", f"{row['memory_bytes'] / _GB:,.1f}",
            f"{row['disk_bytes'] / _GB:,.0f}", str(row["shards"]), f"{row['search_p50_ms']:.3g}",
        )
        for engine, rows in result["expected"].items()
        for row in rows
    ]  # fmt: skip
    columns = ("store", "references", "memory, MB", "disk, MB", "p50, ms", "p99, ms", "recall@5", "stored/s")
    note = (
        f"Vectors of {result['dim']} numbers; memory without pages of mapped files; disk without the payloads, which"
        " were small here; time of one retrieval of five in the store, from one caller, everything warm."
    )
    if not expected:
        # A few thousand references take some megabytes more or less by chance: times 110 million that is nonsense.
        small = f" Not extrapolated: that takes sizes from {LEAST_REFERENCES:,} references on."
        return [Sheet("measured", columns, measured, note + small)]
    wanted = ("store", "references", "memory, GB", "disk, GB", "machines", "p50, ms")
    says = (
        f"Extrapolated, not measured: straight lines through the sizes above; disk with payloads of"
        f" {result['payload_bytes']:,} bytes; machines with {result['machine_gb']:g} GB of memory for the store each;"
        " the time is that of one machine's share in memory, without the network between machines."
    )
    return [
        Sheet("measured", columns, measured, note),
        Sheet(f"expected, up to the paper's {PAPER_REFERENCES:,}", wanted, expected, says),
    ]


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Time of a search and memory against size, both axes logarithmic; lines go on to the sizes that are expected."""
    with drawing(path) as axes:
        for number, engine in enumerate(dict.fromkeys(row["engine"] for row in result["rows"])):
            rows = [row for row in result["rows"] if row["engine"] == engine]
            expected = result["expected"].get(engine, [])
            colour = f"C{number}"
            for key, scale, marker in (("search_p50_ms", 1.0, "o"), ("memory_bytes", _GB, "s")):
                unit = "search, ms" if marker == "o" else "memory, GB"
                x, y = [row["references"] for row in rows], [row[key] / scale for row in rows]
                axes.plot(x, y, marker, color=colour, label=f"{engine}:// {unit}", markersize=4)
                far = [row["references"] for row in expected]
                axes.plot([x[-1], *far], [y[-1], *(row[key] / scale for row in expected)], ":", color=colour)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("references")
        axes.legend(frameon=False, fontsize=7)


BEGIN = "<!-- capacity: begin, written by `make capacity` -->"
END = "<!-- capacity: end -->"


def write_page(result: Mapping[str, Any], page: Path, figure: str = "") -> None:
    """Writes the tables, and a link to the figure, between the marks of a page; raises ValueError if it lacks them."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} lacks the lines {BEGIN!r} and {END!r}")
    tables = "\n\n".join(as_markdown(sheet) for sheet in sheets(result))
    if figure:
        tables += f"\n\n![Search time and memory by the number of references]({figure})"
    if (load := result["machine"]["load_average"][0]) > result["machine"]["cores_usable"]:
        tables = (
            f"Measured on a machine with much other work (load {load:.0f}): times are many times too long and stand"
            f" here for their order only; memory, disk and recall are not touched by it.\n\n{tables}"
        )
    text = f"{before}{BEGIN}\n\n{tables}\n\n<sub>{machine_line(result)}</sub>\n\n{END}{after}"
    page.write_text(text, encoding="utf-8")


SCENARIO = Scenario(
    name="capacity",
    summary="Memory, disk and search time of a knowledge base by its size, extrapolated to 110 million references.",
    settings=CapacitySettings,
    measure=measure,
    promised=("rows", "expected"),
    sheets=sheets,
    plot=plot,
)
