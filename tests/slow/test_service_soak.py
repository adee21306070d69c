"""The soak's last hour in minutes: the service is killed and its disk filled, and keeps what it acknowledged."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.slow.service_soak import Plan, run

MINUTES = float(os.environ.get("MEMORY3_SOAK_MINUTES", "2"))
DISK_MB = {"file": 100, "chdb": 0}  # chdb: decision 0073


def may_mount(folder: Path) -> bool:
    """Whether this user may make a small file system."""
    if os.geteuid() != 0:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        return False
    subprocess.run(["umount", "-l", str(folder)], check=True)
    return True


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 900)
@pytest.mark.parametrize("engine", ["file", "chdb"])
def test_a_service_under_mixed_load_keeps_what_it_acknowledged_through_kills_and_full_disks(
    tmp_path: Path, engine: str
) -> None:
    disk_mb = DISK_MB[engine] if may_mount(tmp_path) else 0
    plan = Plan(engine, MINUTES, backup_minutes=MINUTES / 4, trouble_minutes=MINUTES / 8, disk_mb=disk_mb, keys=300)
    outcome = run(tmp_path, plan)
    print(dict(outcome.happened))
    assert outcome.lost == []
    assert outcome.unexpected == []
    assert outcome.happened["kill"]
    assert outcome.happened["comparison"]
    assert outcome.happened["backup"]
