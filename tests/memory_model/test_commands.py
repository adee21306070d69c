"""`memory-model` refuses bad input in one line, before weights are read."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from experiments.__main__ import app as experiments
from memory3.codec.codec import ExactCodec
from memory3.config import parse_budget
from memory3.errors import ModelMismatch
from memory3.runtime.answerability import query_width
from memory_model.cli import app
from memory_model.models.folder import ModelFolder
from memory_model.models.load import load_base, load_model
from memory_model.nn.adapter import attach, collect
from memory_model.nn.writing import MemoryWriter
from tests.edge_client.tiny_bundle import probe_of, tiny_bert
from tests.memory_model.models.published import published

ROW = {"knowledge": "Paris is in France.", "question": "Where is Paris?", "right_answer": "France"}
PARAGRAPH = {"article": "A", "paragraph": "Paris is in France.", "questions": []}
RUN = "--steps 1 --conversations 2 --rank 2 --out run"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model `m`, and others that do not fit it."""
    folder = tmp_path_factory.mktemp("commands")
    published(folder / "base", "llama-3")
    made = ModelFolder.create(folder / "base", folder / "m", memory=lambda c: parse_budget("paper", c))
    ExactCodec(16).save(made.path / "codec.npz")
    for name, change in (("codec8", {}), ("beyond", {"heads": [[7, 0, 8]]})):
        shutil.copytree(folder / "m", folder / name)
        manifest = json.loads((folder / name / "model.json").read_text())
        manifest["memory"] |= change
        (folder / name / "model.json").write_text(json.dumps(manifest))
    ExactCodec(8).save(folder / "codec8" / "codec.npz")
    tiny_bert(folder / "bert")
    loaded = load_base(made, made.memory)
    attach(loaded.model, 2, 2.0, 0)
    collect(loaded.model, made.memory, "0" * 64, {}).save(folder / "other.safetensors")
    collect(loaded.model, made.memory, made.base_id, {}).save(folder / "rank2.safetensors")
    both = [ROW, ROW | {"answerable": False}]
    for name, rows in {"rows": [ROW], "same/rows": [ROW], "both": both, "paragraphs": [PARAGRAPH]}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(rows))
    facts = [{"key": f"k{n}", "title": f"L{n}", "text": f"Area: {n} km\nClimate: dry {n}"} for n in range(8)]
    (folder / "facts.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    (folder / "no-text.jsonl").write_text('{"key": "a", "title": "A"}\n')
    return folder


@pytest.fixture
def no_weights(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.chdir(place)
    monkeypatch.setattr("memory_model.models.load.Decoder", read)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command writes to the cache of the user who tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("new base --out x --chat-template none.jinja", "none.jinja: No such file"),
        ("new base --out x --embedder none", "no embedder at none"),
        ("new base --out x --heads 9.0:8", "memory head 9.0:8 is outside 4 layers"),
        ("new base --out facts.jsonl/x", "facts.jsonl/x: Not a directory"),
        ("eval --model codec8 --data rows.json --json o.json", "head dimension 8, the model has 16: fit one with"),
        ("eval --model m --data rows.json --json o.json --conditions memry", "no condition is called memry"),
        ("eval --model m --data rows.json --json o.json --conditions rag_retrieved --embedder none", "no embedder in"),
        ("eval --model m --data rows.json --json o.json --adapter other.safetensors", "the adapter was tuned from"),
        ("eval --model m --data rows.json --json o.json --adapter none", "the plain model reads no memories: use"),
        ("calibrate --model m --data rows.json --data same/rows.json", "one name"),
        ("calibrate --model m --data rows.json", '`"answerable": false`, and others'),
        ("eval --model m --data facts.jsonl --json o", "JSON Lines by its name: an evaluation file is a JSON list"),
        ("export --model codec8 --embedder bert --out bundle", "head dimension 8"),
        ("export --model m --calibration= --embedder none --out bundle", "no embedder at none"),
        (f"adapt --model m --data facts.jsonl --start other.safetensors {RUN}", "use the adapter that was tuned from"),
        (f"adapt --model m --data facts.jsonl --start rank2.safetensors {RUN} --rank 4", "has rank 2: leave --rank 4"),
        (f"adapt --model m --data facts.jsonl --codec codec8/codec.npz {RUN}", "head dimension 8"),
        (f"adapt --model m --data facts.jsonl --first-layer 4 {RUN}", "the model has 4 layers"),
        (f"adapt --model m --data facts.jsonl --mixture cooking:1 {RUN}", "no task 'cooking'"),
        (f"adapt --model m --data facts.jsonl --mixture facts:0 {RUN}", "a weight above 0"),
        (f"adapt --model m --data facts.jsonl --mixture facts:nan {RUN}", "a weight above 0"),
        (f"adapt --model m --data facts.jsonl --mixture facts:inf {RUN}", "a weight above 0"),
        (f"adapt --model m --data facts.jsonl --mixture facts:1,facts:2 {RUN}", "names facts twice"),
        (f"adapt --model m --data facts.jsonl --device gpu {RUN}", "'gpu' is no device"),
        (f"adapt --model m --data facts.jsonl --device cuda:99 {RUN}", "not cuda:99"),
        ("eval --model m --data rows.json --json o.json --device gpu", "'gpu' is no device"),
        ("calibrate --model m --data both.json --device cuda:99", "not cuda:99"),
        ("eval --model smollm --data rows.json --json o.json", "did you mean smollm2-135m"),
    ],
)
def test_what_does_not_fit_is_refused_before_weights_are_read(line: str, says: str) -> None:
    done = CliRunner().invoke(app, line.split(), env={"COLUMNS": "400"})
    assert (done.exit_code, says in done.output) == (1, True), done.output
    assert [part for part in done.output.splitlines() if part.startswith("error: ")], done.output


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    "line",
    [
        "eval --model m --data rows.json --json o.json --limit 0",
        "eval --model m --data rows.json --json same",
        "eval --model m --data rows.json --json o.json --precision half",
        "rank-heads --model m --batches 0",
        "calibrate --model m --data rows.json --most-wrong 5",
        "fit-codec --model m --references 0",
        "adapt --model m --checkpoint-every 0",
        "adapt --model m --decay 2",
        "pretrain base --corpus x --out y --rows 0",
    ],
)
def test_numbers_out_of_range_are_wrong_arguments(line: str) -> None:
    assert CliRunner().invoke(app, line.split()).exit_code == 2


def test_a_folder_whose_making_was_interrupted_is_made_by_the_same_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    line = "new base --out made --heads all"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MemoryWriter, "write", interrupted)
        assert CliRunner().invoke(app, line.split()).exit_code == 130
    done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert ModelFolder.open("made").codec is not None


def test_rows_without_a_text_name_the_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    done = CliRunner().invoke(app, ["rank-heads", "--model", "m", "--data", "no-text.jsonl"], env={"COLUMNS": "400"})
    assert (done.exit_code, "no-text.jsonl, line 1: expected an object of texts" in done.output) == (1, True)


def test_a_plain_model_is_evaluated_to_the_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    line = "eval --model m --data rows.json --json plain.json --adapter none --conditions none,rag"
    done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert json.loads(Path("plain.json").read_text())["memory_bytes"] == 0


def test_a_folder_without_a_codec_is_evaluated_without_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    shutil.copytree("m", "no-codec")
    Path("no-codec/codec.npz").unlink()
    line = "eval --model no-codec --data rows.json --json exact.json"
    done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(Path("exact.json").read_text())
    assert set(found["conditions"]) == {"none", "memory_exact", "rag", "rag_five"}
    refused = CliRunner().invoke(app, [*line.split(), "--conditions", "memory"])
    assert "fit-codec" in refused.output


def test_heads_that_read_are_printed_as_adapt_takes_them(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    line = "rank-heads --model m --data facts.jsonl --batches 1 --select 2 --out heads.json"
    done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (printed,) = [text for text in done.output.splitlines() if text.startswith("--heads ")]
    budget = parse_budget(printed.split()[1], load_base(ModelFolder.open("m")).config)
    assert len(budget.heads) == 2
    rounds = json.loads(Path("heads.json").read_text())["rounds"]
    assert len(rounds[0]["heads"]) > len(rounds[-1]["heads"]) == 2


def test_calibrating_saves_a_bias_for_one_memory_and_one_for_several(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    shutil.copytree("m", "calibrated")
    line = "calibrate --model calibrated --data both.json --json c.json --save"
    done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    found, saved = json.loads(Path("c.json").read_text()), ModelFolder.open("calibrated").refusal
    assert (found["bias"]["chosen"], found["bias_alone"]["chosen"]) == (saved.bias, saved.bias_alone), done.output


def fitted(model: str) -> Result:
    """`fit-refusal` of a folder."""
    rows = [ROW | {"knowledge": f"Town {n} is in France.", "answerable": n % 2 == 0} for n in range(80)]
    Path("asked.json").write_text(json.dumps(rows))
    line = f"fit-refusal --model {model} --data asked.json --precision float32"
    return CliRunner().invoke(app, line.split(), catch_exceptions=False)


def test_a_probe_is_fitted_into_the_folder_and_changes_what_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    shutil.copytree("m", "probed")
    done = fitted("probed")
    assert done.exit_code == 0, done.output
    assert "area under ROC" in done.output
    with_probe, without = (load_model(ModelFolder.open(name)).probe for name in ("probed", "m"))
    assert with_probe is not None
    assert with_probe.numbers.tolist() == [1, 2, 5], "an offset for each number that was read"
    assert without is None
    other = load_model(ModelFolder.open("probed"), "rank2.safetensors")
    assert other.probe is None, "another adapter has other queries"


def test_what_reads_nothing_is_told_apart_by_a_readout_beside_the_folders_probe(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    shutil.copytree("m", "greeted")
    Path("requests.jsonl").write_text("\n".join(json.dumps({"request": f"Hi {n}"}) for n in range(60)))
    line = "fit-requests --model greeted --data asked.json --requests requests.jsonl --precision float32"
    assert fitted("greeted").exit_code == 0
    refused = CliRunner().invoke(app, line.replace("greeted", "m").split())
    assert "fit-refusal" in refused.output
    before = load_model(ModelFolder.open("greeted")).probe
    done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    probe = load_model(ModelFolder.open("greeted")).probe
    assert probe is not None
    assert before is not None
    assert probe.of_requests is not None
    assert probe.offsets.tolist() == before.offsets.tolist()


def test_a_probe_of_other_weights_is_refused_by_name_and_fitted_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    shutil.copytree("m", "changed")
    loaded = load_model(ModelFolder.open("changed"))
    probe_of("0" * 64, np.zeros(query_width(loaded.config), np.float32)).save("changed/answerability.npz")
    with pytest.raises(ModelMismatch, match=r"answerability.npz is of model 0000.*fit-refusal"):
        _ = load_model(ModelFolder.open("changed")).probe
    assert fitted("changed").exit_code == 0
    probe = load_model(ModelFolder.open("changed")).probe
    assert probe is not None
    assert probe.model_id == loaded.model_id


@pytest.mark.usefixtures("no_weights")
def test_studies_make_their_folders_and_refuse_in_one_line() -> None:
    split = ["split-questions", "paragraphs.json", "--out", "new/folder", "--training", "other/training.json"]
    assert CliRunner().invoke(experiments, split).exit_code == 0
    assert sorted(path.name for path in Path("new/folder").iterdir()) == [
        "squad_dev.json",
        "squad_documents.jsonl",
        "squad_test.json",
    ]
    for line, says in (
        ("invent-countries --data no-text.jsonl", "line 1"),
        ("long-conversation --distances a", "no list of numbers"),
        ("vocabulary --corpus x --out v.json", "no corpus at x"),
        ("random-base none --out x", "no shape is called"),
        ("cost --model beyond", "memory head 7.0:8 is outside"),
    ):
        done = CliRunner().invoke(experiments, line.split(), env={"COLUMNS": "400"})
        assert (done.exit_code, says in done.output, "error: " in done.output) == (1, True, True), done.output
