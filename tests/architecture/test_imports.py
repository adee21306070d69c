"""The direction of imports, checked where the linter cannot: in a fresh process, by what was really loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["torch", "faiss", "chdb", "clickhouse_connect", "transformers", "onnx", "gguf"]
SERVER_SIDE = ["memory_service", "memory_model.nn", "memory_model.train", "memory_model.eval"]


def modules_of(package: str, *, without: tuple[str, ...] = ()) -> list[str]:
    """Dotted names of a package's own modules, found by their files."""
    names = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not any(name == skip or name.startswith(f"{skip}.") for skip in without):
            names.append(name)
    return names


def loaded_after_importing(modules: list[str]) -> set[str]:
    code = (
        "import importlib, json, sys\n"
        "for name in json.loads(sys.argv[1]):\n    importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(modules)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_device_loads_no_torch_no_faiss_no_database() -> None:
    modules = modules_of("edge_client")
    assert "edge_client.cli.main" in modules
    assert loaded_after_importing(modules).isdisjoint(HEAVY + SERVER_SIDE)


def test_the_top_level_of_the_model_package_is_torch_free() -> None:
    folders = ("nn", "models", "data", "train", "eval", "export", "codec.faiss", "codec.fit")
    modules = modules_of("memory_model", without=tuple(f"memory_model.{folder}" for folder in folders))
    assert "memory_model.codec.payload" in modules
    assert loaded_after_importing(modules).isdisjoint(HEAVY)


def test_the_service_command_answers_without_loading_the_device() -> None:
    assert not any(name.startswith("edge_client") for name in loaded_after_importing(modules_of("memory_service")))
