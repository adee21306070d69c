"""When the disk is too full to write, and when there is room again: two thresholds, so that it does not flutter."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from memory_service.ops.logs import logger
from memory_service.ops.metrics import DISK_FREE_BYTES, WRITES_STOPPED

_LOOK_AGAIN_S = 1.0


def free_bytes(folder: Path) -> int:
    """Free space for this process where the folder is."""
    return shutil.disk_usage(folder).free


class DiskWatermark:
    """Writing stops below `stop_bytes` of free space and goes on above twice that. Thread-safe."""

    def __init__(
        self, folder: Path | None, stop_bytes: int,
        free: Callable[[Path], int] = free_bytes, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """folder: of the store; None where a server keeps it, which then watches its own disks."""
        self._folder = folder
        self.stop_bytes = stop_bytes
        self.resume_bytes = 2 * stop_bytes
        self._free = free
        self._clock = clock
        self._lock = threading.Lock()
        self._look_at = clock()
        self._stopped = False

    def look(self) -> bool:
        """Whether writing is stopped; looks at the disk at most once a second."""
        with self._lock:
            if self._folder is None or self._clock() < self._look_at:
                return self._stopped
            self._look_at = self._clock() + _LOOK_AGAIN_S
            try:
                free = self._free(self._folder)
            except OSError:
                return self._stopped  # the store itself will say what is wrong with its folder
            DISK_FREE_BYTES.set(free)
            stopped = free < (self.resume_bytes if self._stopped else self.stop_bytes)
            if stopped != self._stopped:
                logger().warning("writes_stopped" if stopped else "writes_resumed", free_bytes=free)
            self._stopped = stopped
            WRITES_STOPPED.set(stopped)
            return stopped
