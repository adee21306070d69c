"""The age of each knowledge base's newest backup, as its record says."""

import math
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from memory3.errors import InvalidInput
from memory_service.api import backup_ages
from memory_service.archive import Archive
from memory_service.client.backup import back_up
from memory_service.telemetry.metrics import REGISTRY
from testing.encoders import HashEncoder
from tests.memory_service.running import document, eventually, metric, running


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_ages, "INTERVAL_S", 0.05)


def test_the_age_is_the_newest_complete_backups_or_the_knowledge_bases_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "backups"
    settings = {"metrics_listen": "127.0.0.1:0", "backups": str(place), "backups_max_age_h": 1}
    with running(tmp_path, HashEncoder(), **settings) as (client, server):

        def age_s(kb: str) -> float:
            return metric(server.metrics_port, f'memory_service_backup_age_seconds{{knowledge_base="{kb}"}}')

        address = f"127.0.0.1:{server.port}"
        client.ingest("kb", document("a", "Text."))
        assert 0 <= age_s("kb") < 60
        with monkeypatch.context() as earlier:
            earlier.setattr("memory_service.archive.datetime", Yesterday)
            back_up(address, "kb", Archive(str(place / "kb")))
        eventually(lambda: 86_000 < age_s("kb") < 87_000)
        assert age_s("default") < 60
        (place / "kb" / "20990101T000000.000Z.memories").touch()  # of a run that did not end
        back_up(address, "kb", Archive(str(place / "kb")), keep=2)
        eventually(lambda: age_s("kb") < 60)
        newest = Archive(str(place / "kb")).backup()
        record = place / "kb" / newest.file.replace("memories", "json")
        record.write_text("damaged")
        assert age_s("kb") < 60, "what was read of it before"
        assert metric(server.metrics_port, 'memory_service_backup_age_limit_seconds{knowledge_base="kb"}') == 3600
    with running(tmp_path, HashEncoder(), **settings, backups_of="default") as (_, server):
        assert metric(server.metrics_port, 'memory_service_backup_age_limit_seconds{knowledge_base="kb"}') == 0
        assert metric(server.metrics_port, 'memory_service_backup_age_limit_seconds{knowledge_base="default"}') == 3600


def test_a_knowledge_base_that_is_to_be_backed_up_and_is_not_there_is_infinitely_old(tmp_path: Path) -> None:
    """Such as a misspelt one: every run of its backup fails, and nothing else would tell."""
    place = tmp_path / "backups"
    settings = {"metrics_listen": "127.0.0.1:0", "backups": str(place), "backups_of": "kb,default"}
    with running(tmp_path, HashEncoder(), **settings) as (client, server):

        def age_s(kb: str) -> float:
            return metric(server.metrics_port, f'memory_service_backup_age_seconds{{knowledge_base="{kb}"}}')

        assert age_s("kb") == math.inf
        assert age_s("default") < 60
        client.ingest("kb", document("a", "Text."))
        back_up(f"127.0.0.1:{server.port}", "kb", Archive(str(place / "kb")))
        assert age_s("kb") < 60
        client.drop("kb")
        eventually(lambda: 0 < age_s("kb") < 60)


class Yesterday(datetime):
    """A clock that is a day late."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now(timezone.utc) - timedelta(days=1)


def test_a_place_that_cannot_hold_backups_is_refused_at_start(tmp_path: Path) -> None:
    before = [family.name for family in REGISTRY.collect()]
    with (
        pytest.raises(InvalidInput, match="no location for a backup"),
        running(tmp_path, HashEncoder(), backups="ftp://somewhere"),
    ):
        pass
    assert [family.name for family in REGISTRY.collect()] == before, "no gauge of the store stays"
