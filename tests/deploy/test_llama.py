from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.llama import LlamaCpp
from deploy.bench.scenario import ScenarioFailed

BENCH = """#!/bin/sh
echo "$@" > "$(dirname "$0")/said"
echo '[{"avg_ns": 2500000000}]'
"""


def program(folder: Path, text: str) -> LlamaCpp:
    path = folder / "llama-bench"
    path.write_text(text)
    path.chmod(0o755)
    return LlamaCpp(folder, Path("some.gguf"))


def test_the_seconds_of_one_run_are_taken_from_llama_bench(tmp_path):
    llama = program(tmp_path, BENCH)
    assert llama.bench(generate=128, threads=2) == 2.5
    assert (tmp_path / "said").read_text().strip() == "-m some.gguf -t 2 -p 0 -n 128 -r 1 -o json"
    llama.bench(prompt=768, generate=128, together=True)
    assert "-p 0 -n 0 -pg 768,128" in (tmp_path / "said").read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("#!/bin/sh\necho no such model >&2; exit 3\n", "exited with 3: no such model"),
        ("#!/bin/sh\necho nonsense\n", "gave no figure"),
        ("#!/bin/sh\necho '[]'\n", "gave no figure"),
    ],
)
def test_a_peer_that_fails_is_told_and_never_a_figure(tmp_path, text, told):
    with pytest.raises(ScenarioFailed, match=told):
        program(tmp_path, text).bench(generate=1)
