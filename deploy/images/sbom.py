"""Adds Debian's packages to the list of an image's parts (CycloneDX); the image's build runs it without dependencies.

python3 sbom.py PYTHON.cdx.json DPKG-STATUS > sbom.cdx.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def debian_packages(status: str) -> Iterator[dict[str, Any]]:
    """Components of the installed packages of a dpkg status file."""
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if line[:1].isalpha() and ": " in line)
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            url = f"pkg:deb/debian/{name}@{version}?arch={fields['Architecture']}"
            yield {"type": "library", "name": name, "version": version, "purl": url, "bom-ref": url}


def main(python: str, status: str) -> None:
    """Writes the whole list to standard output."""
    parts = json.loads(Path(python).read_text(encoding="utf-8"))
    parts.setdefault("components", []).extend(debian_packages(Path(status).read_text(encoding="utf-8")))
    json.dump(parts, sys.stdout, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
