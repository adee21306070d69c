"""Generates the Python code beside the `.proto` files: `python -m protos.generate`; `--check` fails when it is stale.

protoc roots the imports at `protos/` (so that a file's folder equals its package, as buf asks), but our Python package
is `protos.memory.v1`: the one rewrite here is that prefix.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from importlib.resources import files
from pathlib import Path

PROTO_ROOT = Path(__file__).resolve().parent
GENERATED_SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")

_IMPORT = re.compile(r"^(from|import) memory\.v1\b", re.MULTILINE)
_QUALIFIED = re.compile(r"(?<![\w.])memory\.v1\.(\w+_pb2)")


def generate(root: Path = PROTO_ROOT) -> dict[Path, str]:
    """Runs protoc over `root` and returns {path relative to root: text} of every generated file, writing none of them.

    Raises CalledProcessError when protoc refuses a file; its own words are on stderr.
    """
    sources = sorted(str(path.relative_to(root)) for path in (root / "memory").rglob("*.proto"))
    well_known = str(files("grpc_tools") / "_proto")
    # Found beside this interpreter, so that a virtual environment need not be activated.
    stub_plugin = Path(sysconfig.get_path("scripts")) / "protoc-gen-mypy_grpc"
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--{plugin}={folder}" for plugin in ("python_out", "pyi_out", "grpc_python_out", "mypy_grpc_out")]
        options.append(f"--plugin=protoc-gen-mypy_grpc={stub_plugin}")
        # A process of its own: protoc forks for its plugin, which a process of many threads may not survive.
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"-I{well_known}"]
        subprocess.run([*protoc, *options, *sources], check=True)
        out = Path(folder)
        return {
            path.relative_to(out): _QUALIFIED.sub(r"protos.memory.v1.\1", _IMPORT.sub(r"\1 protos.memory.v1", text))
            for path in sorted(out.rglob("*"))
            if path.name.endswith(GENERATED_SUFFIXES)
            for text in [path.read_text(encoding="utf-8")]
        }


def update(root: Path = PROTO_ROOT, *, check: bool = False) -> list[Path]:
    """Brings the generated files under `root` up to date, unless `check` is set; returns those that are not.

    Those are missing, different from what protoc makes now, or left over.
    """
    found = [path.relative_to(root) for path in root.rglob("*") if path.name.endswith(GENERATED_SUFFIXES)]
    now = {path: (root / path).read_text(encoding="utf-8") for path in found}
    wanted = generate(root)
    stale = [path for path in sorted(now.keys() | wanted.keys()) if now.get(path) != wanted.get(path)]
    for path in stale if not check else ():
        if path in wanted:
            (root / path).write_text(wanted[path], encoding="utf-8")
        else:
            (root / path).unlink()
    return stale


if __name__ == "__main__":
    check = "--check" in sys.argv
    stale = update(check=check)
    for path in stale:
        print(f"stale: protos/{path}; run `make protos`" if check else f"protos/{path}", file=sys.stderr)
    sys.exit(bool(stale) and check)
