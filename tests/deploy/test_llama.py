from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.llama import LlamaCpp
from deploy.bench.scenario import ScenarioFailed


def program(folder: Path, script: str) -> LlamaCpp:
    (folder / "llama-bench").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "llama-bench").chmod(0o755)
    return LlamaCpp(folder, Path("some.gguf"))


def test_the_seconds_of_one_run_are_taken_from_llama_bench(tmp_path):
    llama = program(tmp_path, 'echo "$@" > "$(dirname "$0")/said"; echo \'[{"avg_ns": 2500000000}]\'')
    assert llama.bench(generate=128, threads=2) == 2.5
    assert (tmp_path / "said").read_text().strip() == "-m some.gguf -t 2 -p 0 -n 128 -r 1 -o json"


@pytest.mark.parametrize(
    ("script", "told"),
    [("echo no such model >&2; exit 3", "exited with 3: no such model"), ("echo '[]'", "gave no figure")],
)
def test_a_peer_that_fails_is_told_and_never_a_figure(tmp_path, script, told):
    with pytest.raises(ScenarioFailed, match=told):
        program(tmp_path, script).bench(generate=1)
