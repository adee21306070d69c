"""Where backups are: a folder or S3-compatible storage, with any number of them side by side.

    20261128T121500.123Z-1c5f.memories   a knowledge base (`memory3.files.knowledge_file`)
    20261128T121500.123Z-1c5f.json       written last: what is in it, and its SHA-256; without it there is no backup

A backup is written next to the older ones, which are removed once it is complete. Several runs may do so at once: the
four digits tell their files apart, and what has no record yet is another run's for an hour, then a killed one's.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store
from pydantic import BaseModel, ConfigDict, ValidationError

from memory3.digest import file_sha256
from memory3.errors import CorruptFile, InvalidInput, Memory3Error, MissingFile, shortened
from memory_service.errors import StoreUnavailable

FILE_4, CHECKSUM_4 = "backup.sqlite3", "backup.sha256"
"""Of releases that had one backup in a folder."""
_STAGING = ".backup-"
_NAME = re.compile(r"(\d{8}T\d{6}\.\d{3}Z)(?:-[0-9a-f]{4})?\.(memories|json)")
_STAMP = "%Y%m%dT%H%M%S.%f"
_UNDER_WAY = timedelta(hours=1)
"""The record follows its file at once, after what an upload takes to be confirmed."""
_NAME_PARTS = 2
"""Of a knowledge base's name, where a tenant's comes before it: as many folders are below each other."""
_LOOKS = 3
"""At what is listed, before its files count as missing."""


class Backup(BaseModel):
    """What is known of a backup without reading it. unwritten_documents: those whose memories were not written."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    file: str
    sha256: str
    made_at: datetime
    bytes: int = 0
    knowledge_base: str = ""
    documents: int = 0
    memories: int = 0
    unwritten_documents: int = 0

    @property
    def age_h(self) -> float:
        """Hours since it was made."""
        return (datetime.now(timezone.utc) - self.made_at).total_seconds() / 3600


class _Record(BaseModel):
    """The file that says that a backup is complete. sha256: of `backup` as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backup: Backup
    sha256: str


class Archive:
    """Backups of one knowledge base. Methods raise StoreUnavailable if the location cannot be used."""

    def __init__(self, location: str, *, create: bool = True) -> None:
        """location: a folder, or s3://bucket/prefix (endpoint, region, credentials: AWS_… variables).

        create: the folder may be missing; the first backup makes it. Raises InvalidInput, MissingFile.
        """
        self.location = location
        kind, separator, _ = location.partition("://")
        if separator and kind != "s3":
            raise InvalidInput(
                f"{shortened(location)!r} is no location for a backup: expected a folder or s3://bucket/prefix"
            )
        self._bucket: Any = _bucket(location) if separator else None
        self._folder = None if separator else Path(location).absolute()
        if self._folder is not None and not self._folder.is_dir():
            if not create:
                raise MissingFile(f"there is no backup at {location}: it is no folder")
            if self._folder.exists():
                raise _unusable(location, "it is no folder")

    @functools.cached_property
    def _store(self) -> Any:
        """What holds the files; a folder must be there."""
        return self._bucket or LocalStore(self._folder)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Memory3Error:  # says what is wrong itself; a missing file of somebody else's is no missing backup
            raise
        except FileNotFoundError:
            raise MissingFile(f"there is no whole backup at {self.location}") from None
        except (BaseError, OSError, sqlite3.Error) as error:
            raise StoreUnavailable(f"{self.location} cannot be used: {_first_line(error)}") from error

    # What is there

    def files(self) -> list[str]:
        """Of the complete backups, oldest first."""
        with self._errors():
            return _complete(self._names())

    def backup(self, stamp: str = "") -> Backup:
        """The newest, or the one whose file begins with `stamp`. Raises MissingFile, CorruptFile."""
        for _ in range(_LOOKS):
            found = [name for name in self.files() if name.startswith(stamp)]
            if not found:
                break
            with contextlib.suppress(MissingFile):  # removed since it was listed, for a newer one
                return self.read(found[-1])
        what = f"no backup {shortened(stamp)!r}" if stamp else "no whole backup"
        raise MissingFile(f"there is {what} at {self.location}")

    def backups(self) -> tuple[list[Backup], list[CorruptFile]]:
        """The complete ones, oldest first, and what is wrong with the records of others."""
        found, damaged = list[Backup](), list[CorruptFile]()
        for file in self.files():
            try:
                found.append(self.read(file))
            except CorruptFile as error:
                damaged.append(error)
            except MissingFile:  # removed since it was listed
                continue
        return found, damaged

    def read(self, file: str) -> Backup:
        """One of `files`, by its record alone. Raises MissingFile, CorruptFile."""
        with self._errors():
            raw = bytes(self._store.get(_record_of(file)).bytes())
            if file == FILE_4:
                head, sha256 = self._store.head(file), raw.decode(errors="replace").strip()
                return Backup(file=file, sha256=sha256, made_at=head["last_modified"], bytes=head["size"])
        try:
            record = _Record.model_validate_json(raw)
        except ValidationError:
            record = None
        if record is None or record.sha256 != _hash(record.backup) or record.backup.file != file:
            raise CorruptFile(f"{_record_of(file)} at {self.location} is not what was written: take another backup")
        return record.backup

    def require_of(self, name: str) -> None:
        """Raises InvalidInput where the newest backup that can be read is another knowledge base's."""
        for file in reversed(self.files()):
            with contextlib.suppress(CorruptFile, MissingFile):
                found = self.read(file).knowledge_base
                if found not in ("", name):  # earlier releases noted none
                    raise InvalidInput(
                        f"{self.location} has backups of {found!r}, which those of {name!r} would replace: name"
                        " another folder or prefix"
                    )
                return

    def with_those_below(self) -> list[Archive]:
        """This one and those of its folders that have backups, as `backup '*'` makes them: by name, or tenant and name.

        Each is at the location of this one, followed by the name.
        """
        with self._errors():
            return [one for one in self._and_below(_NAME_PARTS) if one.files()]

    def _and_below(self, levels: int) -> Iterator[Archive]:
        yield self
        if levels and (self._folder is None or self._folder.is_dir()):
            for prefix in sorted(self._store.list_with_delimiter()["common_prefixes"]):
                name = str(prefix).rstrip("/").rpartition("/")[2]
                yield from Archive(f"{self.location.rstrip('/')}/{name}")._and_below(levels - 1)

    def _names(self) -> set[str]:
        """Of files of backups, complete or not."""
        if self._folder is not None and not self._folder.is_dir():
            return set()
        found = self._store.list_with_delimiter()["objects"]
        names = {str(one["path"]).rpartition("/")[2] for one in found}
        return {name for name in names if _NAME.fullmatch(name) or name in (FILE_4, CHECKSUM_4)}

    # One more

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty folder for the file of a new backup; what killed runs left is removed.

        The archive's own folder is made for it, and goes again where no backup came into it.
        """
        parent = self._folder or Path(tempfile.gettempdir())
        with self._errors(), _made(parent), _staging(parent) as folder:
            yield folder

    def add(self, path: Path, **known: Any) -> Backup:
        """Puts a staged file next to the older backups; complete when it returns. known: values of Backup."""
        with self._errors():
            names, made_at = self._names(), datetime.now(timezone.utc)
            for name in names:
                without_record = name.endswith(".memories") and _record_of(name) not in names
                if without_record and (stamped := _time_of(name)) and made_at - stamped > _UNDER_WAY:
                    self._remove(name)
            file = f"{_stamp_after(names, made_at)}-{secrets.token_hex(2)}.memories"
            size = path.stat().st_size
            backup = Backup(file=file, sha256=file_sha256(path), made_at=made_at, bytes=size, **known)
            record = _Record(backup=backup, sha256=_hash(backup))
            try:
                self._put(path, file)
                self._store.put(_record_of(file), record.model_dump_json(indent=1).encode())
            except BaseException:
                self._remove(file)
                raise
            if self._folder is not None:
                os.sync()
        return backup

    def _put(self, path: Path, file: str) -> None:
        """The staged file by its name; raises StoreUnavailable where less than it arrives."""
        size = path.stat().st_size
        if self._folder is None:
            self._store.put(file, path)
        else:
            with path.open("rb") as staged:
                os.fsync(staged.fileno())
            path.replace(self._folder / file)
        if self._store.head(file)["size"] != size:
            raise StoreUnavailable(f"{file} at {self.location} is not as long as what was sent: back up again")

    def _remove(self, name: str) -> None:
        """Of a file that another run may remove as well."""
        with contextlib.suppress(FileNotFoundError):
            self._store.delete(name)

    def prune(self, keep: int) -> list[str]:
        """Removes all but the newest `keep` (at least one); returns the names of those that went."""
        with self._errors():
            gone = _complete(self._names())[: -max(keep, 1)]
            for name in gone:
                self._remove(_record_of(name))  # first: what has none is no backup
                self._remove(name)
        return gone

    @contextlib.contextmanager
    def verified(self, backup: Backup) -> Iterator[Path]:
        """The file of a backup. Raises MissingFile, CorruptFile."""
        with tempfile.TemporaryDirectory(prefix="memory-restore-") as folder:
            with self._errors():
                path = self._local_file(backup, Path(folder))
                found = file_sha256(path)
            if found != backup.sha256:
                raise CorruptFile(f"{backup.file} at {self.location} is not what was written: take another backup")
            yield path

    def _local_file(self, backup: Backup, folder: Path) -> Path:
        """The file of a backup where it is, or a copy of it in `folder` if backups are in a bucket."""
        if self._folder is not None:
            return self._folder / backup.file
        path = folder / backup.file
        with path.open("wb") as file:
            for piece in self._store.get(backup.file).stream():
                file.write(piece)
        return path


def _complete(names: set[str]) -> list[str]:
    """The files that have a record, oldest first."""
    files = sorted(name for name in names if name.endswith(".memories") and _record_of(name) in names)
    return [FILE_4, *files] if {FILE_4, CHECKSUM_4} <= names else files


def _record_of(name: str) -> str:
    return CHECKSUM_4 if name == FILE_4 else name.replace(".memories", ".json")


def _hash(backup: Backup) -> str:
    return hashlib.sha256(backup.model_dump_json().encode()).hexdigest()


def _stamp_after(names: set[str], now: datetime) -> str:
    """How the name of a new backup begins: it comes after all that are there, also those of a clock that was ahead."""
    for stamped in filter(None, map(_time_of, names)):
        now = max(now, stamped + timedelta(milliseconds=1))
    return f"{now.strftime(_STAMP)[:-3]}Z"


def _time_of(name: str) -> datetime | None:
    """What a name says; None for one of earlier releases."""
    match = _NAME.fullmatch(name)
    return datetime.strptime(match[1].rstrip("Z"), _STAMP).replace(tzinfo=timezone.utc) if match else None


def _bucket(location: str) -> S3Store:
    """What holds the files at s3://bucket/prefix; raises InvalidInput."""
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    try:
        return S3Store.from_url(location, client_options={"allow_http": plain})
    except (BaseError, OSError, ValueError) as error:
        raise _unusable(location, _first_line(error)) from error


def _unusable(location: str, why: str) -> InvalidInput:
    return InvalidInput(f"{shortened(location)!r} cannot be used for a backup: {why}")


def _first_line(error: Exception) -> str:
    """Of errors that go on with what they are made of."""
    return str(error).partition("\n")[0]


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder with its parents; those that are new and empty after the block are removed. Raises InvalidInput."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(str(folder), error.strerror or str(error)) from error
    try:
        yield
    finally:
        for one in new:
            with contextlib.suppress(OSError):
                one.rmdir()


@contextlib.contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """A new folder, locked while the block runs; folders there that nobody holds are removed."""
    for left in parent.glob(f"{_STAGING}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_STAGING, dir=parent))
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(_locked(folder))
            except OSError:  # another run took it for one that was left
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError where another process holds it or it is gone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise FileNotFoundError(str(folder))
        yield
    finally:
        os.close(descriptor)
