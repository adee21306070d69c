"""lm-evaluation-harness, for real: installed beside this environment, its tasks answered with and without memory."""

import json
from pathlib import Path

import pytest

from testing.programs import ROOT, python_with, ran

TASK = ROOT / "docs" / "examples" / "harness"

CASES = """
import json, math
from lm_eval.api.instance import Instance
from experiments.harness import Memory3LM
from memory_model.eval.subject import Subject
from tests.edge_client.tiny_bundle import format_of, tiny_loaded

loaded = tiny_loaded()
subject = Subject.of(loaded)

def model(**options):
    return Memory3LM(subject=subject, max_tokens=16, **options)

def asked(kind, *arguments):
    return [Instance(kind, {}, arguments, 0)]

plain, reading = model(), model(memory="references.json")
short, text = "short text", "a text of more than one window of sixteen tokens"
print(json.dumps({
    "rolling": plain.loglikelihood_rolling(asked("loglikelihood_rolling", text))[0],
    "short": plain.loglikelihood_rolling(asked("loglikelihood_rolling", short))[0],
    "after nothing": plain.loglikelihood(asked("loglikelihood", "", short))[0][0],
    "with": reading.loglikelihood(asked("loglikelihood", "How long?", " 121"))[0][0],
    "without": plain.loglikelihood(asked("loglikelihood", "How long?", " 121"))[0][0],
    "answer": plain.generate_until(asked("generate_until", "Tell", {"max_gen_toks": 6, "until": []}))[0],
    "template": (chat := plain.apply_chat_template([{"role": "user", "content": "Hello"}])),
    "chat": plain.loglikelihood(asked("loglikelihood", chat, short))[0][0],
    "query": plain.request(chat).query,
}))
try:
    model(memori="retrieved")
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that has the harness on top of everything that is installed here."""
    folder = tmp_path_factory.mktemp("harness") / "venv"
    return python_with(folder, "lm-eval>=0.4.12,<0.5", "--constraint", ROOT / "constraints.txt")


@pytest.mark.slow
def test_the_harness_gets_likelihoods_and_texts_and_memories_change_them(harness: Path, tmp_path: Path) -> None:
    (tmp_path / "references.json").write_text(json.dumps(["Benin\nCoastline: 121 km"]))
    found, refused = ran(harness, "-c", CASES, cwd=tmp_path).splitlines()[-2:]
    measured = json.loads(found)
    assert measured["short"] == pytest.approx(measured["after nothing"], rel=1e-5)
    assert measured["rolling"] < measured["short"] < 0
    assert measured["with"] != pytest.approx(measured["without"], abs=1e-6)
    assert 1 <= len(measured["answer"]) <= 6
    assert measured["template"].startswith("<|im_start|>user\nHello")
    assert measured["chat"] < 0
    assert measured["query"] == "Hello"
    assert refused.startswith("TypeError: ")
    assert refused.endswith("unexpected keyword argument 'memori'")


@pytest.mark.slow
def test_the_local_task_runs_from_the_command_line(harness: Path, tmp_path: Path) -> None:
    knowledge = json.loads((TASK / "heldout_countries.jsonl").read_text().splitlines()[0])["knowledge"]
    (tmp_path / "references.json").write_text(json.dumps([knowledge]))
    ran(
        *(harness, "-m", "experiments.harness", "run", "--model", "memory3"),
        *("--model_args", f"memory={tmp_path / 'references.json'}", "--tasks", "heldout_countries"),
        *("--include_path", TASK, "--apply_chat_template", "--limit", "1", "--output_path", tmp_path / "out"),
        cwd=ROOT,
    )
    results = json.loads(next((tmp_path / "out").rglob("results*.json")).read_text())
    assert results["results"]["heldout_countries"]["exact_match,none"] == 1.0
