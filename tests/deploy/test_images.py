"""The images: what they install is what the project asks for and its tests ran with, and their lists name all of it."""

import json
import re
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.images import sbom
from testing.programs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUN, MORE = re.findall(r"^(?:RUN|DEV) := (?:\$\(RUN\) )?(.+)$", (ROOT / "Makefile").read_text(), re.M)
LOCKS = {
    "run": tuple(RUN.split()),
    "dev": (*RUN.split(), *MORE.split()),
    "service": ("service", "edge", "tracing"),
    "encoder": ("service", "edge", "tracing", "formats"),
    "edge": ("edge", "serve", "formats"),
    "jetson": ("edge", "serve", "formats"),
}
NOT_LOCKED = {"torch": "requirements/torch.txt", "onnxruntime": "the GPU's, on a Jetson"}


def pins(file: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", file.read_text(), re.M)
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize(("lock", "extras"), LOCKS.items(), ids=LOCKS)
def test_a_lock_has_what_the_project_asks_for_in_the_tested_versions(lock: str, extras: tuple[str, ...]) -> None:
    """When this fails: `make locks`."""
    file = ROOT / "requirements" / "locks" / f"{lock}.txt"
    locked, tested = pins(file), pins(ROOT / "constraints.txt")
    asked = [Requirement(r) for r in PROJECT["dependencies"]]
    asked += [Requirement(r) for extra in extras for r in PROJECT["optional-dependencies"][extra]]
    for requirement in asked:
        name = canonicalize_name(requirement.name)
        if name not in locked and name in NOT_LOCKED:
            continue
        python = {"python_version": "3.10" if lock == "jetson" else "3.11"}
        if requirement.marker and not requirement.marker.evaluate(python):
            continue
        assert requirement.specifier.contains(locked[name]), f"{requirement} is locked as {locked[name]}"
    if lock != "jetson":
        assert {name: version for name, version in locked.items() if tested.get(name, version) != version} == {}
    assert "torch" not in locked, "a second torch would replace the one of requirements/torch.txt"
    assert "://" not in file.read_text(), "a lock names no registry"


def test_the_page_says_which_model_an_image_has_and_where_it_looks_for_another() -> None:
    text = (ROOT / "deploy" / "images" / "service.Dockerfile").read_text()
    page = (ROOT / "docs" / "operations" / "install.md").read_text()
    (model,) = re.findall(r"^ENV MEMORY3_MODEL=(\S+)$", text, re.M)
    (home,) = re.findall(r"^ENV PATH[^#]* HOME=(\S+)", text, re.M)
    assert f"`service` and `encoder` have {model} and its bundle" in page.lower()
    assert f"`{home}/.cache/memory3`" in page


def test_the_list_of_parts_names_debians_packages_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "python.json").write_text('{"bomFormat": "CycloneDX", "components": [{"name": "numpy"}]}')
    (tmp_path / "status").write_text(
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n"
        "Description: C\n more: lines\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n"
    )
    sbom.main(str(tmp_path / "python.json"), str(tmp_path / "status"))
    listed = json.loads(capsys.readouterr().out)
    assert [part["name"] for part in listed["components"]] == ["numpy", "libc6"]
    assert listed["components"][1]["purl"] == "pkg:deb/debian/libc6@2.36-9?arch=amd64"
