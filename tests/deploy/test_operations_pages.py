"""Pages of operations say of every block how it was tried; tests/slow runs it."""

from __future__ import annotations

import pytest

from tests.deploy.operations_pages import FOLDER, PAGES, ROOT, blocks

WANTED = ("README", "install", "upgrade", "scale", "backup", "keys", "runbooks", "capacity", "trust")


def test_every_subject_of_operations_has_its_page() -> None:
    assert {f"{name}.md" for name in WANTED} == set(PAGES)
    index = (FOLDER / "README.md").read_text()
    assert all(f"]({page})" in index for page in PAGES if page != "README.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_how_it_was_tried(page: str) -> None:
    for block in blocks(page):
        assert block.language in ("sh", "ini"), f"{page}: name the language of\n{block.text}"
        if block.run_by is not None:
            assert (ROOT / block.run_by).is_file(), f"{page}: {block.run_by}"
        assert not (block.runs and "kubectl" in block.text and "--dry-run=client" not in block.text), (
            f"{page}: there is no cluster to run\n{block.text}"
        )
