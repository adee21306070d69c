"""Writes the reference of the SDK from its docstrings: `make docs`; the result is build/reference/edge_client.html."""

from __future__ import annotations

from pathlib import Path

import pdoc
import pdoc.render

FOLDER = Path("build/reference")


def write_reference(folder: Path = FOLDER) -> Path:
    """One page with every public name of `edge_client`; returns its place."""
    pdoc.render.configure(docformat="markdown", show_source=False, search=True, footer_text="memory3-edge")
    pdoc.pdoc("edge_client", output_directory=folder)
    return folder / "edge_client.html"


if __name__ == "__main__":
    print(write_reference())
