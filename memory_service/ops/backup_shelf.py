"""Where a backup lies: files of a folder, or objects in S3-compatible storage. A file is there whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from memory_model.errors import InvalidInput, MissingFile
from memory_service.errors import StoreFull, StoreUnavailable

_DISK_FULL = 28


class Shelf(ABC):
    """Named files of one backup. Every method may raise StoreUnavailable."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Writes a file, durable when it returns; an older one of the name is replaced."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """The file; None where there is none."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes the file if it is there."""

    def fetch(self, name: str) -> bytes:
        """The file; raises MissingFile."""
        data = self.get(name)
        if data is None:
            raise MissingFile(f"the backup at {self} has no file {name}")
        return data


class FolderShelf(Shelf):
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def put(self, name: str, data: bytes) -> None:
        """See Shelf."""
        path = self._folder / name
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            kind = StoreFull if error.errno == _DISK_FULL else StoreUnavailable
            raise kind(f"{path} cannot be written: {error.strerror}") from error

    def get(self, name: str) -> bytes | None:
        """See Shelf."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailable(f"{self._folder / name} cannot be read: {error.strerror}") from error

    def remove(self, name: str) -> None:
        """See Shelf."""
        (self._folder / name).unlink(missing_ok=True)


class S3Shelf(Shelf):
    """Objects under a prefix; endpoint, region and credentials as boto3 finds them (AWS_ENDPOINT_URL, …)."""

    def __init__(self, bucket: str, prefix: str) -> None:
        """Raises InvalidInput where boto3 is missing."""
        try:
            import boto3
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise InvalidInput("s3:// needs boto3: pip install 'memory3-service[s3]'") from error
        self._bucket, self._prefix = bucket, prefix.strip("/")
        self._errors: tuple[type[Exception], ...] = (BotoCoreError, ClientError)
        try:
            self._client: Any = boto3.client("s3")
        except self._errors as error:
            raise InvalidInput(f"no S3 client can be made: {error}") from error

    def __str__(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def put(self, name: str, data: bytes) -> None:
        """See Shelf; the storage compares the checksum before it answers."""
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        try:
            self._client.put_object(
                Bucket=self._bucket, Key=self._key(name), Body=data, ChecksumSHA256=checksum
            )
        except self._errors as error:
            raise StoreUnavailable(f"{self}/{name} cannot be written: {error}") from error

    def get(self, name: str) -> bytes | None:
        """See Shelf."""
        try:
            body: bytes = self._client.get_object(Bucket=self._bucket, Key=self._key(name))["Body"].read()
            return body
        except self._errors as error:
            if getattr(error, "response", {}).get("Error", {}).get("Code") == "NoSuchKey":
                return None
            raise StoreUnavailable(f"{self}/{name} cannot be read: {error}") from error

    def remove(self, name: str) -> None:
        """See Shelf."""
        try:
            self._client.delete_object(Bucket=self._bucket, Key=self._key(name))
        except self._errors as error:
            raise StoreUnavailable(f"{self}/{name} cannot be removed: {error}") from error


def open_shelf(place: str) -> Shelf:
    """The shelf at a folder's path or s3://bucket/prefix; raises InvalidInput for anything else."""
    parts = urlsplit(place)
    if parts.scheme == "s3" and parts.netloc:
        return S3Shelf(parts.netloc, parts.path)
    if "://" in place:
        raise InvalidInput(f"{place!r} is no place for a backup: expected a folder or s3://bucket/prefix")
    return FolderShelf(Path(place))
