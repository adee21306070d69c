from __future__ import annotations

from deploy.bench.machine import power_mode
from edge_client.cli.device import Reader


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


def test_a_board_says_in_which_power_mode_it_is():
    found = power_mode(Board())
    assert found == {"board": "NVIDIA Jetson AGX Orin Developer Kit", "l4t": "36.4.3", "power_mode": "MAXN"}
