"""The wheels of a release, from one tree and one list of requirements: `make dist`.

One wheel of each package: the ground (memory3, with the gRPC contract), the lab that makes models (memory3-model), the
cloud (memory3-service) and the device (memory3-edge). pyproject.toml stays the only file where requirements are
written: its extras become the wheels' requirements. The package `protos` is called `memory3_protos` in a wheel, because
another distribution may have a package of that name.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

from memory3 import __version__ as VERSION
from testing.programs import ROOT

DIST = ROOT / "dist"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
WORKSHOP = frozenset({"bench", "bench-peers", "dev", "harness", "recipe"})
"""Extras of the repository that no wheel has."""
OF_THE_EDGE = ("encrypted", "mcp", "serve", "edge-gpu", "edge-tensorrt")
"""Extras of the device's wheel alone."""


@dataclass(frozen=True)
class Wheel:
    """One distribution: which files it takes, and whose requirements.

    A file belongs to the wheel when its path is in `takes`, or in a folder of it, and not in `leaves`. extra: of
    pyproject.toml, whose requirements it has; of these `only` keeps those named. ours: wheels of this list.
    optional: its own extras. compiled: whether the build hook belongs to this wheel.
    """

    name: str
    description: str
    takes: tuple[str, ...]
    extra: str
    leaves: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    python: str = PROJECT["requires-python"]
    compiled: bool = False

    def has(self, path: str) -> bool:
        """Whether a file of the repository, given with slashes, is in the wheel."""
        return _matches(path, self.takes) and not _matches(path, self.leaves)


WHEELS = (
    Wheel(
        "memory3",
        "What all parts of Memory³ Edge share: the gRPC contract and the formats of models, memories and bundles.",
        takes=("protos/", "memory3/"),
        leaves=("protos/generate.py", "protos/vectors/runtime/"),
        extra="edge",
        only=(
            "googleapis-common-protos",
            "grpcio",
            "jinja2",
            "markdown-it-py",
            "onnxruntime",
            "protobuf",
            "pydantic-settings",
        ),
        compiled=True,
    ),
    Wheel(
        "memory3-edge",
        "Memory³ Edge on the device: SDK, chat, OpenAI's interface; reads explicit memories.",
        takes=("edge_client/",),
        extra="edge",
        ours=("memory3",),
        optional=("formats", "ocr", *OF_THE_EDGE),
        scripts=("edge-client",),
    ),
    Wheel(
        "memory3-model",
        "The lab of Memory³ Edge: converts, tunes, evaluates and exports models that read explicit memories.",
        takes=("memory_model/",),
        python=">=3.11",
        extra="train",
        ours=("memory3",),
        scripts=("memory-model",),
    ),
    Wheel(
        "memory3-service",
        "Memory³ Edge in the cloud: writes, stores and retrieves explicit memories.",
        takes=("memory_service/",),
        python=">=3.11",
        extra="service",
        ours=("memory3", "memory3-model"),
        optional=tuple(sorted({*EXTRAS} - WORKSHOP - {"edge", *OF_THE_EDGE, "service", "train"})),
        scripts=("memory-service",),
    ),
)
"""Each after those it needs."""
_ABOUT = """Part of Memory³ Edge: a small language model on a device answers from knowledge that is not in its weights.
`memory3-edge` is the device, `memory3-service` the cloud, `memory3-model` the lab that makes models, `memory3` what all
share. The wheels of one release have one version and belong together.
"""


def described(wheel: Wheel) -> dict[str, Any]:
    """The pyproject.toml that builds `wheel`, as a table."""
    requirements = [r for r in EXTRAS[wheel.extra] if not wheel.only or _name(r) in wheel.only]
    if missing := {*wheel.only} - {_name(r) for r in requirements}:
        raise ValueError(f"the extra {wheel.extra} of pyproject.toml no longer has {', '.join(missing)}")
    project: dict[str, Any] = {
        "name": wheel.name,
        "description": wheel.description,
        "readme": "README.md",
        "version": VERSION,
        **{key: PROJECT[key] for key in ("license", "license-files", "keywords", "classifiers")},
        "requires-python": wheel.python,
        "dependencies": sorted(
            [*PROJECT["dependencies"], *requirements, *(f"{name}=={VERSION}" for name in wheel.ours)]
        ),
        "optional-dependencies": {name: EXTRAS[name] for name in wheel.optional},
        "scripts": {name: PROJECT["scripts"][name] for name in wheel.scripts},
    }
    target: dict[str, Any] = {"include": sorted({_target(pattern).split("/")[0] for pattern in wheel.takes})}
    if wheel.compiled:
        target["hooks"] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    tool = {"hatch": {"build": {"targets": {"wheel": target}}}}
    return {"build-system": PYPROJECT["build-system"], "project": project, "tool": tool}


def build(into: Path = DIST) -> list[Path]:
    """Builds every wheel into `into`, in place of older ones, and writes SHA256SUMS; returns the wheels."""
    into.mkdir(parents=True, exist_ok=True)
    for old in into.glob("memory3*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="memory3-wheels-") as folder:
        for wheel in WHEELS:
            staging = Path(folder) / wheel.name
            lay_out(wheel, staging)
            command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(into.resolve()), str(staging)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{wheel.name} was not built:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    made = sorted(into.glob("memory3*.whl"))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (into / "SHA256SUMS").write_text("".join(sums))
    return made


def tracked() -> list[str]:
    """Paths of the repository's files, with slashes: what git knows, so that nothing left behind gets into a wheel."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(filter(None, listed.stdout.split("\0")))


def lay_out(wheel: Wheel, staging: Path) -> None:
    """Writes the source folder that the wheel is built from."""
    hook = ["hatch_build.py"] if wheel.compiled else []
    for name in ["LICENSE", "NOTICE", *hook, *filter(wheel.has, tracked())]:
        target, content = staging / _target(name), (ROOT / name).read_bytes()
        if name.endswith((".py", ".pyi")):
            content = content.replace(b"protos.memory.v1", b"memory3_protos.memory.v1")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (staging / "pyproject.toml").write_text("".join(as_toml(described(wheel))), encoding="utf-8")
    (staging / "README.md").write_text(f"# {wheel.name}\n\n{wheel.description}\n\n{_ABOUT}", encoding="utf-8")


def _target(path: str) -> str:
    """Where a file of the repository is in a wheel."""
    return f"memory3_{path}" if path.startswith("protos/") else path


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(path.startswith(p) if p.endswith("/") else path == p for p in patterns)


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0].lower()


def as_toml(table: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """The table as TOML: strings, numbers, lists of strings and tables are all it needs. JSON spells them alike."""
    if path:
        yield f"[{'.'.join(map(_quoted, path))}]\n"
    yield from (f"{_quoted(k)} = {_quoted(v)}\n" for k, v in table.items() if not isinstance(v, dict))
    for key, value in table.items():
        if isinstance(value, dict):
            yield from as_toml(value, (*path, key))


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    wheels = build()
    for path in wheels:
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path}")
    sys.exit(subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *wheels]).returncode)
