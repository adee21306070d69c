"""A device refuses by its bundle's probe, whichever way it answers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_client.model import EdgeModel
from memory3.codec.payload import ExplicitMemory
from memory3.errors import ModelMismatch
from memory3.files.bundle import Bundle
from memory3.runtime.answerability import AnswerabilityProbe, query_width
from memory3.text.refusal import SENTENCE
from tests.edge_client.conftest import towns
from tests.edge_client.fake_service import serving
from tests.edge_client.tiny_bundle import edit_manifest, probed, tiny_bundle, tiny_config


@pytest.fixture(scope="module")
def probed_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    weights = np.random.default_rng(0).standard_normal(query_width(tiny_config())).astype(np.float32)

    def made(offset: float, **leans: float) -> Bundle:
        return tiny_bundle(tmp_path_factory.mktemp("probed"), loaded=probed(offset, weights, leans))

    return made


def test_a_device_adds_what_the_probe_says_of_the_prompts_last_token(
    probed_bundle: Callable[..., Bundle], written: list[ExplicitMemory]
) -> None:
    """With citations, which record queries themselves, and without; also where no memory is read."""
    bundle = probed_bundle(0)
    offsets, asked, read, own = [], list[np.ndarray](), list[int](), AnswerabilityProbe.biases

    def watched(probe: AnswerabilityProbe, queries: np.ndarray, memories: int) -> np.ndarray:
        asked.append(queries)
        read.append(memories)
        return own(probe, queries, memories)

    with serving(towns(bundle, written)) as service:
        for citations in (False, True):
            with EdgeModel.open(bundle.folder, service.address, memory="exact", deadline_s=20) as model:
                asked.clear()
                read.clear()
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(AnswerabilityProbe, "biases", watched)
                    said = model.ask("What is the code of Lima?", max_tokens=3, citations=citations)
                    assert len(asked) == 1, "once an answer"
                    model.ask("What is the code of Lima?", max_tokens=3, memory="off")
                    assert read == [5, 0]
                assert said.memories
                assert np.abs(asked[0]).max() > 0
                assert bundle.probe is not None
                offsets.append(float(own(bundle.probe, asked[0], 5)))
    assert offsets[0] == pytest.approx(offsets[1], abs=1e-4)


@pytest.mark.parametrize(
    ("offset", "leans", "refuses"),
    [(90.0, {}, True), (-90.0, {}, False), (90.0, {"float32": 180.0}, False), (90.0, {"int4": 180.0}, True)],
)
def test_a_device_refuses_as_its_probe_says(
    offset: float,
    leans: dict[str, float],
    refuses: bool,
    probed_bundle: Callable[..., Bundle],
    written: list[ExplicitMemory],
) -> None:
    """Less what the weights of its precision, float32 here, lean to a refusal."""
    bundle = probed_bundle(offset, **leans)
    with (
        serving(towns(bundle, written)) as service,
        EdgeModel.open(bundle.folder, service.address, memory="exact", deadline_s=20) as model,
    ):
        said = model.ask("What is the code of Lima?", max_tokens=1)
        assert said.text.startswith(SENTENCE[0]) is refuses
        assert not model.ask("What is the code of Lima?", max_tokens=1, memory="off").text.startswith(SENTENCE[0])


@pytest.mark.parametrize("offset", [-90.0, 90.0])
def test_a_device_refuses_a_request_less_and_nothing_more(offset: float, tmp_path: Path) -> None:
    readout = np.zeros(query_width(tiny_config()) + 1, np.float32)
    readout[-1] = offset
    bundle = tiny_bundle(tmp_path, loaded=probed(0, of_requests=readout))
    token = bundle.manifest.refusal.first_token(bundle.chat)
    with EdgeModel.open(bundle.folder, offline=True) as model:
        for memory in ("off", "overlap"):
            alone, pushed = (model.ask("Hello!", memory=memory, max_tokens=1, logit_bias=b) for b in ({}, {token: 50}))
            assert not alone.text.startswith(SENTENCE[0])
            assert pushed.text.startswith(SENTENCE[0]) is (offset > 0)


def test_a_bundle_with_the_probe_of_another_model_is_refused(probed_bundle: Callable[..., Bundle]) -> None:
    bundle = probed_bundle(0)
    edit_manifest(bundle.folder, model_id="ff" * 32)
    with pytest.raises(ModelMismatch, match=r"answerability.npz is of model 00"):
        Bundle.open(bundle.folder)
