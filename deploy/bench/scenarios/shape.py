"""The paper's shape: 2.4 B random weights decoded with and without memories of the paper's size."""

from __future__ import annotations

from deploy.bench import random_memories
from deploy.bench.answering import AnswerSettings
from deploy.bench.decoding import (
    COPY,
    PROMISED,
    copying,
    decoding_keys,
    decoding_sheets,
    measure_modes,
    plot_decoding,
)
from deploy.bench.knowledge import prompts
from deploy.bench.scenario import Keys, Scenario, ScenarioFailed
from deploy.bench.side_process import side_process
from memory_model.bundle import MANIFEST, Bundle

RETRIEVAL = (
    "the weights are random, so no knowledge base can be written with them: a gRPC server in a process of its own"
    " answers with random memories of the shape's size and format, without searching"
)


def measure(settings: AnswerSettings) -> Keys:
    """The keys of bench-decode without its peer."""
    if not (settings.bundle / MANIFEST).is_file():
        raise ScenarioFailed(
            f"no bundle at {settings.bundle}: `make bench-shape` makes it, which takes minutes"
        )
    bundle = Bundle.open(settings.bundle)
    texts = prompts(bundle, settings.rounds + 1, settings.prompt_tokens)
    with (
        side_process(random_memories.serve, settings.bundle) as address,
        settings.open(settings.target or address) as model,
    ):
        samples = measure_modes(model, texts, settings, {COPY: copying(settings.threads)})
        return {**decoding_keys(model, samples, settings), "retrieval": RETRIEVAL}


SCENARIO = Scenario(
    name="shape",
    summary="The paper's shape with random weights: the same as bench-decode.",
    settings=AnswerSettings,
    measure=measure,
    promised=PROMISED,
    sheets=decoding_sheets,
    plot=plot_decoding,
)
