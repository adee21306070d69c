"""What ClickHouse as a library does where the server would fail (decision 0073): this test tells when that changes."""

import subprocess
import sys
from pathlib import Path

import pytest

# A file over the limit fails as one on a full disk does; in a process of its own, which the limit stays with.
INSERT = """
import resource, sys
import clickhouse_connect
client = clickhouse_connect.get_client(interface="chdb", path=sys.argv[1])
client.command("CREATE TABLE t (payload String CODEC(NONE)) ENGINE = MergeTree ORDER BY tuple()")
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
client.command("INSERT INTO t SELECT randomString(1000) FROM numbers(5000)")
"""


@pytest.mark.slow
@pytest.mark.xfail(strict=True, reason="chdb 4.4 goes on after a write that failed")
def test_an_insert_whose_file_cannot_be_written_fails(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", INSERT, str(tmp_path / "store")], check=False, capture_output=True)
    assert ran.returncode == 1
