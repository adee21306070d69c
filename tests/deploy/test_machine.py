from __future__ import annotations

from deploy.bench.machine import power_mode, recording, summary
from edge_client.cli.device import Reader

LINES = [
    "11-21-2026 10:00:00 RAM 2722/30697MB (lfb 3x4MB) SWAP 0/15348MB (cached 0MB) CPU [2%@729,0%@729] GR3D_FREQ 0%"
    " cpu@45.5C soc2@41.3C tboard@33C VDD_GPU_SOC 2400mW/2400mW VDD_CPU_CV 800mW/800mW VIN_SYS_5V0 2822mW/2800mW",
    "11-21-2026 10:00:01 RAM 2722/30697MB (lfb 3x4MB) SWAP 0/15348MB (cached 0MB) CPU [9%@2201,0%@729] GR3D_FREQ 99%"
    " cpu@50.5C soc2@42.3C tboard@33C VDD_GPU_SOC 9600mW/6000mW VDD_CPU_CV 1200mW/1000mW VIN_SYS_5V0 3022mW/2900mW",
]


def test_temperatures_and_power_of_tegrastats_are_summed_up():
    found = summary(LINES)
    assert found["samples"] == 2
    assert found["temperature_c"]["cpu"] == {"mean": 48.0, "largest": 50.5}
    assert found["power_mw"]["VDD_GPU_SOC"] == {"mean": 6000.0, "largest": 9600.0}
    assert set(found["power_mw"]) == {"VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"}
    assert summary([]) == {"samples": 0, "temperature_c": {}, "power_mw": {}}


class Board(Reader):
    """A Jetson with its clocks free, as its own programs print it."""

    def file(self, path: str) -> str | None:
        return {
            "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1",
            "/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit",
        }.get(path)

    def command(self, words):
        return {
            "nvpmodel": "NV Power Mode: MAXN\n0",
            "jetson_clocks": "cpu0: Online=1 Governor=schedutil MinFreq=729600 MaxFreq=2201600 CurrentFreq=729600",
        }.get(words[0])


def test_a_board_says_in_which_power_mode_and_whether_its_clocks_are_locked():
    found = power_mode(Board())
    assert found["power_mode"] == "MAXN"
    assert found["clocks_locked"] is False
    assert found["jetpack"] == "6.2"


def test_recording_starts_tegrastats_where_there_is_one_and_stops_it(tmp_path, monkeypatch):
    program = tmp_path / "tegrastats"
    program.write_text(f"#!/bin/sh\necho '{LINES[0]}'\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with recording() as recorded:
        assert recorded == {}
    assert set(recorded["tegrastats"]) == {"samples", "temperature_c", "power_mw"}
