"""The default bundle is exported again when anything that it is made from changes, and not otherwise."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy import default_bundle
from deploy.default_bundle import ensure, made_from, modules
from testing.programs import ROOT


@pytest.mark.parametrize(
    "name",
    [
        "memory3.files.bundle",
        "memory3.runtime.cache_layout",
        "memory3.text.chat",
        "memory3.codec.codec",
        "memory3.config",
        "memory3.runtime.embedder",
        "memory3.text.tokenizer",
        "memory_model.export.quantize",
        "memory_model.models.load",
        "memory_model.nn.decoder",
    ],
)
def test_what_the_exporter_imports_belongs_to_a_bundle(name: str) -> None:
    assert name in modules(default_bundle.EXPORTER)


def test_commands_and_training_do_not_belong_to_a_bundle() -> None:
    others = ("memory_model.cli", "memory_model.train", "memory_model.eval")
    assert not [name for name in modules(default_bundle.EXPORTER) if name.startswith(others)]


def repository(root: Path) -> tuple[Path, Path]:
    """A small repository whose exporter imports one module directly, one inside a function; and its model folder."""
    for name, source in {
        "memory_model/export/bundle.py": "from memory3 import codec\n\ndef export(): import memory_model.nn.decoder\n",
        "memory3/codec.py": "BITS = 8\n",
        "memory_model/nn/decoder.py": "LAYERS = 30\n",
        "memory_model/train/tuner.py": "RATE = 1e-3\n",
        "model/model.json": "{}",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        (path.parent / "__init__.py").touch()
    return root, root / "model"


def test_the_digest_changes_with_each_source_and_with_nothing_else(tmp_path: Path) -> None:
    root, model = repository(tmp_path)
    before = made_from(root, model)
    (root / "memory_model" / "train" / "tuner.py").write_text("RATE = 2e-3\n")
    (root / "memory3" / "codec.py").write_text('"""Bits of a code."""\nBITS = 8  # a byte\n')
    assert made_from(root, model) == before
    for name in ("memory3/codec.py", "memory_model/nn/decoder.py", "memory_model/export/bundle.py", "model/model.json"):
        (root / name).write_text((root / name).read_text() + "\n_NEW = 1\n")
        assert made_from(root, model) != before, name
        before = made_from(root, model)


def test_a_bundle_is_exported_once_until_its_sources_or_its_manifest_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, exports = ["first"], []

    def export(bundle: Path, model: str, calibrated: bool) -> None:
        exports.append(calibrated)
        bundle.mkdir(exist_ok=True)
        (bundle / "manifest.json").write_text(f"{len(exports)}")

    monkeypatch.setattr(default_bundle, "made_from", lambda model: state[0])
    monkeypatch.setattr(default_bundle, "export", export)
    bundle = tmp_path / "bundle"
    assert ensure(bundle)
    assert not ensure(bundle)
    state[0] = "second"
    assert ensure(bundle)
    (bundle / "manifest.json").write_text("another bundle")
    assert ensure(bundle)
    assert not ensure(bundle)
    assert ensure(bundle, calibrated=False)
    assert not ensure(bundle, calibrated=False)
    assert exports == [True, True, True, False]


def test_a_model_that_is_not_packaged_is_refused_with_those_that_are(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.default_bundle", str(tmp_path / "bundle"), "smollm"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    (said,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert said.startswith("there is no packaged model smollm: MODEL is one of ")
    assert "smollm2-135m" in said
    assert not list(tmp_path.iterdir())
