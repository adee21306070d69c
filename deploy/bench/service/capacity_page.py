"""`python -m deploy.bench.service.capacity_page`: the tables and the figure of docs/operations/capacity.md."""

from __future__ import annotations

from deploy.bench.machine import ROOT
from deploy.bench.result_files import RESULTS, read
from deploy.bench.scenarios.capacity import plot, write_page

PAGE = ROOT / "docs" / "operations" / "capacity.md"


def main() -> None:
    """Writes what the last `make bench-capacity` measured."""
    result = read(RESULTS / "capacity.json")
    write_page(result, PAGE, "../images/capacity.svg")
    plot(result, ROOT / "docs" / "images" / "capacity.svg")
    print(f"{PAGE}: written")


if __name__ == "__main__":
    main()
