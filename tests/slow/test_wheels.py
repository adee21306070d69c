"""A release, for real: the wheels are built, the device's go into an empty environment and generate a token there.

With a compiler the build hook makes a wheel of this platform that holds the library, without one a wheel for all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy import wheels
from memory_model.codec.native.compile import LIBRARY, compiler, wheel_tag

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = ("torch", "faiss-cpu", "chdb", "clickhouse-connect", "transformers", "onnx", "gguf")
UNIMPORTABLE = ("torch", "faiss", "chdb", "clickhouse_connect", "transformers", "onnx", "gguf", "memory_service")
HELD = f"memory_model/codec/native/{LIBRARY}"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the wheels, as `make dist` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    assert wheels.main(["--out", str(folder)]) == 0
    return folder


def wheel(dist: Path, name: str) -> Path:
    (found,) = dist.glob(f"{name}-*.whl")
    return found


@pytest.fixture(scope="module")
def device(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs of a fresh environment that holds the device's wheels and what they ask for."""
    folder = tmp_path_factory.mktemp("device")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    install = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    ours = [wheel(dist, "memory3_formats"), f"{wheel(dist, 'memory3_edge')}[serve]"]
    subprocess.run([*install, "--constraint", ROOT / "constraints.txt", *ours], check=True, cwd=folder)
    return programs


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs away from the repository, and without its PYTHONPATH: what is imported is what was installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_the_sums_are_those_of_the_wheels(dist: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (dist / wheels.SUMS).read_text().splitlines())
    assert sums == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in dist.glob("*.whl")}
    assert len(sums) == 3


def test_a_wheel_holds_the_files_of_the_repository_that_are_its_own(dist: Path) -> None:
    files = list(wheels.tracked())
    for described in wheels.wheels(wheels.read_pyproject()["project"]):
        with zipfile.ZipFile(wheel(dist, described.name.replace("-", "_"))) as archive:
            held = {name for name in archive.namelist() if ".dist-info/" not in name}
        own = {re.sub("^protos/", "memory3_protos/", path) for path in files if described.has(path)}
        assert {path for path in held ^ own if not path.endswith((".so", ".dylib"))} == set()


def test_an_environment_of_the_device_holds_no_torch_no_faiss_and_no_database(device: Path) -> None:
    listed = run(device / "python", "-m", "pip", "list", "--format=json", cwd=device)
    installed = {package["name"].lower().replace("_", "-") for package in json.loads(listed.stdout)}
    assert {"onnxruntime", "memory3-edge", "memory3-formats"} <= installed
    assert installed.isdisjoint(FORBIDDEN)
    code = "import sys, importlib.util as i; sys.exit(any(i.find_spec(name) for name in sys.argv[1:]))"
    assert run(device / "python", "-c", code, *UNIMPORTABLE, cwd=device).returncode == 0
    assert run(device / "python", "-m", "pip", "check", cwd=device).returncode == 0


def test_every_module_of_the_device_can_be_imported_there(dist: Path, device: Path) -> None:
    names = []
    for part in ("memory3_formats", "memory3_edge"):
        with zipfile.ZipFile(wheel(dist, part)) as archive:
            names += [n[:-3].replace("/", ".") for n in archive.namelist() if n.endswith(".py")]
    modules = [name.removesuffix(".__init__") for name in names if not name.endswith(".__main__")]
    assert "edge_client.serve.app" in modules
    code = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = run(device / "python", "-c", code, *modules, cwd=device)
    assert done.returncode == 0, done.stderr


def test_the_device_generates_a_token(device: Path, bundle: Path, tmp_path: Path) -> None:
    done = run(
        device / "edge-client", "ask", "The capital of France is",
        "--bundle", bundle, "--memory", "off", "--max-tokens", "1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_wheel_of_the_service_starts_both_its_programs(dist: Path, tmp_path: Path) -> None:
    """Beside the requirements of this environment: they are gigabytes."""
    for name in ("memory3_formats", "memory3_service"):
        with zipfile.ZipFile(wheel(dist, name)) as archive:
            archive.extractall(tmp_path)
    for module in ("memory_service.cli", "memory_model.cli"):
        code = f"import {module} as m, sys; print(m.__file__); sys.argv[1:] = ['--help']; m.app()"
        done = run(sys.executable, "-c", code, cwd=tmp_path, path=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(str(tmp_path))
    code = "from memory_model.models.folder import ModelFolder; print(ModelFolder.open().need_codec())"
    found = run(sys.executable, "-c", code, cwd=tmp_path, path=tmp_path)
    assert found.stdout.startswith(str(tmp_path)), found.stderr


def built(source: Path, into: Path, **environment: str) -> Path:
    """A wheel of the repository's files, in a copy: what an install left beside the sources is not in it."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(into), str(source)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    archive = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-"], cwd=ROOT, input=listed.stdout.encode(), capture_output=True,
        check=True,
    )  # fmt: skip
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive.stdout, check=True)
    return folder


def test_a_wheel_made_with_a_compiler_holds_the_library_and_names_its_platform(sources: Path, tmp_path: Path) -> None:
    assert compiler() is not None
    wheel = built(sources, tmp_path)
    assert wheel.name.endswith(f"-{wheel_tag()}.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.namelist().count(HELD) == 1
    assert not (sources / HELD).exists()


@pytest.mark.parametrize("environment", [{"CC": "no-such-compiler"}, {"HATCH_BUILD_NO_HOOKS": "true"}])
def test_a_wheel_made_without_one_is_for_every_platform(
    sources: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    wheel = built(sources, tmp_path, **environment)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert HELD not in archive.namelist()
        assert HELD.replace(LIBRARY, "decode.c") in archive.namelist()
