"""The publisher's own GGUF of Qwen2.5-Coder-0.5B: fetched by its name, tokens and answers as others have them."""

import json
import urllib.request
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from deploy.bench.llama import LlamaCpp
from experiments.answers.scoring import greedy
from memory3.config import parse_budget
from memory3.errors import MissingFile
from memory_model.catalogue.pull import pull
from memory_model.catalogue.table import entry_of
from memory_model.models.folder import ModelFolder
from memory_model.models.gguf import GgufFile
from memory_model.models.load import LoadedModel, load_model
from testing.programs import ROOT
from tests.memory_model.models.gguf_files import HARD, transformers_own

pytestmark = pytest.mark.slow

TEXTS = ("The capital of France is Paris, and the capital of Germany is", "def fibonacci(n):\n", "1, 2, 3, 4,")
TOKENS = 24


@pytest.fixture(scope="module")
def weights() -> Path:
    """The file, from the user's cache or fetched; the tests are skipped where no source is reached."""
    try:
        return pull(entry_of("qwen2.5-coder-0.5b"))
    except MissingFile as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def loaded(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    out = tmp_path_factory.mktemp("model") / "qwen"
    return load_model(ModelFolder.create(weights, out, memory=lambda config: parse_budget("all", config)))


def test_its_tokenizer_is_transformers_own(weights: Path) -> None:
    theirs = transformers_own(weights)
    ours = Tokenizer.from_str(GgufFile(weights).tokenizer_json)
    for text in [*HARD, *(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))]:
        assert ours.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"]


def test_it_knows_berlin(loaded: LoadedModel) -> None:
    prompt = loaded.tokenizer.encode(TEXTS[0])
    assert loaded.tokenizer.decode(greedy(loaded.model, [prompt], (), None, (), longest=1)[0]) == " Berlin"


def test_its_greedy_tokens_are_those_of_llama_cpp(loaded: LoadedModel, weights: Path, tmp_path: Path) -> None:
    found = LlamaCpp.find()
    if found is None:
        pytest.skip("llama.cpp is not built: `make llama`")
    with LlamaCpp(found.programs, weights).server(1, 512, 2, tmp_path / "log") as port:
        for text in TEXTS:
            prompt = loaded.tokenizer.encode(text)
            body = {
                "prompt": prompt,
                "n_predict": TOKENS,
                "temperature": 0,
                "return_tokens": True,
                "cache_prompt": False,
            }
            request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=300) as answer:
                theirs = json.load(answer)["tokens"]
            with torch.inference_mode():
                ours = greedy(loaded.model, [prompt], (), None, loaded.tokenizer.stop_ids, longest=TOKENS)[0]
            assert ours[:8] == theirs[:8], text  # llama.cpp's activations are 8 bits wide: later tokens may differ
