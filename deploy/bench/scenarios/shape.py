"""The paper's shape: 2.4 B random weights decoded with and without the memories that they wrote."""

from __future__ import annotations

from pathlib import Path

from pydantic import field_validator

from deploy.bench.answering import AnswerSettings
from deploy.bench.decoding import (
    COPY,
    DIRECTIONS,
    PROMISED,
    copying,
    decoding_keys,
    decoding_sheets,
    measure_modes,
)
from deploy.bench.knowledge import prompts, service_for
from deploy.bench.machine import ROOT
from deploy.bench.scenario import Keys, Scenario, ScenarioFailed
from memory_model.bundle import MANIFEST, Bundle

RETRIEVAL = (
    "the weights are random: what they write and say means nothing, what it costs to find and read is real"
)


class ShapeSettings(AnswerSettings):
    """model: folder of the model that the service writes memories with, relative to the repository."""

    rounds: int = 5
    bundle: Path = Path("build/real-size/memory3-2b-bundle")
    model: Path = Path("build/real-size/memory3-2b")

    @field_validator("model")
    @classmethod
    def _in_the_repository(cls, path: Path) -> Path:
        return path if path.is_absolute() else ROOT / path


def measure(settings: ShapeSettings) -> Keys:
    """The keys of bench-decode without its peer."""
    if not (settings.bundle / MANIFEST).is_file():
        raise ScenarioFailed(
            f"no bundle at {settings.bundle}: `make real-size` makes it, the first time in an hour"
        )
    bundle = Bundle.open(settings.bundle)
    texts = prompts(bundle, settings.rounds + 1, settings.prompt_tokens)
    with service_for(settings, bundle, settings.model) as address, settings.open(address) as model:
        samples = measure_modes(model, texts, settings, {COPY: copying(settings.threads)})
        return {**decoding_keys(model, samples, settings), "retrieval": RETRIEVAL}


SCENARIO = Scenario(
    name="shape",
    summary="The paper's shape with random weights: the same as bench-decode.",
    settings=ShapeSettings,
    measure=measure,
    promised=PROMISED,
    directions=DIRECTIONS,
    sheets=decoding_sheets,
    quick={"rounds": 1, "warm_up": 0, "answer_tokens": 72},  # just more than a chunk
)
