"""Writes the floors of docs/architecture.md from the import linter's contracts: `python -m docs.floors`."""

from __future__ import annotations

from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- floors: begin -->\n", "<!-- floors: end -->\n"


def page(text: str, project: str) -> str:
    """The page with the layers of a `pyproject.toml` between its two marks."""
    contracts = tomllib.loads(project)["tool"]["importlinter"]["contracts"]
    blocks = [f"{c['name']}:\n\n```\n" + "\n".join(c["layers"]) + "\n```\n" for c in contracts if c["type"] == "layers"]
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + "\n".join(blocks) + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8"), (ROOT / "pyproject.toml").read_text("utf-8")), "utf-8")
