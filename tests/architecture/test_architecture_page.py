"""docs/architecture.md: stages are in the files that it names, with their bytes; floors are those that are checked."""

import ast
import re
from pathlib import Path

from docs import floors
from memory3.codec.loading import load_codec
from memory3.codec.payload import HEADER, MemoryFormat
from memory_model.models.folder import DEFAULT
from memory_model.nn.adapter import Adapter
from testing.programs import ROOT
from testing.shapes import SMOLLM2_135M

ARCHITECTURE = ROOT / "docs" / "architecture.md"


def stages() -> list[tuple[str, str, str]]:
    """(stage, file, public name) of every row of the stage tables: the last cell is `file: name`, once or twice."""
    rows = []
    for line in ARCHITECTURE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|"):
            rows += [(cells[0], *found) for found in re.findall(r"`([\w/.-]+)`: `([\w.]+)`", cells[-1])]
    return rows


def public_names(path: Path) -> set[str]:
    """Functions and classes of a module, methods as Class.method; messages and services of a proto file."""
    text = path.read_text()
    if path.suffix == ".proto":
        return set(re.findall(r"^\s*(?:message|service|rpc) (\w+)", text, flags=re.MULTILINE))
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{sub.name}"
                for sub in node.body
                if isinstance(sub, (ast.FunctionDef, ast.AsyncFunctionDef))
            }
    return names


def test_every_stage_of_the_document_exists_in_the_file_that_it_names() -> None:
    found = stages()
    assert len(found) >= 12, "the stage tables of docs/architecture.md were not recognised"
    for stage, file, name in found:
        path = ROOT / file
        assert path.is_file(), f"stage {stage!r} is said to live in {file}"
        assert name in public_names(path), f"stage {stage!r} is said to be {name} in {file}"


def test_the_bytes_of_the_tables_are_those_of_the_shipped_model() -> None:
    memory = Adapter.load(DEFAULT / "adapter.safetensors").memory
    codec = load_codec(DEFAULT / "codec.npz")
    model_format = MemoryFormat(SMOLLM2_135M.with_memory(memory), "00" * 32, codec)
    payload = model_format.payload_bytes(memory.reference_tokens)
    numbers = (payload, payload - HEADER.size, 2 * memory.budget * codec.head_dim * 4)
    text = ARCHITECTURE.read_text()
    for number in numbers:
        assert f" {number:,} |" in text, f"docs/architecture.md does not say {number:,} bytes"


def test_the_page_shows_the_floors_that_the_linter_checks() -> None:
    text = ARCHITECTURE.read_text()
    assert floors.page(text, (ROOT / "pyproject.toml").read_text()) == text, "run `python -m docs.floors`"
