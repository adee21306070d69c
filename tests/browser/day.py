"""What the browser's tests run against: the real model, a real service with some countries, a real app."""

import json
from pathlib import Path

from testing.processes import PROGRAMS, AppProcess, ServiceProcess
from testing.programs import ROOT, ran

PATIENT = {"EDGE_CLIENT_DEADLINE_S": "30"}  # nothing here depends on speed
# Benin, which was held out of tuning, and lines of two other countries, so that there is something else to read.
LINES = {"bn": slice(0, 40), "to": slice(40, 60), "ng": slice(80, 100)}

RULES = {"key": "rules", "title": "House rules", "text": "Quiet hours: from ten to six.\nBicycles: in the yard."}


def write_countries(file: Path, lines: dict[str, slice]) -> None:
    """Documents of the Factbook with these of their lines, by key."""
    with (ROOT / "data" / "factbook.jsonl").open(encoding="utf-8") as countries:
        chosen = [country for country in map(json.loads, countries) if country["key"] in lines]
    for country in chosen:
        country["text"] = "\n".join(country["text"].splitlines()[lines[country["key"]]])
    file.write_text("".join(json.dumps(country) + "\n" for country in chosen), encoding="utf-8")


class Day:
    """A service that can be killed and started again on the same port, and the app on the device."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.folder, self._bundle = folder, bundle
        self.service = ServiceProcess.start(folder, bundle)
        self._ingest()
        self.app = AppProcess.start(folder, bundle, self.service.address, "--memory", "exact", environment=PATIENT)

    def kill_service(self) -> None:
        """Nobody answers at its address any more."""
        self.service.kill()

    def start_service(self) -> None:
        """It is back, at the address where it was."""
        self.service = ServiceProcess.start(self.folder, self._bundle, listen=self.service.address)

    def close(self) -> None:
        """End both."""
        self.app.stop()
        self.service.kill()

    def _ingest(self) -> None:
        write_countries(self.folder / "default.jsonl", LINES)
        (self.folder / "firm.jsonl").write_text(json.dumps(RULES) + "\n", encoding="utf-8")
        for name in ("default", "firm"):
            file = self.folder / f"{name}.jsonl"
            ran(PROGRAMS / "memory-service", "ingest", file, "--kb", name, "--address", self.service.address)
