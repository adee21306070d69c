"""Build the service's image for real, start it, ingest a document and ask about it: `make test-image`.

Needs root, buildah and debootstrap (Debian packages), and some 15 GB. No image registry is asked: the base is
a Debian made by debootstrap. pip's own settings of this machine (mirrors, certificates) hold in the build too.
The image is kept under build/image for the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "image"
BASE = "localhost/memory3/trial-base:bookworm"
IMAGE = "localhost/memory3/memory-service:trial"
DOCUMENT = '{"key": "mirren", "title": "Lighthouse of Mirren", "text": "height: 47 metres\\nbuilt: 1871"}\n'
QUESTION, EXPECTED = "How high is the lighthouse of Mirren?", "47"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def main(arguments: list[str] | None = None) -> int:
    """Build, start, probe, ingest, ask, stop; exit code 1 and the reason when a step fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rebuild", action="store_true", help="make the image anew although there is one")
    rebuild = parser.parse_args(arguments).rebuild
    missing = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        print(
            f"needs root and {' and '.join(missing or ['nothing else'])}: apt-get install buildah debootstrap",
            file=sys.stderr,
        )
        return 1
    try:
        if rebuild or not _exists(IMAGE):
            _base()
            _build()
        _say(f"size: {_size(IMAGE)} unpacked")
        _try()
    except (subprocess.CalledProcessError, RuntimeError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    _say("the image serves, ingests, retrieves and stops as it should")
    return 0


def _say(text: str) -> None:
    print(f"== {text}", flush=True)


def _buildah(*arguments: str | Path) -> list[str]:
    where = ["--root", PLACE / "storage", "--runroot", PLACE / "run", "--storage-driver", "vfs"]
    return [str(a) for a in ("buildah", *where, *arguments)]


def _run(*arguments: str | Path, quiet: bool = False) -> str:
    done = subprocess.run(
        _buildah(*arguments), stdout=subprocess.PIPE if quiet else None, text=True, check=True
    )
    return (done.stdout or "").strip()


def _exists(image: str) -> bool:
    return subprocess.run(_buildah("inspect", "--type", "image", image), capture_output=True).returncode == 0


def _base() -> None:
    if _exists(BASE):
        return
    _say("making a base with debootstrap")
    PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder], check=True)
        container = _run("from", "scratch", quiet=True)
        _run("add", "--quiet", container, folder, "/")
        _run("commit", "--quiet", "--rm", container, BASE)


def _build() -> None:
    _say("building the image")
    started = time.monotonic()
    _run(
        "build", "--isolation", "chroot", "--pull-never", "--build-arg", f"BASE={BASE}", *_settings_of_pip(),
        "--file", ROOT / "deploy" / "images" / "service.Dockerfile", "--tag", IMAGE, ROOT,
    )  # fmt: skip
    _say(f"built in {time.monotonic() - started:.0f} s")


def _settings_of_pip() -> list[str]:
    """Mounts that let pip and apt in the build reach what they reach here."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    ).stdout
    values = [line.partition("=")[2].strip("'\"") for line in listed.splitlines()]
    words = [w.removeprefix("file://") for v in values for w in v.split()]
    folders = {
        "/" + w.split("/")[1] + "/" + w.split("/")[2] for w in words if w.startswith("/") and Path(w).is_dir()
    }
    files = [f for f in (Path.home() / ".config/pip/pip.conf", Path("/etc/pip.conf")) if f.is_file()]
    mounts = [f"{folder}:{folder}:ro" for folder in sorted(folders)]
    mounts += [f"{files[0]}:/etc/pip.conf:ro"] if files else []
    mounts += [f"{_CERTIFICATES}:/certificates.pem:ro"] if _CERTIFICATES.is_file() else []
    options = [o for m in mounts for o in ("--volume", m)]
    return [*options, "--env", "PIP_CERT=/certificates.pem"] if _CERTIFICATES.is_file() else options


def _size(image: str) -> str:
    listed = json.loads(_run("images", "--json", image, quiet=True))
    return str(listed[0]["size"])


def _try() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    container = _run("from", "--pull-never", IMAGE, quiet=True)
    try:
        with _serving(container, address):
            _inside(container, "memory-service", "doctor", "--address", address)
            _inside(
                container,
                "sh",
                "-c",
                f"printf '%s' '{DOCUMENT}' > /tmp/d.jsonl && memory-service ingest /tmp/d.jsonl --address {address}",
            )
            said = _inside(
                container, "edge-client", "ask", QUESTION, "--service", address, "--require-memory"
            )
            if EXPECTED not in said:
                raise RuntimeError(f"asked {QUESTION!r}, expected {EXPECTED!r}, got: {said}")
    finally:
        _run("rm", container, quiet=True)


def _inside(container: str, *command: str) -> str:
    done = subprocess.run(_in(container, *command), capture_output=True, text=True, timeout=300)
    print(done.stdout, end="")
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def _in(container: str, *command: str) -> list[str]:
    return _buildah("run", "--isolation", "chroot", "--user", "10001:10001", container, "--", *command)


@contextlib.contextmanager
def _serving(container: str, address: str) -> Iterator[None]:
    command: Sequence[str] = _in(container, "memory-service", "serve", "--listen", address)
    process = subprocess.Popen(command, start_new_session=True)
    try:
        _wait(address, process)
        yield
    finally:
        inside = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for child in inside[-1:]:  # the service itself: buildah does not pass the signal on
            child.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    if code != 0:
        raise RuntimeError(f"the service ended with {code} after SIGTERM")


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    host, port = address.split(":")
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the service ended with {process.returncode} before it listened")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.2)
    raise RuntimeError("the service did not listen within two minutes")


if __name__ == "__main__":
    sys.exit(main())
