"""What the tests of several folders need: the real bundle, exported once while the model's files stay the same."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Where several processes share the cores, the threads of one would spin waiting for a core that another one has.
# Before anything imports torch, which reads it once; processes that tests start take it over.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # And beside others each device would measure its threads anew, for which it opens its decoder three times.
    os.environ.setdefault("EDGE_CLIENT_THREADS", "1")

# The tiny model where none is named, whatever the environment names: before anything of the project is imported.
TINY = "smollm2-135m"
os.environ["MEMORY3_MODEL"] = TINY

# What a developer's device remembers is not read.
os.environ["EDGE_CLIENT_LOCAL"] = str(Path(__file__).resolve().parents[1] / "build" / "local-of-tests")

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them each program that they start and
# send it to; a handler of our own is not passed on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]

# A busy machine is no failure: no test of ours is about time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


LONGEST = ("flow/test_proc", "train/test_tuner", "flow/test_any", "test_pods", "store_conf")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest begin, so that no process is left with one at the end."""
    items.sort(key=lambda item: next((n for n, name in enumerate(LONGEST) if name in item.nodeid), len(LONGEST)))


@pytest.fixture(scope="session")
def bundle() -> Path:
    """The tiny model's real bundle, exported when missing or old; its weights are rounded without calibration."""
    from deploy.default_bundle import ensure

    folder = ROOT / "build" / "bundle-of-tests"
    ensure(folder, TINY, calibrated=False)
    return folder
