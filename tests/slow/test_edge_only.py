"""The device's install, for real: an empty environment, `.[edge]` and nothing else, one token without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = ("torch", "faiss-cpu", "chdb", "clickhouse-connect", "transformers", "onnx", "gguf")


@pytest.fixture(scope="module")
def edge_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs of a fresh environment with only the edge extra, installed from a built wheel."""
    folder = tmp_path_factory.mktemp("edge-only")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    install = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*install, "--constraint", ROOT / "constraints.txt", f"{ROOT}[edge]"], check=True, cwd=folder
    )
    return programs


@pytest.mark.slow
def test_an_edge_install_holds_no_torch_no_faiss_and_no_database(edge_environment: Path) -> None:
    listed = subprocess.run(
        [edge_environment / "python", "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    installed = {line.split("==")[0].lower().replace("_", "-") for line in listed.splitlines()}
    assert "onnxruntime" in installed
    assert installed.isdisjoint(FORBIDDEN)


@pytest.mark.slow
def test_an_edge_install_generates_a_token(edge_environment: Path, bundle: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            edge_environment / "edge-client",
            "ask",
            "The capital of France is",
            *("--bundle", bundle),
            *("--memory", "off"),
            *("--max-tokens", "1"),
        ],
        cwd=tmp_path,  # not the repository: what is imported is what was installed
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
