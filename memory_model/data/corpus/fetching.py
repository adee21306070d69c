"""Packages from the registries: fetched with the registries' own clients, cached, and checked.

Debian's packages come with `apt-get download` (no root needed), npm's with `npm pack`, PyPI's with
`pip download --no-deps`. A package names the file that is expected and its SHA-256; Debian's may come in
another version than ours on another release, then apt's own signatures vouch for it and the manifest says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from memory_model.digest import file_sha256
from memory_model.errors import CorruptFile, MissingFile

_TIMEOUT_S = 900
_INSTALL = {
    "apt-get": "this source needs a Debian or Ubuntu with apt-get and dpkg-deb",
    "dpkg-deb": "install it with `apt-get install dpkg`",
    "npm": "install it with `apt-get install npm`",
}


@dataclass(frozen=True)
class Package:
    """A package of a registry. `file` is the name it has when it is the version whose `sha256` we know."""

    registry: Literal["debian", "npm", "pypi"]
    name: str
    version: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Fetched:
    """A package's file in the cache; `known` when it is the version whose checksum the code holds."""

    path: Path
    sha256: str
    known: bool


def fetch(package: Package, cache: Path) -> Fetched:
    """The package's file, from the cache or the registry.

    Raises MissingFile when it cannot be had (the message says what to install or to do), CorruptFile when it
    is not what its checksum says.
    """
    folder = cache / package.registry
    folder.mkdir(parents=True, exist_ok=True)
    path = _cached(package, folder)
    if path is None:
        {"debian": _debian, "npm": _npm, "pypi": _pypi}[package.registry](package, folder)
        path = _cached(package, folder)
    if path is None:
        raise MissingFile(f"{package.name}: its registry's client fetched no file like {package.file}")
    sha256 = file_sha256(path)
    known = path.name == package.file
    if known and sha256 != package.sha256:
        raise CorruptFile(
            f"{path} has SHA-256 {sha256[:16]}…, expected {package.sha256[:16]}…: delete it and fetch it again"
        )
    return Fetched(path, sha256, known)


def unpack(deb: Path, folder: Path) -> Path:
    """The files of a Debian package under `folder`, made anew; returns `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run(["dpkg-deb", "-x", str(deb), str(folder)], f"cannot unpack {deb.name}")
    return folder


def package_lists(cache: Path, languages: str = "en") -> Path:
    """A folder with apt's lists and the English descriptions, of our own: the system's are left alone."""
    lists = cache / "apt" / "lists"
    if not any(lists.glob("*_Packages*")):
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        options = [*_own_lists(cache), "-o", f"Acquire::Languages={languages}"]
        run(["apt-get", "update", *options], "cannot fetch apt's lists of packages")
    return lists


def run(command: list[str], failure: str, cwd: Path | None = None) -> str:
    """Run a registry's client and return its output; raises MissingFile with `failure` and its last words."""
    if shutil.which(command[0]) is None:
        raise MissingFile(f"{failure}: no {command[0]} here, {_INSTALL.get(command[0], 'install it')}")
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MissingFile(f"{failure}: no answer in {_TIMEOUT_S} s; run the command again") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise MissingFile(f"{failure}: {last}")
    return done.stdout


def _cached(package: Package, folder: Path) -> Path | None:
    exact = folder / package.file
    if exact.is_file():
        return exact
    if package.registry != "debian":
        return None
    return max(folder.glob(f"{package.name}_*.deb"), default=None)


def _own_lists(cache: Path) -> list[str]:
    apt = (cache / "apt").resolve()
    return ["-o", f"Dir::State::Lists={apt / 'lists'}", "-o", f"Dir::Cache={apt}"]


def _debian(package: Package, folder: Path) -> None:
    failure = f"cannot fetch Debian's package {package.name}"
    command = ["apt-get", "download", package.name]
    try:
        run(command, failure, cwd=folder)
    except MissingFile as error:
        if "Unable to locate" not in str(error) and "no installation candidate" not in str(error):
            raise
        # No lists, or old ones, as in a fresh container: fetch lists of our own and ask again.
        package_lists(folder.parent)
        run([*command, *_own_lists(folder.parent)], failure, cwd=folder)


def _npm(package: Package, folder: Path) -> None:
    what = f"{package.name}@{package.version}"
    run(["npm", "pack", "--silent", what], f"cannot fetch npm's package {what}", cwd=folder)


def _pypi(package: Package, folder: Path) -> None:
    what = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check",
               "--only-binary=:all:", what]  # fmt: skip
    tags = package.file.removesuffix(".whl").split("-")
    if tags[-1] != "any":  # the same wheel on every machine: only its data are read
        command += ["--python-version", tags[-3].removeprefix("cp"), "--platform", tags[-1].split(".")[-1]]
    run(command, f"cannot fetch PyPI's package {what}", cwd=folder)
