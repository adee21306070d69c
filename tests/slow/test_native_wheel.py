"""The build hook: with a compiler a wheel of this platform that holds the library, without one a wheel for all."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from memory_model.codec.native.compile import LIBRARY, compiler, wheel_tag

ROOT = Path(__file__).resolve().parents[2]
HELD = f"memory_model/codec/native/{LIBRARY}"

pytestmark = pytest.mark.slow


def built(source: Path, into: Path, **environment: str) -> Path:
    """A wheel of the repository's files, in a copy: what an install left beside the sources is not in it."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(into), str(source)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    archive = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-"], cwd=ROOT, input=listed.stdout.encode(), capture_output=True,
        check=True,
    )  # fmt: skip
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive.stdout, check=True)
    return folder


def test_a_wheel_made_with_a_compiler_holds_the_library_and_names_its_platform(
    source: Path, tmp_path: Path
) -> None:
    assert compiler() is not None
    wheel = built(source, tmp_path)
    assert wheel.name.endswith(f"-{wheel_tag()}.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.namelist().count(HELD) == 1
    assert not (source / HELD).exists()


@pytest.mark.parametrize("environment", [{"CC": "no-such-compiler"}, {"HATCH_BUILD_NO_HOOKS": "true"}])
def test_a_wheel_made_without_one_is_for_every_platform(
    source: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    wheel = built(source, tmp_path, **environment)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert HELD not in archive.namelist()
        assert HELD.replace(LIBRARY, "decode.c") in archive.namelist()
