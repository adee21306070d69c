"""The wheels of a release: every file is in exactly one, and none imports what its requirements do not bring."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.wheels import EXTRAS, ROOT, VERSION, WHEELS, WORKSHOP, Wheel, described, lay_out, tracked

PACKAGES = ("protos", "memory_model", "memory_service", "edge_client")
ALL = {wheel.name: wheel for wheel in WHEELS}
FILES = [path for path in tracked() if path.split("/")[0] in PACKAGES]


def imported(path: str) -> Iterator[str]:
    """Dotted names of our own modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(module: str) -> str | None:
    """The file of a module; None for a name inside one."""
    place = module.replace(".", "/")
    found = [p for p in (f"{place}.py", f"{place}/__init__.py") if (ROOT / p).is_file()]
    return found[0] if found else None


def requirements(wheel: Wheel) -> list[str]:
    return list(described(wheel)["project"]["dependencies"])


def test_every_file_of_the_packages_is_in_exactly_one_wheel() -> None:
    for path in FILES:
        holding = [wheel.name for wheel in ALL.values() if wheel.has(path)]
        left_out = path.startswith(("protos/generate.py", "protos/vectors/runtime/"))
        assert len(holding) == (0 if left_out else 1), (path, holding)


@pytest.mark.parametrize("wheel", ALL.values(), ids=ALL)
def test_a_wheel_imports_only_what_it_or_its_requirements_hold(wheel: Wheel) -> None:
    reachable = [wheel, *(ALL[name] for name in wheel.ours)]
    for path in (p for p in FILES if p.endswith(".py") and wheel.has(p)):
        for module in imported(path):
            wanted = file_of(module)
            assert wanted is None or any(w.has(wanted) for w in reachable), f"{path} imports {module}"


@pytest.mark.parametrize("name", ["memory3-edge", "memory3-formats"])
def test_a_device_is_asked_for_no_torch_no_faiss_and_no_database(name: str) -> None:
    heavy = {"torch", "faiss-cpu", "chdb", "clickhouse-connect", "transformers", "onnx", "gguf"}
    assert not heavy & {re.split(r"[^\w-]", requirement)[0] for requirement in requirements(ALL[name])}


def test_every_extra_of_the_repository_belongs_to_a_wheel_or_to_the_workshop() -> None:
    given = {"edge", "service"} | {extra for wheel in ALL.values() for extra in wheel.optional}
    assert given | WORKSHOP == set(EXTRAS)


def test_what_messages_and_pages_tell_to_install_is_a_wheel_with_that_extra() -> None:
    told = {
        (path, *found)
        for path in tracked()
        if path.endswith((".py", ".md")) and not path.startswith("tests/")
        for found in re.findall(r"(memory3-\w+)\[([\w,-]+)\]", (ROOT / path).read_text(encoding="utf-8"))
    }
    assert told
    for path, name, extras in told:
        assert set(extras.split(",")) <= set(ALL[name].optional), f"{path}: {name}[{extras}]"


def test_the_package_of_the_contract_has_a_name_of_its_own_in_a_wheel(tmp_path: Path) -> None:
    lay_out(ALL["memory3-formats"], tmp_path)
    assert not (tmp_path / "protos").exists()
    code = "from memory3_protos.memory.v1 import ingestion_pb2, ingestion_pb2_grpc; print(ingestion_pb2.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": ""}, capture_output=True, text=True
    )
    assert done.stdout == "memory3_protos.memory.v1.ingestion_pb2\n", done.stderr
    left = [p for p in tmp_path.rglob("*.py") if re.search(r"(?<!memory3_)\bprotos\.memory", p.read_text())]
    assert left == []


def test_one_version_stands_everywhere() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/memory-service/Chart.yaml").read_text())
    changelog = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert [chart["appVersion"], chart["version"], changelog] == [VERSION] * 3
