"""Which provider runs a graph, what is said when the wanted one does not, and what a device is read as."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort
import pytest
from typer.testing import CliRunner

from edge_client.cli.device_checks import device_checks
from edge_client.cli.device_facts import DeviceFacts, Reader, device_facts, gpu_wheel
from edge_client.cli.main import app
from edge_client.decoder.graph import DecoderGraph, session_options
from edge_client.decoder.providers import fallback_order, open_session
from memory_model.bundle import Bundle
from memory_model.errors import InvalidInput

ORIN = {
    "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, "
    "DATE: Wed Jan  8 01:49:37 UTC 2025\n# KERNEL_VARIANT: oot",
    "/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit",
    "/usr/local/cuda/version.json": '{"cuda" : {"name" : "CUDA SDK", "version" : "12.6.11"}}',
    "nvpmodel -q": "NV Power Mode: MODE_30W\n2",
    "jetson_clocks --show": "SOC family:tegra234  Machine:NVIDIA Jetson AGX Orin\nOnline CPUs: 0-7\n"
    "cpu0: Online=1 Governor=schedutil MinFreq=729600 MaxFreq=1728000 CurrentFreq=729600 IdleStates: WFI=1 c7=1 \n"
    "GPU MinFreq=306000000 MaxFreq=624750000 CurrentFreq=306000000\n"
    "EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=3199000000 FreqOverride=1\nNV Power Mode: MODE_30W",
    "dpkg-query --showformat=${Version} --show libnvinfer10": "10.3.0.30-1+cuda12.5",
}


class Recorded(Reader):
    """Answers with what was recorded on a board."""

    def __init__(self, outputs: dict[str, str], machine: str = "aarch64") -> None:
        self.outputs, self.kind = outputs, machine

    def file(self, path: str) -> str | None:
        return self.outputs.get(path)

    def command(self, words: Sequence[str]) -> str | None:
        return self.outputs.get(" ".join(words))

    def machine(self) -> str:
        return self.kind


@pytest.mark.parametrize(
    ("wanted", "available", "ready", "order"),
    [
        ("cpu", ["CUDAExecutionProvider"], True, ("cpu",)),
        ("cuda", ["CUDAExecutionProvider"], False, ("cuda", "cpu")),
        ("cuda", [], False, ("cpu",)),
        ("tensorrt", ["TensorrtExecutionProvider", "CUDAExecutionProvider"], False, ("tensorrt", "cuda", "cpu")),
        ("auto", ["TensorrtExecutionProvider", "CUDAExecutionProvider"], False, ("cuda", "cpu")),
        ("auto", ["TensorrtExecutionProvider", "CUDAExecutionProvider"], True, ("tensorrt", "cuda", "cpu")),
    ],
)  # fmt: skip
def test_the_fallback_order_ends_with_the_cpu_and_auto_begins_no_build(
    wanted: str, available: list[str], ready: bool, order: tuple[str, ...]
) -> None:
    assert fallback_order(wanted, available, engine_ready=ready) == order


def test_a_wanted_provider_that_is_not_there_is_never_silent(
    tiny: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    facts = device_facts(Recorded(ORIN))
    with caplog.at_level(logging.WARNING):
        opened = open_session(tiny.decoder, session_options(1), "cuda", facts=facts)
    assert opened.active.provider == "cpu"
    (record,) = caplog.records
    assert record.getMessage() == opened.active.warning
    assert "\n" not in opened.active.warning
    for part in ("provider_inactive wanted=cuda active=cpu", "jp6/cu126", "JetPack 6.2"):
        assert part in opened.active.warning


def test_auto_warns_only_where_a_gpu_is_idle(tiny: Bundle) -> None:
    options = session_options(1)
    quiet = open_session(tiny.decoder, options, "auto", facts=DeviceFacts("x86_64"))
    assert quiet.active.warning == ""
    loud = open_session(tiny.decoder, options, "auto", facts=DeviceFacts("x86_64", gpu=True))
    assert "wanted=cuda active=cpu" in loud.active.warning


def test_a_provider_whose_memory_the_caller_cannot_feed_is_left_out(
    tiny: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    found = open_session(
        tiny.decoder, session_options(1), "cuda", facts=DeviceFacts("x86_64", gpu=True), served=("cpu",)
    )
    assert found.active.provider == "cpu"
    assert "cannot keep key-values there" in found.active.warning


def test_unknown_providers_are_refused_by_name(tiny: Bundle) -> None:
    with pytest.raises(InvalidInput, match="auto, cpu, cuda, tensorrt"):
        DecoderGraph.open(tiny.decoder, provider="opengl")


def test_a_jetson_is_read_from_its_own_files_and_programs() -> None:
    facts = device_facts(Recorded(ORIN))
    assert (facts.l4t, facts.power_mode, facts.tensorrt, facts.cuda) == (
        "36.4.3",
        "MODE_30W",
        "10.3.0.30",
        "12.6.11",
    )
    assert facts.jetpack is not None
    assert (facts.jetpack.version, facts.jetpack.tensorrt) == ("6.2", "10.3")
    assert [(c.name, c.locked) for c in facts.clocks] == [("cpu0", False), ("GPU", False), ("EMC", True)]
    checks = {c.what: c for c in device_checks("auto", 1, facts)}
    assert "nvpmodel -m 0" in checks["power mode"].advice
    assert "jetson_clocks" in checks["clocks"].advice
    assert "jp6/cu126" in checks["providers"].advice
    assert "AGX Orin" in checks["device"].detail


@pytest.mark.parametrize(
    ("release", "jetpack"),
    [("36 (release), REVISION: 4.0", "6.1"), ("39 (release), REVISION: 2.0", "7.2"),
     ("38 (release), REVISION: 2.1", "7.0"), ("35 (release), REVISION: 6.0", "5.1")],
)  # fmt: skip
def test_jetpack_follows_from_the_release_of_the_board(release: str, jetpack: str) -> None:
    facts = device_facts(Recorded({"/etc/nv_tegra_release": f"# R{release}, GCID: 1"}))
    assert facts.jetpack is not None
    assert facts.jetpack.version == jetpack
    assert gpu_wheel(facts)


def test_an_unknown_board_and_silent_programs_are_no_error() -> None:
    facts = device_facts(Recorded({"/etc/nv_tegra_release": "# R99 (release), REVISION: 1.0"}))
    assert facts.jetson
    assert "build onnxruntime-gpu from source" in gpu_wheel(facts)
    assert [c.what for c in device_checks("cpu", 1, facts)][:3] == ["device", "power mode", "clocks"]
    assert not device_facts(Recorded({"/etc/nv_tegra_release": "garbage"})).jetson


def test_doctor_says_what_the_device_is_as_json(tiny: Bundle, nobody: str) -> None:
    ran = CliRunner().invoke(
        app, ["doctor", "--bundle", str(tiny.folder), "--service", nobody, "--provider", "cpu", "--json"]
    )
    found = {c["what"]: c for c in json.loads(ran.stdout)["checks"]}
    assert ran.exit_code == 1  # nobody answers at the service's address
    assert found["decoder"]["ok"]
    assert not found["service"]["ok"]
    assert {"device", "providers", "threads", "memory bandwidth"} <= set(found)
    if not Path("/etc/nv_tegra_release").exists():
        assert "not a Jetson" in found["device"]["detail"]
