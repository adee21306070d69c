"""Build the images of both sides for real, and let them work together: `make test-image`.

The service's is started, probed, ingests and backs up; the device's pulls the bundle from it, and asks.
Needs root, buildah and debootstrap (Debian packages), and some 20 GB. No image registry is used: the base is a
Debian made by debootstrap. pip's own settings of this machine (mirrors, certificates) hold in the build too. The
images are kept under build/image; delete it to build them again.
"""

from __future__ import annotations

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

from testing.processes import serving
from testing.programs import ROOT

PLACE = ROOT / "build" / "image"
BASE = "localhost/memory3/trial-base:bookworm"
IMAGES = {side: f"localhost/memory3/memory-{side}:trial" for side in ("service", "edge")}
SBOM = "/app/python/sbom.cdx.json"
DOCUMENT = '{"key": "mirren", "title": "Lighthouse of Mirren", "text": "height: 47 metres\\nbuilt: 1871"}\n'
QUESTION, EXPECTED = "How high is the lighthouse of Mirren?", "47"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def main() -> int:
    """Build, start, probe, ingest, ask, stop; exit code 1 and the reason when a step fails."""
    missing = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        print("needs root, buildah and debootstrap: apt-get install buildah debootstrap", file=sys.stderr)
        return 1
    try:
        for side, image in IMAGES.items():
            if not _exists(image):
                _base()
                _build(side)
            _say(f"{side}: {_size(image)} unpacked")
        _try()
    except (subprocess.CalledProcessError, RuntimeError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    _say("the service serves, ingests, backs up and stops as it should; the device fetches its bundle and answers")
    return 0


def _say(text: str) -> None:
    print(f"== {text}", flush=True)


def _buildah(*arguments: str | Path) -> list[str]:
    where = ["--root", PLACE / "storage", "--runroot", PLACE / "run", "--storage-driver", "vfs"]
    return [str(a) for a in ("buildah", *where, *arguments)]


def _run(*arguments: str | Path, quiet: bool = False) -> str:
    done = subprocess.run(_buildah(*arguments), stdout=subprocess.PIPE if quiet else None, text=True, check=True)
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
        for left in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/locale", "usr/share/man"):
            shutil.rmtree(Path(folder, left), ignore_errors=True)  # a slim Debian has none of these either
        container = _run("from", "scratch", quiet=True)
        _run("add", "--quiet", container, folder, "/")
        _run("commit", "--quiet", "--rm", container, BASE)


def _build(side: str) -> None:
    _say(f"building the {side}'s image")
    started = time.monotonic()
    _run(
        "build",
        "--isolation",
        "chroot",
        "--pull-never",
        "--build-arg",
        f"BASE={BASE}",
        *_settings_of_pip(),
        "--file",
        ROOT / "deploy" / "images" / f"{side}.Dockerfile",
        "--tag",
        IMAGES[side],
        ROOT,
    )
    _say(f"built in {time.monotonic() - started:.0f} s")


def _settings_of_pip() -> list[str]:
    """Mounts that let pip and apt in the build reach what they reach here."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    values = [line.partition("=")[2].strip("'\"") for line in listed.splitlines()]
    words = [w.removeprefix("file://") for v in values for w in v.split()]
    folders = {"/" + w.split("/")[1] + "/" + w.split("/")[2] for w in words if w.startswith("/") and Path(w).is_dir()}
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
    with _container("service") as service, _container("edge") as edge:
        for container in (service, edge):
            parts = json.loads(_file(container, SBOM).read_text())["components"]
            kinds = [sum(part.get("purl", "").startswith(f"pkg:{kind}/") for part in parts) for kind in ("pypi", "deb")]
            if not all(kinds):
                raise RuntimeError(f"the list of {container}'s parts has {kinds} packages of Python and Debian")
            _say(f"{container} lists {kinds[0]} packages of Python and {kinds[1]} of Debian")
        with _serving(service, address):
            put = f"printf '%s' '{DOCUMENT}' > /tmp/d.jsonl && memory-service ingest /tmp/d.jsonl --address {address}"
            _inside(service, "sh", "-c", put)
            ask = ("edge-client", "ask", QUESTION, "--service", address, "--require-memory")
            _inside(edge, "edge-client", "pull", "--service", address, "--bundle", "/srv/memories/bundle")
            _inside(edge, "edge-client", "doctor", "--service", address)
            for container in (service, edge):
                output = _inside(container, *ask)
                if EXPECTED not in output:
                    raise RuntimeError(f"question {QUESTION!r}, expected {EXPECTED!r}, got: {output}")
            _inside(service, "memory-service", "backup", "default", "/tmp/backup", "--address", address)


@contextlib.contextmanager
def _container(side: str) -> Iterator[str]:
    container = _run("from", "--pull-never", IMAGES[side], quiet=True)
    try:
        yield container
    finally:
        _run("rm", container, quiet=True)


def _inside(container: str, *command: str) -> str:
    """What the command wrote, read from a file: buildah may end before it has passed all of it on."""
    script = ("sh", "-c", '"$@" > /tmp/output 2>&1', "sh", *command)
    code = subprocess.run(_in(container, *script), timeout=300).returncode
    output = _file(container, "/tmp/output").read_text()
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}: {output[-2000:]}")
    print(output, end="")
    return output


def _file(container: str, path: str) -> Path:
    """A file of a container, as this machine sees it."""
    return Path(_run("mount", container, quiet=True) + path)


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
    """Until the service says that it serves: it listens before its model is loaded."""
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the service ended with {process.returncode} before it served")
        if serving(address):
            return
        time.sleep(0.2)
    raise RuntimeError("the service did not serve within two minutes")


if __name__ == "__main__":
    sys.exit(main())
