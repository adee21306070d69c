"""The site's pages: every document is in its navigation, and links lead to pages or are plain text."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from docs.site import ROOT, stage

UNLISTED = ("docs/examples/", "data/")
"""Pages that others link to."""


def listed(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ()
    return [page for part in parts for page in listed(part)]


def test_every_document_is_in_the_navigation(tmp_path: Path) -> None:
    pages = {str(page.relative_to(tmp_path)) for page in stage(tmp_path)}
    named = set(listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert named <= pages
    assert {page for page in pages - named if not page.startswith(UNLISTED)} == set()


def test_links_to_source_files_become_text_and_links_to_pages_stay(tmp_path: Path) -> None:
    stage(tmp_path)
    architecture = (tmp_path / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert "`edge_client/generate/loop.py`" in architecture
    for page in tmp_path.rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s#]+)", text):
            assert re.match(r"[a-z]+:", link) or (page.parent / link).is_file(), f"{page.name} links to {link}"
