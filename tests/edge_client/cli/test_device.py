"""What a device is read as, and what `doctor` and `build` print about it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from edge_client.cli import device
from edge_client.cli.device import Check, DeviceFacts, Reader, device_checks, device_facts, gpu_wheel
from edge_client.cli.main import app
from edge_client.decoder import providers
from memory_model.bundle import Bundle
from tests.edge_client.fake_service import FakeService

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
}


class Recorded(Reader):
    """Answers with what was recorded on a board."""

    def __init__(self, outputs: dict[str, str]) -> None:
        self.outputs = outputs

    def file(self, path: str) -> str | None:
        return self.outputs.get(path)

    def command(self, words: Sequence[str]) -> str | None:
        return self.outputs.get(" ".join(words))

    def machine(self) -> str:
        return "aarch64"


def checks(wanted: str, facts: DeviceFacts | None = None, threads: int = 1) -> dict[str, Check]:
    return {c.what: c for c in device_checks(wanted, threads, facts)}


def test_a_jetson_is_read_from_its_own_files_and_programs() -> None:
    facts = device_facts(Recorded(ORIN))
    assert (facts.l4t, facts.power_mode, facts.cuda) == ("36.4.3", "MODE_30W", "12.6.11")
    assert facts.jetpack is not None
    assert (facts.jetpack.version, facts.jetpack.tensorrt) == ("6.2", "10.3")
    assert [(c.name, c.locked) for c in facts.clocks] == [("cpu0", False), ("GPU", False), ("EMC", True)]
    found = checks("auto", facts)
    assert "nvpmodel -m 0" in found["power mode"].advice
    assert "jetson_clocks" in found["clocks"].advice
    assert "AGX Orin" in found["device"].detail


def test_an_idle_gpu_gets_the_wheel_for_its_jetpack_as_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "missing", lambda name: "" if name == "cpu" else "no such provider")
    found = checks("auto", device_facts(Recorded(ORIN)))
    assert "jp6/cu126" in found["provider cuda"].advice
    assert found["provider cuda"].ok
    assert not checks("cuda")["provider cuda"].ok


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
    assert facts.l4t
    assert "build onnxruntime-gpu from source" in gpu_wheel(facts)
    assert [*checks("cpu", facts)][:3] == ["device", "power mode", "clocks"]
    assert not device_facts(Recorded({"/etc/nv_tegra_release": "garbage"})).l4t


def test_more_threads_than_cores_are_advised_against() -> None:
    assert "EDGE_CLIENT_THREADS" in checks("cpu", threads=256)["threads"].advice


def test_doctor_says_what_works_what_does_not_and_what_to_do(
    tiny: Bundle, nobody: str, service: FakeService
) -> None:
    def doctor(address: str) -> tuple[int, dict[str, dict[str, str]]]:
        options = ["--bundle", str(tiny.folder), "--service", address, "--provider", "cpu", "--json"]
        ran = CliRunner().invoke(app, ["doctor", *options])
        return ran.exit_code, {c["what"]: c for c in json.loads(ran.stdout)["checks"]}

    code, found = doctor(nobody)
    assert code == 1
    assert found["decoder"]["ok"]
    assert "memory-service serve" in found["service"]["detail"]
    assert {"device", "provider cpu", "provider cuda", "provider tensorrt", "threads"} <= set(found)
    code, found = doctor(service.address)
    assert (code, {c["ok"] for c in found.values()}) == (0, {True})
    service.description.codec_id = "ee" * 32
    code, found = doctor(service.address)
    assert code == 1
    assert found["codec of the service"]["detail"].startswith("service eeeeeeeeeeee, bundle ")
    assert "edge-client pull" in found["codec of the service"]["advice"]


def test_build_prints_the_threads_that_it_chose_and_measures_again_where_told(tiny: Bundle) -> None:
    kept = tiny.folder / "cache" / "threads.json"
    arguments = ["build", "--bundle", str(tiny.folder), "--provider", "cpu"]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    assert "ms a token" in ran.stdout
    if kept.is_file():  # not on one core
        kept.write_text("{}")
        assert CliRunner().invoke(app, [*arguments, "--again"]).exit_code == 0
        assert "{}" not in kept.read_text()


def test_build_names_what_is_missing(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "gpu", lambda: None)
    ran = CliRunner().invoke(app, ["build", "--bundle", str(tiny.folder), "--provider", "tensorrt"])
    assert ran.exit_code == 1
    assert "no NVIDIA GPU" in ran.output
