"""What a device is read as, and what `doctor` and `build` print about it."""

from pathlib import Path

import pytest

from edge_client.cli import doctor
from edge_client.cli.doctor import Board, device_checks
from edge_client.decoder.providers import nvidia
from memory3.files.bundle import Bundle
from tests.edge_client.cli.conftest import run
from tests.edge_client.fake_service import FakeService


@pytest.mark.parametrize(
    ("release", "l4t", "wheel"),
    [
        ("R36 (release), REVISION: 4.3", "36.4.3", "jp6/cu126"),
        ("R39 (release), REVISION: 2.0", "39.2.0", "cu132"),
        ("R35 (release), REVISION: 6.0", "35.6.0", "no wheel"),
        ("garbage", "", ""),
    ],
)
def test_a_jetson_is_told_which_wheel_and_power_mode_it_needs(
    release: str, l4t: str, wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "release").write_text(f"# {release}, GCID: 38968081, BOARD: generic")
    monkeypatch.setattr(doctor, "TEGRA_RELEASE", tmp_path / "release")
    monkeypatch.setattr(doctor, "_printed", lambda *_: "NV Power Mode: MODE_30W\n2")
    board = Board.here()
    assert (board.l4t if board else "") == l4t
    if board is not None:
        found = {c.what: c for c in device_checks("cuda", 1)}
        assert l4t in found["device"].detail
        assert "nvpmodel -m 0" in found["power mode"].advice
        assert found["provider cuda"].ok is False
        assert wheel in found["provider cuda"].advice


def test_doctor_says_what_works_what_does_not_and_what_to_do(
    tiny: Bundle, nobody: str, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doctor_of(address: str) -> tuple[int, str]:
        ran = run("doctor", "--bundle", tiny.folder, "--service", address, "--provider", "cpu")
        return ran.exit_code, ran.stdout

    monkeypatch.setenv("EDGE_CLIENT_THREADS", "256")
    code, said = doctor_of(nobody)
    assert code == 1
    assert "ok   decoder: " in said
    assert said.index("FAIL threads: 256 of") < said.index("EDGE_CLIENT_THREADS") < said.index("FAIL service: ")
    assert "memory-service serve" in said
    monkeypatch.delenv("EDGE_CLIENT_THREADS")
    code, said = doctor_of(service.address)
    assert (code, said.count("FAIL")) == (0, 0)
    assert "info provider tensorrt: " in said
    service.description.codec_id = "ee" * 32
    code, said = doctor_of(service.address)
    assert code == 1
    assert "FAIL codec of the service: service eeeeeeeeeeee, bundle " in said
    assert "-> edge-client pull" in said


def test_build_names_what_is_missing(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "gpu", lambda: None)
    ran = run("build", "--bundle", tiny.folder, "--provider", "tensorrt")
    assert ran.exit_code == 1
    assert "no NVIDIA GPU" in ran.output
