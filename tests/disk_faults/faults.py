"""What fails in a folder of a process into which `disk_faults.c` is preloaded, and every combination of it."""

import contextlib
import ctypes
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

CALLS = ("open", "read", "write", "sync", "rename")
ERRORS = (errno.ENOSPC, errno.EACCES, errno.EMFILE, errno.EIO, errno.EROFS)
FOREVER = 1 << 30

Case = tuple[str, int, int, int]
"""Call, error, how many succeed before, how many fail."""


class Faults:
    """What fails in a folder."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(None)
        self._folder = str(folder).encode()
        self.failed = 0

    @contextlib.contextmanager
    def of(self, call: str, error: int, after: int, count: int) -> Iterator[None]:
        """Fails calls inside the block."""
        self._library.disk_faults_set(self._folder, call.encode(), error, after, count)
        try:
            yield
        finally:
            self.failed += self._library.disk_faults_failed()
            self._library.disk_faults_set(self._folder, b"", 0, 0, 0)


Situation = Callable[[Path, Faults, Case], None]
"""What is done in a folder while calls fail; raises where the contract is broken."""


def try_all(whole: Path, folder: Path, depth: int, *situations: Situation) -> None:
    """Each situation with each error at the first `depth` calls of each kind, once and for good, in a copy of `whole`.

    Prints a line for each case that breaks the contract, then how many there were and how many calls failed.
    """
    faults, broken, cases = Faults(folder), 0, 0
    for situation in situations:
        for call in CALLS:
            for error in ERRORS:
                for after, count in [(after, count) for after in range(depth) for count in (1, FOREVER)]:
                    shutil.rmtree(folder, ignore_errors=True)
                    shutil.copytree(whole, folder)
                    cases += 1
                    try:
                        situation(folder, faults, (call, error, after, count))
                    except Exception as problem:
                        broken += 1
                        where = f"{situation.__name__} {call} {errno.errorcode[error]} after {after} count {count}"
                        print(f"BROKEN {where}: {type(problem).__name__}: {problem}"[:400])
    print(f"{cases} cases, {faults.failed} failed calls, {broken} broken")
