"""What must hold for every tracked file: no trace of one machine, and the targets that the documents promise."""

import re
import subprocess
from pathlib import Path

import tomllib
import yaml

from edge_client.decoder.providers.nvidia import INSTALL
from testing.programs import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A download address of a package registry, in whatever file: installs must follow the user's own settings.
REGISTRY = r"https?://[^ \"'<>]*(/simple\b|/packages/|\.whl\b|\.tgz\b|\.deb\b)|--(extra-)?index-url|--find-links"
# A home or work folder of somebody's machine.
MACHINE_PATH = r"(?<![\w.$}/-])/(home|root|work|Users|opt|mnt)/\w"


def findings(pattern: str, *paths: str) -> str:
    """What `git grep` finds in tracked text files but this one."""
    here = Path(__file__).resolve().relative_to(ROOT)
    command = ["git", "grep", "-nIP", pattern, "--", *(paths or (".",)), f":!{here}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode < 2, done.stderr
    return done.stdout


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_no_tracked_file_names_a_registry() -> None:
    # What others published stays as they did it; a licence's address has a folder "packages" in it.
    assert findings(REGISTRY, ".", ":!**/vendor/**") == ""


def test_no_tracked_file_names_a_folder_of_one_machine() -> None:
    assert findings(MACHINE_PATH) == ""


def test_every_make_command_in_the_documents_exists() -> None:
    targets = makefile_targets()
    assert {"setup", "demo", "test", "lint"} <= targets
    for document in DOCUMENTS:
        for target in re.findall(r"(?:`|^\s*|\$ )make ([a-z][a-z-]*)", document.read_text(), flags=re.MULTILINE):
            assert target in targets, f"{document.relative_to(ROOT)} tells to run `make {target}`"


def test_the_forge_runs_ci_and_nightly_all_that_ci_leaves_out() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = {name: " ; ".join(step.get("run", "") for step in job["steps"]) for name, job in jobs.items()}
    assert "bash .ci/run" in commands["ci"]
    targets = set(re.findall(r"make ([a-z-]+)", commands["nightly"]))
    assert {"test-slow", "test-browser", "test-alerts"} <= targets <= makefile_targets()


def test_torch_is_pinned_alike_wherever_it_is_named() -> None:
    pins = {
        name: set(re.findall(r"^\W*torch(==[^\s\"',]+)", (ROOT / name).read_text(), flags=re.MULTILINE))
        for name in ("pyproject.toml", "constraints.txt", "requirements/torch.txt")
    }
    assert len({frozenset(found) for found in pins.values()}) == 1, pins
    assert all(len(found) == 1 for found in pins.values()), pins


def test_the_runtime_of_the_extras_is_the_command_s_and_of_their_cuda() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    runtimes = {r for name in ("edge-gpu", "edge-tensorrt") for r in extras[name] if r.startswith("onnxruntime-gpu")}
    (limit,) = {re.search(r"<[\d.]+", requirement)[0] for requirement in runtimes}  # type: ignore[index]
    # Packages for CUDA 12 end with 1.26; `--force-reinstall` without a limit would take CUDA 13's.
    assert limit == "<1.27"
    assert any(r.startswith("tensorrt-cu12-libs") for r in extras["edge-tensorrt"])
    for text in (INSTALL, (ROOT / "docs" / "edge-guide.md").read_text()):
        assert re.findall(r"--no-deps \S*onnxruntime-gpu(<[\d.]+)?", text) == [limit]
