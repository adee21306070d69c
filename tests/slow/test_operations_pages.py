"""The commands of docs/operations, typed as they stand, page by page, against the real service and the default model.

A temporary folder stands in for /srv and /etc. Pages that begin with a running service get one, with a knowledge base
`handbook` of one document and a backup of it; `SERVICE_PID` is its process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.kube_tools import tool
from tests.deploy.operations_pages import ROOT, blocks

pytestmark = pytest.mark.slow

BEFORE = """
mkdir -p /srv/memories /srv/backups /etc/memory-service
printf 'height: 47 metres\\nbuilt: 1871\\n' > "Lighthouse of Mirren.md"
memory-service serve --bundle bundle --store chdb:///srv/memories/store & SERVICE_PID=$!
until memory-service kb list; do sleep 1; done
memory-service ingest "Lighthouse of Mirren.md" --kb handbook
memory-service backup handbook /srv/backups/handbook
"""
STARTS_BY_ITSELF = {"install.md"}


@pytest.mark.parametrize("page", ["install.md", "upgrade.md", "scale.md", "backup.md", "keys.md", "runbooks.md"])
def test_the_commands_of_a_page_do_what_it_says(page: str, bundle: Path, tmp_path: Path) -> None:
    for name, target in (("bundle", bundle), ("deploy", ROOT / "deploy"), ("requirements", ROOT / "requirements")):
        (tmp_path / name).symlink_to(target)
    said = [block.text for block in blocks(page) if block.runs]
    assert said
    script = "\n".join([*([] if page in STARTS_BY_ITSELF else [BEFORE]), *said])
    for folder in ("/srv/", "/etc/memory-service"):
        script = script.replace(folder, f"{tmp_path}{folder}")
    log = tmp_path / "output"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment(tmp_path), start_new_session=True,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        code = process.wait(timeout=570)
    finally:
        with contextlib.suppress(ProcessLookupError):  # what the page leaves running
            os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, log.read_text()[-4000:]


def environment(folder: Path) -> dict[str, str]:
    """The programs of this environment, helm and kubectl; an address of its own in place of the default one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ours = ("MEMORY_SERVICE_", "EDGE_CLIENT_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    tool("kubectl")
    return {
        **inherited,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(tool("helm").parent), os.environ["PATH"]]),
        "HOME": str(folder),
        "MEMORY_SERVICE_LISTEN": address,
        "MEMORY_SERVICE_ADDRESS": address,
        "EDGE_CLIENT_SERVICE": address,
    }
