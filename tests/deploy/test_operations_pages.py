"""The pages of docs/operations: every block says how it was tried, and the others are run, page by page (slow).

They are typed as they stand, against the real service and the default model. A temporary folder stands in for /srv and
/etc. Pages that begin with a running service get one, with a knowledge base `handbook` of one document and a backup of
it; `SERVICE_PID` is its process.
"""

import configparser
import contextlib
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from deploy.kube_tools import tool
from deploy.wheels import WHEELS
from memory_model.catalogue.table import PREFIX
from memory_model.defaults import PACKAGED
from memory_model.models.folder import ModelFolder
from memory_service.settings import Settings
from testing.processes import PROGRAMS
from testing.programs import ROOT

FOLDER = ROOT / "docs" / "operations"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"# (?:run by (?P<by>\S+)|not run here: (?P<why>.+))")


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of all fenced blocks of a page, in its order."""
    return _BLOCK.findall((FOLDER / page).read_text())


def runs(language: str, text: str) -> bool:
    """Whether a block is run as it stands: its first line may say otherwise."""
    return language == "sh" and _REMARK.match(text) is None


WANTED = (
    "README",
    "install",
    "upgrade",
    "scale",
    "backup",
    "keys",
    "runbooks",
    "capacity",
    "promises",
    "trust",
    "stores",
)


def test_every_subject_of_operations_has_its_page() -> None:
    assert {f"{name}.md" for name in WANTED} == set(PAGES)
    index = (FOLDER / "README.md").read_text()
    assert all(f"]({page})" in index for page in PAGES if page != "README.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_how_it_was_tried(page: str) -> None:
    for language, text in blocks(page):
        assert language in ("sh", "ini"), f"{page}: name the language of\n{text}"
        remark = _REMARK.match(text)
        if remark and remark["by"]:
            assert (ROOT / remark["by"]).is_file(), f"{page}: {remark['by']}"
        if runs(language, text):
            assert "kubectl" not in text or "--dry-run=client" in text, f"{page}: there is no cluster to run\n{text}"


@pytest.mark.parametrize("page", PAGES)
def test_what_is_asked_of_a_cluster_names_the_namespace(page: str) -> None:
    """The release is not in the default one: there, a command would find nothing."""
    text = (FOLDER / page).read_text().replace("\\\n", "")
    asked = re.findall(r"(?:^ *|`)((?:helm (?:install|upgrade|test|rollback)|kubectl) [^`\n]+)", text, re.MULTILINE)
    for command in asked:
        if not re.match(r"kubectl (create namespace|apply -f)|.* --dry-run=client", command):
            assert " -n " in command, command


def test_the_unit_of_systemd_can_be_enabled_and_waits_for_calls_under_way() -> None:
    ((_, text),) = [block for block in blocks("install.md") if block[0] == "ini"]
    unit = configparser.ConfigParser()
    unit.read_string(text)
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert unit.getint("Service", "TimeoutStopSec") > Settings.model_fields["shutdown_grace_s"].default


def test_the_page_of_the_installation_installs_what_its_commands_need() -> None:
    page = (FOLDER / "install.md").read_text()
    (install,) = [text for _, text in blocks("install.md") if "pip install torch" in text]
    installed = [wheel for wheel in WHEELS if f"dist/{wheel.name.replace('-', '_')}-*.whl" in install]
    assert f"the {['no', 'one', 'two', 'three', 'four', 'five'][len(WHEELS)]} wheels of a release" in page
    programs = {program for wheel in WHEELS for program in wheel.scripts}
    called = {program for program in programs if re.search(rf"\b{program} \w", page)}
    assert called <= {program for wheel in installed for program in wheel.scripts}
    base = ModelFolder.open(PACKAGED).base
    assert f"memory-model pull {base.removeprefix(PREFIX)}" in install, "`memory-model export` reads it"


BEFORE = """
mkdir -p /srv/memories /srv/backups /etc/memory-service
printf 'height: 47 metres\\nbuilt: 1871\\n' > "Lighthouse of Mirren.md"
memory-service serve --bundle bundle --store file:///srv/memories/store & SERVICE_PID=$!
until memory-service kb list; do sleep 1; done
memory-service ingest "Lighthouse of Mirren.md" --kb handbook
memory-service backup handbook /srv/backups/handbook
"""
STARTS_BY_ITSELF = {"install.md"}


@pytest.mark.slow
@pytest.mark.parametrize("page", ["install.md", "upgrade.md", "scale.md", "backup.md", "keys.md", "runbooks.md"])
def test_the_commands_of_a_page_do_what_it_says(page: str, bundle: Path, tmp_path: Path) -> None:
    for name, target in (("bundle", bundle), ("deploy", ROOT / "deploy"), ("requirements", ROOT / "requirements")):
        (tmp_path / name).symlink_to(target)
    said = [text for language, text in blocks(page) if runs(language, text)]
    assert said
    script = "\n".join([*([] if page in STARTS_BY_ITSELF else [BEFORE]), *said])
    for folder in ("/srv/", "/etc/memory-service"):
        script = script.replace(folder, f"{tmp_path}{folder}")
    log = tmp_path / "output"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment(tmp_path),
            start_new_session=True,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
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
        "PATH": os.pathsep.join([str(PROGRAMS), str(tool("helm").parent), os.environ["PATH"]]),
        "HOME": str(folder),
        "MEMORY_SERVICE_LISTEN": address,
        "MEMORY_SERVICE_ADDRESS": address,
        "EDGE_CLIENT_SERVICE": address,
    }
