"""The pages of docs/operations and their blocks of commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "operations"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"# (?:run by (?P<by>\S+)|not run here: (?P<why>.+))")


@dataclass(frozen=True)
class Block:
    """One fenced block: the language it names, its text, and what its first line says about how it was tried."""

    page: str
    language: str
    text: str

    @property
    def run_by(self) -> str | None:
        """The file that runs it instead of the test of the pages."""
        found = _REMARK.match(self.text)
        return found["by"] if found else None

    @property
    def runs(self) -> bool:
        """Whether it is run as it stands."""
        return self.language == "sh" and _REMARK.match(self.text) is None


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in its order."""
    return [Block(page, language, text) for language, text in _BLOCK.findall((FOLDER / page).read_text())]
