"""A model that nobody packaged goes the whole way: folder, codec, bundle, its own service, an answer with memories."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edge_client import EdgeModel, Finished, Recalled
from memory3.errors import ModelMismatch
from memory_model.cli import app
from memory_model.models import load
from memory_service.settings import Settings
from memory_service.write.model_encoder import ModelEncoder
from testing.processes import PROGRAMS, AppProcess, ServiceProcess
from testing.programs import ROOT, ran
from tests.edge_client.http_calls import post
from tests.edge_client.tiny_bundle import tiny_bert
from tests.memory_model.models.published import published

COUNTRIES = ("al", "au", "da", "ei", "no", "po", "sp", "sw")
QUESTION = "What is the highest point of Togo?"
DOCUMENTS = [
    {"key": "1", "title": "Benin", "text": "Highest point: Mont Sokbaro 658 m"},
    {"key": "2", "title": "Togo", "text": "Highest point: Mont Agou 986 m"},
    {"key": "3", "title": "Niger", "text": "Highest point: Idoukal-n-Taghes 2,022 m"},
]


@dataclass(frozen=True)
class Made:
    """A model folder and its bundle."""

    model: Path
    bundle: Path


def memory_model(*arguments: object) -> None:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output


def make(base: Path, folder: Path, heads: str, embedder: Path, codec: Path | None = None) -> Made:
    """`new`, `fit-codec`, `export`; codec: one to take in place of fitting."""
    made = Made(folder / "model", folder / "bundle")
    memory_model("new", base, "--out", made.model, "--heads", heads, "--reference-tokens", 96)
    if codec is None:
        facts = folder / "facts.jsonl"
        lines = (ROOT / "data" / "factbook.jsonl").read_text("utf-8").splitlines()
        facts.write_text("\n".join(line for line in lines if json.loads(line)["key"] in COUNTRIES) + "\n")
        memory_model(
            *("fit-codec", "--model", made.model, "--data", facts, "--factory", "PQ4x4np"),
            *("--references", 80, "--points", 400),
        )
    else:
        shutil.copy(codec, made.model)
    memory_model(
        *("export", "--model", made.model, "--precision", "float32"), *("--embedder", embedder, "--out", made.bundle)
    )
    return made


@pytest.fixture(scope="module", params=["qwen2"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, Made]:
    """Two models of one base, with different memory budgets."""
    folder = tmp_path_factory.mktemp("any")
    base, embedder = folder / "Tiny-Base", tiny_bert(folder / "bert")
    published(base, request.param)
    for name in ("one", "other"):
        (folder / name).mkdir()
    one = make(base, folder / "one", "paper", embedder)
    return one, make(base, folder / "other", "paper:4", embedder, one.model / "codec.npz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the service's store."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def service(models: tuple[Made, Made], folder: Path) -> Iterator[ServiceProcess]:
    started = ServiceProcess.start(folder, models[0].bundle, model=models[0].model)
    yield started
    started.kill()


def ask(bundle: Path, service: ServiceProcess) -> tuple[Recalled, Finished]:
    with EdgeModel.open(bundle, service.address, deadline_s=20) as model:
        recalled, *_, finished = model.session().send(QUESTION, max_tokens=8)
    assert isinstance(recalled, Recalled)
    assert isinstance(finished, Finished)
    return recalled, finished


def test_documents_become_memories_read(models: tuple[Made, Made], service: ServiceProcess, folder: Path) -> None:
    documents = folder / "documents.jsonl"
    documents.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    program = PROGRAMS / "memory-service"
    assert "3 stored; 3 references" in ran(program, "ingest", documents, "--address", service.address)
    recalled, finished = ask(models[0].bundle, service)
    assert "Togo" in {memory.title for memory in recalled.recall.read}
    assert not any(memory.refused for memory in recalled.recall.read)
    assert finished.statistics.generated_tokens == 8
    assert not finished.without_memory
    options = ("--provider", "torch", "--model", str(models[0].model), "--parallel", "2")
    with AppProcess.start(folder, models[0].bundle, service.address, *options) as app, ThreadPoolExecutor(2) as pool:
        asked = [{"role": "user", "content": text} for text in (QUESTION, QUESTION.replace("Togo", "Benin"))]
        replies = list(pool.map(lambda one: post(app, {"messages": [one], "max_tokens": 8}).json(), asked))
    assert replies[0]["choices"][0]["message"]["content"] == finished.text, "with the same weights in ONNX Runtime"
    for reply, name in zip(replies, ("Togo", "Benin"), strict=True):
        assert name in {memory["title"] for memory in reply["memory"]["chunks"][0]["read"]}


def test_a_service_returns_what_loading_freed(models: tuple[Made, Made], monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr("memory3.process_memory.return_free_memory", lambda: steps.append("returned"))
    assemble = load._assemble

    def loaded(*arguments: Any, **options: Any) -> load.LoadedModel:
        steps.append("loaded")
        return assemble(*arguments, **options)

    monkeypatch.setattr(load, "_assemble", loaded)
    made, _ = models
    ModelEncoder.open(Settings(model=made.model, bundle=made.bundle))
    assert steps == ["loaded", "returned"]


def test_a_service_refuses_another_models_bundle(models: tuple[Made, Made], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = models
    monkeypatch.setattr("memory_model.models.load._assemble", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(ModelMismatch, match=f"export --model {other.model} --out {one.bundle}"):
        ModelEncoder.open(Settings(model=other.model, bundle=one.bundle))
