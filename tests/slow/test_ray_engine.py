"""`ingest --engine ray` on a cluster of this machine: a worker is killed, and nothing is lost or doubled."""

import json
from pathlib import Path

import pytest

from memory_service.client.ingest import Destination
from memory_service.client.ray import IngestionStopped, ingest_with_ray
from testing.encoders import HashModel
from tests.memory_service.processes import ROOT, client_of, service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # starting Ray alone takes a busy machine a minute


@pytest.fixture(autouse=True)
def _our_code_for_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def write_facts(file: Path, count: int) -> Path:
    lines = [json.dumps({"key": f"k{n}", "text": f"Fact {n}. " * (1 + n % 90)}) for n in range(count)]
    file.write_text("\n".join(lines))
    return file


def test_a_killed_worker_is_replaced_and_every_document_is_there_once(tmp_path: Path) -> None:
    facts = write_facts(tmp_path / "facts.jsonl", 300)
    pids = tmp_path / "pids"
    pids.mkdir()
    model = HashModel(pids, deadly="Fact 150.")
    with service(tmp_path) as running, client_of(running) as client:
        to = Destination(running.address, client.create("kb"))
        rows = list(ingest_with_ray({str(facts): facts}, to, model, processors=0.5))
        assert (pids / "died").exists()
        assert len(list(pids.glob("*.worker"))) > 2, "another worker took the place of the killed one"
        assert sorted(row.key for row in rows) == sorted(f"k{n}" for n in range(300))
        assert {row.outcome for row in rows} <= {"stored", "unchanged"}
        stored = client.counts("kb")
        assert stored == (300, sum(row.references for row in rows))

        loaded = len(list(pids.glob("*.worker")))
        again = list(ingest_with_ray({str(facts): facts}, to, model, processors=0.5))
        assert {row.outcome for row in again} == {"unchanged"}
        assert client.counts("kb") == stored
        assert len(list(pids.glob("*.worker"))) <= loaded + 2
        texts = [part.text for part in client.document("kb", "k5").references]
        assert texts == ["Fact 5. Fact 5. Fact 5. Fact 5. Fact 5. Fact 5."]


def test_workers_with_another_model_stop_the_ingestion_with_the_reason(tmp_path: Path) -> None:
    facts = write_facts(tmp_path / "facts.jsonl", 3)
    with service(tmp_path) as running, pytest.raises(IngestionStopped, match="service's model"):
        list(
            ingest_with_ray(
                {str(facts): facts},
                Destination(running.address, "default"),
                HashModel(tmp_path, name="other"),
                workers=1,
            )
        )
