"""The wheels of a release, from one tree and one list of requirements: `make dist`.

Four wheels: the wire (memory3-protos), the torch-free formats of the model (memory3-model), the device
(memory3-edge) and the cloud (memory3-service, with the part of the model that needs torch). pyproject.toml
stays the only place where versions and requirements are written: its extras become the wheels' requirements.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
SUMS = "SHA256SUMS"
WORKSHOP = frozenset({"bench", "bench-peers", "dev"})
"""Extras of the repository that no wheel has."""
OF_THE_EDGE = ("serve", "edge-gpu", "edge-tensorrt")
"""Extras of the device's wheel."""


@dataclass(frozen=True)
class Wheel:
    """One distribution: which files it takes, and whose requirements.

    `takes` and `leaves` are patterns of paths in the repository; a file belongs to the wheel when a pattern of
    `takes` matches and none of `leaves`. `extra` is the extra of pyproject.toml whose requirements it has, of
    which `only` keeps those named; None: the requirements that every part has. `ours` are wheels of this list.
    """

    name: str
    description: str
    takes: tuple[str, ...]
    leaves: tuple[str, ...] = ()
    extra: str | None = None
    only: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    python: str | None = None
    """Versions of Python, where they are fewer than those of the repository."""
    compiled: bool = False
    """Whether the build hook of pyproject.toml, if there is one, belongs to this wheel."""

    def has(self, path: str) -> bool:
        """Whether a file of the repository, given with slashes, is in the wheel."""
        return _matches(path, self.takes) and not _matches(path, self.leaves)


_TORCH = tuple(
    f"memory_model/{part}"
    for part in (
        "nn/", "models/", "data/", "train/", "eval/", "export/", "cli/", "assets/", "codec/faiss.py", "codec/fit.py",
    )
)  # fmt: skip


def wheels(project: dict[str, Any]) -> tuple[Wheel, ...]:
    """The wheels of the project described by pyproject.toml's table `project`, each after those it needs."""
    of_the_cloud = set(project["optional-dependencies"]) - WORKSHOP - {"edge", *OF_THE_EDGE, "service"}
    return (
        Wheel(
            "memory3-protos", "The gRPC contract memory.v1 of Memory³ Edge, with the Python code made from it.",
            takes=("protos/",), leaves=("protos/generate.py", "protos/vectors/runtime/"), extra="edge",
            only=("grpcio", "protobuf"),
        ),
        Wheel(
            "memory3-model", "The formats of Memory³ Edge that device and cloud share, without torch.",
            takes=("memory_model/",), leaves=_TORCH, extra="edge", compiled=True,
            only=("jinja2", "markdown-it-py", "onnxruntime"),
        ),
        Wheel(
            "memory3-edge", "Memory³ Edge on the device: SDK, chat, OpenAI's interface; reads explicit memories.",
            takes=("edge_client/",), extra="edge", ours=("memory3-protos", "memory3-model"),
            optional=("formats", *OF_THE_EDGE),
            scripts=("edge-client",),
        ),
        Wheel(
            "memory3-service", "Memory³ Edge in the cloud: writes, keeps and finds explicit memories.",
            takes=("memory_service/", *_TORCH), python=">=3.11", extra="service",
            ours=("memory3-protos", "memory3-model"), optional=tuple(sorted(of_the_cloud)),
            scripts=("memory-service", "memory-model"),
        ),
    )  # fmt: skip


def read_pyproject(root: Path = ROOT) -> dict[str, Any]:
    """pyproject.toml of the repository."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def described(wheel: Wheel, pyproject: dict[str, Any]) -> dict[str, Any]:
    """The pyproject.toml that builds `wheel`, as a table; `pyproject` is the repository's."""
    whole = pyproject["project"]
    extras: dict[str, list[str]] = whole["optional-dependencies"]
    asked = list(whole["dependencies"])
    if wheel.extra is not None:
        more = [r for r in extras[wheel.extra] if not wheel.only or _name(r) in wheel.only]
        missing = set(wheel.only) - {_name(r) for r in more}
        if missing:
            raise ValueError(f"the extra {wheel.extra} of pyproject.toml no longer has {', '.join(missing)}")
        asked = more if wheel.name == "memory3-protos" else [*asked, *more]
    kept = ("version", "license", "license-files", "requires-python", "keywords", "classifiers")
    project: dict[str, Any] = {
        "name": wheel.name,
        "description": wheel.description,
        "readme": "README.md",
        **{key: whole[key] for key in kept},
        "dependencies": sorted([*asked, *(f"{name}=={whole['version']}" for name in wheel.ours)]),
    }
    if wheel.python is not None:
        project["requires-python"] = wheel.python
        project["classifiers"] = [c for c in whole["classifiers"] if not c.endswith(":: 3.10")]
    if wheel.optional:
        project["optional-dependencies"] = {name: extras[name] for name in wheel.optional}
    if wheel.scripts:
        project["scripts"] = {name: whole["scripts"][name] for name in wheel.scripts}
    target: dict[str, Any] = {"include": sorted({pattern.split("/")[0] for pattern in wheel.takes})}
    table = {"build-system": pyproject["build-system"], "project": project}
    hooks = _hooks(pyproject) if wheel.compiled else {}
    return {**table, "tool": {"hatch": {"build": {"targets": {"wheel": {**target, **hooks}}}}}}


def build(into: Path = DIST, root: Path = ROOT) -> list[Path]:
    """Builds every wheel into `into`, in place of older ones, and writes SHA256SUMS; returns the wheels."""
    pyproject = read_pyproject(root)
    files = sorted(tracked(root))
    into.mkdir(parents=True, exist_ok=True)
    for old in [*into.glob("memory3_*.whl"), into / SUMS]:
        old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="memory3-wheels-") as folder:
        for wheel in wheels(pyproject["project"]):
            place = Path(folder) / wheel.name
            _lay_out(wheel, pyproject, files, place, root)
            command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(into.resolve()), str(place)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{wheel.name} was not built:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    made = sorted(into.glob("memory3_*.whl"))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (into / SUMS).write_text("".join(sums))
    return made


def tracked(root: Path = ROOT) -> Iterator[str]:
    """Paths of the repository's files, with slashes: what git knows, so that nothing left behind gets into a wheel."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    yield from filter(None, listed.stdout.split("\0"))


def _lay_out(wheel: Wheel, pyproject: dict[str, Any], files: list[str], place: Path, root: Path) -> None:
    """Writes the source folder that the wheel is built from."""
    hook = ["hatch_build.py"] if wheel.compiled and _hooks(pyproject) else []
    for name in ["LICENSE", "NOTICE", *hook, *(path for path in files if wheel.has(path))]:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, place / name)
    (place / "pyproject.toml").write_text("".join(as_toml(described(wheel, pyproject))), encoding="utf-8")
    (place / "README.md").write_text(f"# {wheel.name}\n\n{wheel.description}\n\n{_ABOUT}", encoding="utf-8")


_ABOUT = """Part of Memory³ Edge: a small language model on a device answers from knowledge that is not in its weights.
A service in the cloud turns documents into explicit memories; the device reads up to five of them every 64 tokens.

| wheel | for |
|---|---|
| `memory3-edge` | the device; `[serve]` adds the local server and its page, `[edge-gpu]`, `[edge-tensorrt]` a GPU |
| `memory3-service` | the cloud, and making models; needs torch |
| `memory3-model`, `memory3-protos` | what both share; they come by themselves |

All wheels of one release have one version, and belong together.
"""


def _hooks(pyproject: dict[str, Any]) -> dict[str, Any]:
    settings = pyproject.get("tool", {}).get("hatch", {}).get("build", {})
    hooks = settings.get("hooks") or settings.get("targets", {}).get("wheel", {}).get("hooks")
    return {"hooks": hooks} if hooks else {}


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(path.startswith(p) if p.endswith("/") else path == p for p in patterns)


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0].lower()


def as_toml(table: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """The table as TOML: strings, numbers, lists of strings and tables are all it needs. JSON spells them alike."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if plain and path:
        yield f"[{'.'.join(_quoted(part) for part in path)}]\n"
    yield from (f"{_quoted(key)} = {_quoted(value)}\n" for key, value in plain.items())
    for key, value in table.items():
        if isinstance(value, dict):
            if not value:
                yield f"[{'.'.join(_quoted(part) for part in (*path, key))}]\n"
            yield from as_toml(value, (*path, key))


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def main(arguments: list[str] | None = None) -> int:
    """Build, sum and check; exit code 1 and the reason when a step fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=DIST, help="folder of the wheels [default: dist]")
    into = parser.parse_args(arguments).out
    made = build(into)
    checked = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *made])
    for path in made:
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path}")
    return checked.returncode


if __name__ == "__main__":
    sys.exit(main())
