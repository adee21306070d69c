"""Notebooks, code, logs and files without a suffix."""

import json
from pathlib import Path

from tests.memory3.formats.reading import read


def test_a_notebook_has_its_text_code_and_outputs(tmp_path: Path) -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "…"}}
    cells = [
        {"cell_type": "markdown", "source": ["# Tide model\n", "Station: Bergen"]},
        {
            "cell_type": "code",
            "source": "print(amplitude)",
            "outputs": [{"output_type": "stream", "text": ["1.87 metres\n"]}, picture],
        },
        {"cell_type": "code", "source": "1 / 0", "outputs": [{"output_type": "error", "ename": "E", "evalue": "zero"}]},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    document = read(tmp_path / "a.ipynb")
    assert document.title == "Tide model"
    assert document.text.split("\n\n") == ["Station: Bergen", "print(amplitude)", "1.87 metres", "1 / 0", "E: zero"]
    assert document.notes == ("1 picture in outputs not read",)


def test_code_logs_and_files_without_a_suffix_are_text(tmp_path: Path) -> None:
    (tmp_path / "heater.py").write_text("LIMIT_C = 64\n")
    (tmp_path / "app.log").write_text("10:00 \x1b[31mERROR\x1b[0m pump P9 stalled\n")
    (tmp_path / "README").write_text("Key: below the mat\n")
    (tmp_path / "notes.unheard-of").write_text("Berth: 19\n")
    found = {path.name: read(path) for path in tmp_path.iterdir()}
    assert (found["heater.py"].title, found["heater.py"].text) == ("heater.py", "LIMIT_C = 64\n")
    assert found["app.log"].text == "10:00 ERROR pump P9 stalled\n"
    assert found["README"].text == "Key: below the mat\n"
    assert found["notes.unheard-of"].text == "Berth: 19\n"
