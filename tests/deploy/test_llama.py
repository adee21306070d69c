from __future__ import annotations

import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from deploy.bench.llama import LlamaCpp, bits_per_weight, make_links
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


def test_links_that_pip_could_not_install_are_made_once_more_without_harm(tmp_path):
    (tmp_path / "libggml.so.0.9").write_text("library")
    (tmp_path / "_symlinks.json").write_text(json.dumps({"libggml.so": "libggml.so.0.9"}))
    for _ in range(2):
        make_links(tmp_path)
        assert os.readlink(tmp_path / "libggml.so") == "libggml.so.0.9"


def test_bits_per_weight_count_the_scales(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    quantised = gguf.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("a", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    assert bits_per_weight(tmp_path / "m.gguf") == 8.5
