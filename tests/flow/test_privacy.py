"""Nothing leaves the device: no entry point looks up a name, calls another machine or writes outside its own folders.

Each runs as a process of its own with an empty home, and `strace` records what it asks the kernel for.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
from reportlab.pdfgen.canvas import Canvas

from memory3 import telemetry
from testing.processes import PROGRAMS
from testing.programs import ROOT
from tests.memory3.formats import office_files

TRACED = "connect,sendto,sendmsg,sendmmsg,openat,creat,mkdir,mkdirat,rename,renameat,renameat2"
NETWORK = re.compile(r"sa_family=AF_INET6?, sin6?_port=htons\((\d+)\).*?\"([0-9a-f.:]+)\"")
CREATED = re.compile(
    r"(?:openat\([^,]+, \"([^\"]+)\", [^)]*O_CREAT[^)]*|creat\(\"([^\"]+)\".*|mkdir\(\"([^\"]+)\".*)\) = \d"
)
NAME_SERVER_SOCKETS = ("nscd/socket", "systemd/resolve", "resolve1")
"""Sockets of this machine's own resolvers."""


def traceable() -> bool:
    """Whether strace is installed and may trace here."""
    strace = shutil.which("strace")
    return (
        strace is not None and subprocess.run([strace, "-f", "true"], capture_output=True, check=False).returncode == 0
    )


SLOW = pytest.mark.slow
needs_strace = pytest.mark.skipif(not traceable(), reason="needs strace, and a kernel that lets it trace")


class Recorded:
    """An empty folder with a home, in which programs run under strace."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trace = folder, folder / "trace"
        self.own_folders = [folder]
        for name in ("home", "tmp", "work"):
            (folder / name).mkdir()

    @property
    def environment(self) -> dict[str, str]:
        """Without any switch or setting of the machine that runs the test."""
        ours = ("EDGE_CLIENT_", "MEMORY_SERVICE_", "XDG_", "PYTEST_", "http_", "https_")
        kept = {k: v for k, v in os.environ.items() if k not in telemetry.OFF and not k.startswith(ours)}
        own = {"HOME": "home", "TMPDIR": "tmp"}
        return {**kept, **{k: str(self.folder / v) for k, v in own.items()}, "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *command: object, traced: bool = True) -> subprocess.Popen[str]:
        strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "200", "-e", f"trace={TRACED}", "-o", str(self.trace)]
        return subprocess.Popen(
            [*(strace if traced else ()), *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder / "work",
            env=self.environment,
        )

    def run(self, *command: object) -> str:
        process = self.start(*command)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        return output

    def calls(self) -> list[str]:
        """Addresses of other machines, and of resolvers, that were called."""
        found = []
        for line in self.trace.read_text(errors="replace").splitlines():
            for port, address in NETWORK.findall(line):
                if port == "53" or not (address.startswith("127.") or address in ("::1", "0.0.0.0", "::")):
                    found.append(f"{address}:{port}")
            if "AF_UNIX" in line and any(name in line for name in NAME_SERVER_SOCKETS) and ") = 0" in line:
                found.append(line)
        return found

    def writes(self) -> list[str]:
        """Files and folders outside the folder of this run that were created."""
        names = [next(filter(None, m.groups())) for m in CREATED.finditer(self.trace.read_text(errors="replace"))]
        allowed = (*map(str, self.own_folders), "/dev/", "/proc/", "/sys/")
        return sorted({name for name in names if name.startswith("/") and not name.startswith(allowed)})

    def home(self) -> list[str]:
        """Files in the home."""
        home = self.folder / "home"
        return sorted(str(file.relative_to(home)) for file in home.rglob("*") if file.is_file())

    def require_nothing(self, own: Sequence[str] = ()) -> None:
        """own: beginnings of paths in the home where the program may write."""
        assert self.calls() == []
        assert self.writes() == []
        assert [name for name in self.home() if not name.startswith(tuple(own))] == []


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


@pytest.fixture
def recorded_device(recorded: Recorded, bundle: Path) -> Recorded:
    """Its programs may write into the cache of the bundle, which the first to open it makes."""
    recorded.own_folders.append(bundle / "cache")
    return recorded


OWN = (".cache/memory3-edge/", ".local/state/memory3-edge/", ".local/share/memory3-edge/", ".config/memory3-edge/")
IMPORT_ALL = """
import importlib, pathlib, sys
for file in sorted(pathlib.Path("{root}", "{package}").rglob("*.py")):
    name = ".".join(file.relative_to("{root}").with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            print("not installed:", error.name)
if "{package}" in ("edge_client", "memory3"):
    assert "onnxruntime" in sys.modules
"""


@needs_strace
@pytest.mark.parametrize(
    "package",
    [
        "memory3",
        "edge_client",
        "memory_service",
        *(pytest.param(p, marks=SLOW) for p in ("memory_model", "deploy", "testing")),
    ],
)
def test_importing_every_module_of_a_package_reports_nothing(package: str, recorded: Recorded) -> None:
    recorded.run(sys.executable, "-c", IMPORT_ALL.format(root=ROOT, package=package))
    recorded.require_nothing(own=(".cache/matplotlib/", ".config/matplotlib/"))


SDK = """
from edge_client import EdgeModel
with EdgeModel.open({bundle!r}, offline=True, local="local") as model:
    model.remember("Password: kite-55", key="a", title="Router")
    print(model.ask("What is the password of the router?", max_tokens=2).text)
"""


@SLOW
@needs_strace
def test_the_sdk_remembers_and_answers_without_a_look_up(recorded_device: Recorded, bundle: Path) -> None:
    recorded_device.run(sys.executable, "-c", SDK.format(bundle=str(bundle)))
    recorded_device.require_nothing(own=OWN)


@SLOW
@needs_strace
def test_the_command_line_remembers_and_answers_without_a_look_up(recorded_device: Recorded, bundle: Path) -> None:
    (recorded_device.folder / "work" / "note.md").write_text("# Router\n\nPassword: kite-55\n")
    options = ("--bundle", bundle, "--local", "local")
    recorded_device.run(PROGRAMS / "edge-client", "remember", "note.md", *options)
    recorded_device.require_nothing(own=OWN)
    recorded_device.run(PROGRAMS / "edge-client", "ask", "The password?", "--offline", "--max-tokens", 2, *options)
    recorded_device.require_nothing(own=OWN)


READ_ALL = """
from pathlib import Path
from memory3.formats import KINDS, find_sources, read_documents
for source in find_sources([Path("files")]):
    for document in read_documents(source):
        assert not document.unreadable, document.unreadable
        assert "kite-55" in document.text, source
"""


@needs_strace
def test_reading_documents_looks_up_nothing_and_keeps_no_copy(recorded: Recorded) -> None:
    files = recorded.folder / "work" / "files"
    files.mkdir()
    fact, rows = "Password: kite-55", [("Router", "Password"), ("Lyra", "kite-55")]
    for suffix in ("txt", "md", "html", "tex", "py", "log", "yaml"):
        (files / f"a.{suffix}").write_text(fact)
    (files / "a.eml").write_text(f"Subject: Router\n\n{fact}\n")
    (files / "a.rtf").write_text(rf"{{\rtf1 {fact}\par}}")
    office_files.write_docx(files / "a.docx", fact)
    office_files.write_xlsx(files / "a.xlsx", {"Routers": rows})
    office_files.write_pptx(files / "a.pptx", ("Router", fact, ""))
    office_files.write_odt(files / "a.odt", "Router", fact, rows)
    office_files.write_epub(files / "a.epub", "Router", f"<p>{fact}</p>")
    pdf = Canvas(str(files / "a.pdf"))
    pdf.drawString(72, 700, fact)
    pdf.save()
    recorded.run(sys.executable, "-c", READ_ALL)
    recorded.require_nothing(own=OWN)


def served(recorded: Recorded, seconds: float, *command: object, health: bool = False) -> None:
    """Runs a server until it has served for so long, and ends it."""
    port_file = recorded.folder / "port"
    process = recorded.start(*command, "--port-file", port_file)
    deadline = time.monotonic() + 200
    while not port_file.is_file() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        if health:
            with urllib.request.urlopen(f"http://127.0.0.1:{port_file.read_text()}/health", timeout=60) as answer:
                assert answer.status == 200
        time.sleep(seconds)
    finally:
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        os.kill(child, signal.SIGTERM)
        process.communicate(timeout=60)


@needs_strace
@pytest.mark.parametrize("seconds", [0.0, pytest.param(130.0, marks=SLOW)])
def test_the_local_server_serves_without_a_look_up(recorded_device: Recorded, bundle: Path, seconds: float) -> None:
    options = ("--offline", "--bundle", bundle, "--local", "local", "--port", 0)
    served(recorded_device, seconds, PROGRAMS / "edge-client", "serve", *options, health=True)
    recorded_device.require_nothing(own=OWN)


@SLOW
@needs_strace
@pytest.mark.parametrize("store", ["file", "chdb"])
def test_the_service_serves_without_a_look_up(recorded_device: Recorded, bundle: Path, store: str) -> None:
    where = f"{store}://{recorded_device.folder}/store"
    options = ("--listen", "127.0.0.1:0", "--store", where, "--bundle", bundle)
    served(recorded_device, 0.0, PROGRAMS / "memory-service", "serve", *options)
    recorded_device.require_nothing(own=OWN)


def test_a_program_that_imported_the_runtime_first_is_warned(recorded: Recorded) -> None:
    code = "import onnxruntime, memory3.runtime.embedder"
    warned, _ = recorded.start(sys.executable, "-c", code, traced=False).communicate(timeout=120)
    assert "RuntimeWarning: onnxruntime was imported before memory3" in warned
    code = "import memory3, onnxruntime, memory3.runtime.embedder"
    silent, _ = recorded.start(sys.executable, "-c", code, traced=False).communicate(timeout=120)
    assert silent == ""


def test_a_switch_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    telemetry.turn_off()
    assert (os.environ["RAY_USAGE_STATS_ENABLED"], os.environ["ORT_DISABLE_TELEMETRY"]) == ("1", "1")
