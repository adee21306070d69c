"""The Makefile's targets say what is missing and what to do, before they begin a work of minutes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from testing.programs import ROOT

TOOLS = ("sh", "make", "sed", "git", "nproc", "test")
"""What the Makefile itself calls when it is read."""


def make(*arguments: str, path: Path) -> str:
    """What `make` says that would run these with the programs of a folder alone; nothing is run."""
    for name in TOOLS:
        if (program := shutil.which(name)) and not (path / name).exists():
            (path / name).symlink_to(program)
    done = subprocess.run(
        ["make", "--dry-run", *arguments], cwd=ROOT, env={"PATH": str(path)}, capture_output=True, text=True, timeout=60
    )
    return done.stdout if done.returncode == 0 else done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["image"], "there is no buildah and no docker: install one"),
        (["image", "NAME=servce"], "there is no image servce: NAME is service, encoder, edge or edge-jetson"),
        (["image", "NAME=edge-jetson"], "with INDEX="),
        (
            ["setup", "--always-make", "VENV=build/none", "PYTHON=python3.99"],
            "there is no python3.99: install Python 3.11, or name it with PYTHON=",
        ),
    ],
    ids=["no engine", "another image", "no index", "no Python"],
)
def test_what_a_target_lacks_is_named_with_what_to_do(arguments: list[str], said: str, tmp_path: Path) -> None:
    assert said in make(*arguments, path=tmp_path)


@pytest.mark.parametrize("name", ["service", "encoder", "edge", "edge-jetson"])
def test_every_image_is_built_from_its_own_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "docker").symlink_to("/bin/true")
    line = make("image", f"NAME={name}", "INDEX=wheels", path=tmp_path)
    side = "edge" if name.startswith("edge") else "service"
    assert f"docker build --file deploy/images/{side}.Dockerfile" in line
    assert f"--tag memory3/memory-{name}:" in line


def test_an_environment_whose_making_failed_is_made_again(tmp_path: Path) -> None:
    """Debian's Python without python3-venv leaves one without pip, and says what to install each time."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")
    (tmp_path / "python3.11").symlink_to("/bin/true")
    lines = make("setup", "--always-make", f"VENV={tmp_path}", path=tmp_path).splitlines()
    (made,) = [line for line in lines if "-m venv" in line]
    checked = made.partition(" || ")[0]
    assert subprocess.run(["sh", "-c", checked]).returncode != 0
