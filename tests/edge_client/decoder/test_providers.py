"""Which provider runs a graph, what is raised or warned when it does not, and where TensorRT's engines are kept."""

import logging
import sys
from pathlib import Path

import pytest

from edge_client.decoder import providers
from edge_client.decoder.providers import PROVIDERS, nvidia, open_decoder
from edge_client.decoder.providers.nvidia import Gpu
from edge_client.decoder.providers.provider import OpenOptions
from edge_client.decoder.providers.tensorrt import EngineCache, decoder_inputs
from edge_client.decoder.runtime import cache_folder, named_errors, session_options
from edge_client.errors import ProviderError
from memory3.errors import InvalidInput, MissingFile, ModelMismatch
from memory3.files.bundle import Bundle
from memory3.runtime.onnx_runtime import ort

ORIN = Gpu("Orin", "87")
EVERY = ["CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"]


@pytest.fixture
def jetson(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPU, TensorRT and a runtime that lists every provider; only the CPU's libraries load."""
    monkeypatch.setattr(nvidia, "gpu", lambda: ORIN)
    monkeypatch.setattr(nvidia, "tensorrt_version", lambda: "10.3.0")
    monkeypatch.setattr(ort, "get_available_providers", lambda: EVERY)


def test_unknown_providers_are_refused_by_name(tiny: Bundle) -> None:
    with pytest.raises(InvalidInput, match="auto, cpu, cuda, tensorrt"):
        open_decoder(tiny.decoder, provider="opengl")
    with pytest.raises(ModelMismatch, match="--model"):  # the packaged model is another one than the bundle's
        open_decoder(tiny.decoder, provider="torch")


def test_torch_says_how_to_make_the_bundle_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="make one with"):
        open_decoder(tmp_path / "decoder.onnx", provider="torch")


@pytest.mark.parametrize(("name", "extra"), [("cuda", "edge-gpu"), ("tensorrt", "edge-tensorrt"), ("torch", "service")])
def test_a_named_provider_that_is_not_installed_is_an_error_with_its_extra(
    name: str, extra: str, tiny: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "gpu", lambda: ORIN)
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setitem(sys.modules, "memory_model.models.engine", None)
    with pytest.raises(ProviderError, match=extra) as caught:
        open_decoder(tiny.decoder, provider=name)
    assert caught.value.reason == "NOT_INSTALLED"


@pytest.mark.usefixtures("jetson")
def test_auto_takes_the_cpu_and_warns_why_the_gpu_is_idle(tiny: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        opened = open_decoder(tiny.decoder, threads=1)
    assert (opened.provider, opened.device) == ("cpu", "cpu")
    assert [r.getMessage() for r in caplog.records if r.name == providers.__name__] == [opened.warning]
    for part in ("tensorrt: no engine was built for this GPU: run `edge-client build`", "cuda: "):
        assert part in opened.warning


def test_the_inputs_that_a_profile_covers_are_those_of_the_exported_graph(tiny: Bundle) -> None:
    session = ort.InferenceSession(str(tiny.decoder), session_options(1), providers=["CPUExecutionProvider"])
    assert decoder_inputs(tiny.config) == {given.name: tuple(given.shape) for given in session.get_inputs()}


@pytest.mark.parametrize("other", ["gpu", "tensorrt", "context", "bundle"])
def test_an_engine_of_another_gpu_tensorrt_context_or_bundle_is_not_found(
    other: str, tiny: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "gpu", lambda: ORIN)
    monkeypatch.setattr(nvidia, "tensorrt_version", lambda: "10.3.0")
    decoder = tmp_path / "decoder.onnx"
    manifest = (tiny.folder / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(manifest)
    first = EngineCache.of(decoder, tmp_path)
    assert first is not None
    first.options()
    (first.folder / "decoder_sm87.engine").write_bytes(b"engine")
    again = EngineCache.of(decoder, tmp_path)
    assert again is not None
    assert again.ready
    if other == "gpu":
        monkeypatch.setattr(nvidia, "gpu", lambda: Gpu("RTX", "89"))
    elif other == "tensorrt":
        monkeypatch.setattr(nvidia, "tensorrt_version", lambda: "10.16.0")
    elif other == "bundle":
        (tmp_path / "manifest.json").write_text(manifest.replace('"tiny"', '"other"'))
    changed = EngineCache.of(decoder, tmp_path, context=1024 if other == "context" else 2048)
    assert changed is not None
    assert not changed.ready


@pytest.mark.usefixtures("jetson")
def test_a_broken_engine_is_removed_and_built_again(
    tiny: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = EngineCache(tmp_path, {"token_ids": ((1, 1), (1, 1), (1, 1))})
    (tmp_path / "broken.engine").write_bytes(b"not an engine")
    real, attempts = ort.InferenceSession, []

    def session(path: str, options: ort.SessionOptions, providers: object, enable_fallback: int) -> object:
        attempts.append(sorted(p.name for p in tmp_path.glob("*.engine")))
        if attempts[-1]:
            raise RuntimeError("TensorRT EP could not deserialize engine from cache: broken.engine")
        return real(path, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(ort, "InferenceSession", session)
    monkeypatch.setattr(EngineCache, "of", lambda *_: engines)
    # The second attempt finds no engine; that it then runs on the CPU only is found too.
    with pytest.raises(ProviderError, match="libraries do not load"):
        PROVIDERS["tensorrt"].open(tiny.decoder, OpenOptions(threads=1))
    assert attempts == [["broken.engine"], []]


@pytest.mark.usefixtures("jetson")
def test_a_graph_of_which_tensorrt_takes_no_part_is_refused(
    tiny: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ort.InferenceSession

    def session(path: str, options: ort.SessionOptions, **_: object) -> object:
        opened = real(path, options, providers=["CPUExecutionProvider"])
        monkeypatch.setattr(opened, "get_providers", lambda: ["TensorrtExecutionProvider", "CUDAExecutionProvider"])
        return opened

    monkeypatch.setattr(ort, "InferenceSession", session)
    monkeypatch.setattr(EngineCache, "of", lambda *_: EngineCache(tmp_path, {"token_ids": ((1, 1),) * 3}))
    with pytest.raises(ProviderError, match="takes no part of") as caught:
        PROVIDERS["tensorrt"].open(tiny.decoder, OpenOptions(threads=1))
    assert caught.value.reason == "UNSUPPORTED_GRAPH"


def test_the_cache_of_a_read_only_bundle_lies_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(tmp_path / "decoder.onnx") == tmp_path / "cache"
    monkeypatch.setattr("os.access", lambda *_: False)
    assert cache_folder(tmp_path / "decoder.onnx").is_relative_to(tmp_path / "xdg" / "memory3-edge")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("Exception during initialization: std::bad_alloc"),
        RuntimeError("CUDA failure 2: out of memory ; GPU=0"),
    ],
)
def test_out_of_memory_is_called_so(error: Exception) -> None:
    with pytest.raises(ProviderError, match="not enough memory for it") as caught, named_errors("it"):
        raise error
    assert caught.value.reason == "OUT_OF_MEMORY"
