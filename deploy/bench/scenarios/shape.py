"""The paper's shape: 2.4 B random weights decoded with and without the memories that they wrote."""

from __future__ import annotations

from pathlib import Path

from deploy.bench.answers.answering import AnswerSettings
from deploy.bench.answers.decoding import decoding_sheets, measure_decoding
from deploy.bench.scenario import Keys, Scenario, ScenarioFailed
from memory3.files.bundle import MANIFEST


class ShapeSettings(AnswerSettings):
    """model: folder of the model that the service writes memories with, relative to the repository."""

    rounds: int = 5
    bundle: Path = Path("build/real-size/memory3-2b-bundle")
    model: Path = Path("build/real-size/memory3-2b")


def measure(settings: ShapeSettings) -> Keys:
    """The keys of bench-decode without its peer."""
    if not (settings.bundle / MANIFEST).is_file():
        raise ScenarioFailed(f"no bundle at {settings.bundle}: `make bench-shape` makes it")
    keys, _ = measure_decoding(settings, model=settings.model)
    return keys


SCENARIO = Scenario(
    name="shape",
    of_model=False,
    summary="The paper's shape with random weights: the text is meaningless, the costs are real.",
    settings=ShapeSettings,
    measure=measure,
    sheets=decoding_sheets,
    quick={"rounds": 1, "warm_up": 0, "answer_tokens": 72},  # just more than a chunk
)
