"""The direction of imports, checked where the linter cannot: what was really loaded in a fresh process, and tests."""

import json
import re
import sys

import pytest

from testing.programs import ROOT, ran

HEAVY = ["torch", "faiss", "chdb", "clickhouse_connect", "transformers", "onnx", "gguf"]
SERVER_SIDE = ["memory_service", "memory_model"]
OF_A_TEST = re.compile(r"^ *(?:from|import) (?:tests\S*\.test_|tests\S* import .*\btest_).*", re.MULTILINE)


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


def test_no_test_imports_another_one() -> None:
    """What several tests use stands in a helper file, so that a test can be renamed, divided or removed alone."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert {str(path): found for path in files if (found := OF_A_TEST.findall(path.read_text()))} == {}
