"""The direction of imports, checked where the linter cannot: in a fresh process, by what was really loaded."""

import json
import sys

import pytest

from testing.programs import ROOT, ran

HEAVY = ["torch", "faiss", "chdb", "clickhouse_connect", "transformers", "onnx", "gguf"]
SERVER_SIDE = ["memory_service", "memory_model"]


def modules_of(package: str) -> list[str]:
    """Dotted names of a package's own modules, found by their files."""
    names = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def loaded_after_importing(modules: list[str]) -> set[str]:
    code = (
        "import importlib, json, sys\n"
        "for name in json.loads(sys.argv[1]):\n    importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    return set(json.loads(ran(sys.executable, "-c", code, json.dumps(modules), cwd=ROOT).splitlines()[-1]))


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (modules_of("edge_client"), [*HEAVY, *SERVER_SIDE]),
        (modules_of("memory3"), [*HEAVY, *SERVER_SIDE, "edge_client"]),
        (modules_of("memory_service"), ["edge_client"]),
    ],
    ids=["device", "ground", "service"],
)
def test_importing_all_of_a_side_loads_nothing_of_the_others(modules: list[str], absent: list[str]) -> None:
    assert len(modules) > 10
    assert loaded_after_importing(modules).isdisjoint(absent)
