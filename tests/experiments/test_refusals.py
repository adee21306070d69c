"""The curve of refusals is drawn from what `memory-model calibrate` writes."""

import json
from dataclasses import asdict
from pathlib import Path

from typer.testing import CliRunner

from experiments.__main__ import app
from memory_model.eval.refusing import Question, curve


def test_the_curve_names_its_files_and_another_file_is_refused(tmp_path: Path) -> None:
    asked = {"open": [Question(n / 4, False) for n in range(8)], "twins": [Question(-n / 2, True) for n in range(8)]}
    calibration, out = tmp_path / "calibration.json", tmp_path / "new" / "curve.svg"
    for points, code in ([asdict(point) for point in curve(asked)], 0), ([], 1):
        calibration.write_text(json.dumps({"chosen": 1.0, "most_wrong": 0.05, "curve": points}))
        done = CliRunner().invoke(app, ["refusal-curve", str(calibration), "--out", str(out)])
        assert done.exit_code == code, (done.output, done.exception)
    assert "<!-- twins -->" in out.read_text()
    assert "<!-- refused rightly: open -->" in out.read_text()
    assert "is not what" in done.output
