"""The wheels of a release: every file is in exactly one, and none imports what its requirements do not bring.

Slow: they are built, the device's go into an empty environment and generate a token there. With a compiler the build
hook makes a wheel of this platform that holds the library, without one a wheel for all.
"""

import ast
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.wheels import EXTRAS, VERSION, WHEELS, WORKSHOP, Wheel, build, described, lay_out, tracked
from memory3.codec.native.compile import LIBRARY, compiler, wheel_tag
from testing.programs import ROOT, ran

PACKAGES = ("protos", "memory3", "memory_model", "memory_service", "edge_client")
ALL = {wheel.name: wheel for wheel in WHEELS}
HELD = f"memory3/codec/native/{LIBRARY}"
UNIMPORTABLE = ("torch", "faiss", "chdb", "clickhouse_connect", "transformers", "onnx", "gguf", "memory_service")
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


def test_every_extra_of_the_repository_belongs_to_a_wheel_or_to_the_workshop() -> None:
    given = {"edge", "service", "train"} | {extra for wheel in ALL.values() for extra in wheel.optional}
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
    lay_out(ALL["memory3"], tmp_path)
    assert not (tmp_path / "protos").exists()
    code = "from memory3_protos.memory.v1 import ingestion_pb2, ingestion_pb2_grpc; print(ingestion_pb2.__name__)"
    told = ran(sys.executable, "-c", code, cwd=tmp_path, env={"PYTHONPATH": ""})
    assert told == "memory3_protos.memory.v1.ingestion_pb2\n"
    left = [p for p in tmp_path.rglob("*.py") if re.search(r"(?<!memory3_)\bprotos\.memory", p.read_text())]
    assert left == []


def test_one_version_stands_everywhere() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/memory-service/Chart.yaml").read_text())
    changelog = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert [chart["appVersion"], chart["version"], changelog] == [VERSION] * 3


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the wheels, as `make dist` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    assert len(build(folder)) == len(WHEELS)
    return folder


def wheel(dist: Path, name: str) -> Path:
    (found,) = dist.glob(f"{name}-*.whl")
    return found


@pytest.fixture(scope="module")
def device(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs of a fresh environment that holds the device's wheels and what they ask for."""
    folder = tmp_path_factory.mktemp("device")
    ran(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    install = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    ours = wheel(dist, "memory3"), f"{wheel(dist, 'memory3_edge')}[serve]"
    ran(*install, "--constraint", ROOT / "constraints.txt", *ours, cwd=folder)
    return programs


def run(*command: object, cwd: Path, path: object = "") -> str:
    """Runs away from the repository, and without its PYTHONPATH: what is imported is what was installed."""
    return ran(*command, cwd=cwd, env={**os.environ, "PYTHONPATH": str(path)})


@pytest.mark.slow
def test_wheels_hold_the_files_that_are_their_own_and_their_sums_are_listed(dist: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert sums == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in dist.glob("*.whl")}
    for one in WHEELS:
        with zipfile.ZipFile(wheel(dist, one.name.replace("-", "_"))) as archive:
            held = {name for name in archive.namelist() if ".dist-info/" not in name}
        own = {re.sub("^protos/", "memory3_protos/", path) for path in FILES if one.has(path)}
        assert {path for path in held ^ own if not path.endswith((".so", ".dylib"))} == set()


@pytest.mark.slow
def test_a_device_needs_no_torch_no_faiss_and_no_database(dist: Path, device: Path) -> None:
    code = "import sys, importlib.util as i; sys.exit(any(i.find_spec(name) for name in sys.argv[1:]))"
    run(device / "python", "-c", code, *UNIMPORTABLE, cwd=device)
    run(device / "python", "-m", "pip", "check", cwd=device)
    names = []
    for part in ("memory3", "memory3_edge"):
        with zipfile.ZipFile(wheel(dist, part)) as archive:
            names += [n[:-3].replace("/", ".") for n in archive.namelist() if n.endswith(".py")]
    modules = [name.removesuffix(".__init__") for name in names if not name.endswith(".__main__")]
    assert "edge_client.serve.app" in modules
    code = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)"
    run(device / "python", "-c", code, *modules, cwd=device)


@pytest.mark.slow
def test_the_device_generates_a_token(device: Path, bundle: Path, tmp_path: Path) -> None:
    options = ("--bundle", bundle, "--memory", "off", "--max-tokens", "1")
    assert run(device / "edge-client", "ask", "The capital of France is", *options, cwd=tmp_path).strip()


@pytest.mark.slow
def test_the_wheel_of_the_service_starts_both_its_programs(dist: Path, tmp_path: Path) -> None:
    """Beside the requirements of this environment: they are gigabytes."""
    for name in ("memory3", "memory3_model", "memory3_service"):
        with zipfile.ZipFile(wheel(dist, name)) as archive:
            archive.extractall(tmp_path)
    for module in ("memory_service.cli", "memory_model.cli"):
        code = f"import {module} as m, sys; print(m.__file__); sys.argv[1:] = ['--help']; m.app()"
        assert run(sys.executable, "-c", code, cwd=tmp_path, path=tmp_path).startswith(str(tmp_path))
    code = "from memory_model.models.folder import ModelFolder; print(ModelFolder.open().need_codec())"
    assert run(sys.executable, "-c", code, cwd=tmp_path, path=tmp_path).startswith(str(tmp_path))


def built(source: Path, into: Path, **environment: str) -> Path:
    """A wheel of the repository's files, in a copy: what an install left beside the sources is not in it."""
    ran(sys.executable, "-m", "build", "--wheel", "--outdir", into, source, env={**os.environ, **environment})
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    archive = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-"],
        cwd=ROOT,
        input=listed.stdout.encode(),
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive.stdout, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, {"CC": "no-such-compiler"}, {"HATCH_BUILD_NO_HOOKS": "true"}])
def test_a_wheel_made_with_a_compiler_holds_the_library_and_one_made_without_is_for_every_platform(
    sources: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    assert compiler() is not None
    made = built(sources, tmp_path, **environment)
    with zipfile.ZipFile(made) as archive:
        files = archive.namelist()
    assert made.name.endswith("-py3-none-any.whl" if environment else f"-{wheel_tag()}.whl")
    assert files.count(HELD) == (not environment)
    assert HELD.replace(LIBRARY, "decode.c") in files
    assert not (sources / HELD).exists()
