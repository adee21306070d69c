"""Dashboard and alerts: every query can be parsed, and asks for what the service really exports."""

import asyncio
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NoReturn

import promql_parser
import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from deploy.kube_tools import ROOT
from memory_service.api import server
from memory_service.errors import StoreUnavailable
from memory_service.ops import metrics
from memory_service.ops.metrics import REGISTRY
from memory_service.settings import Settings

SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
CHART = ROOT / "deploy" / "helm" / "memory-service"
RULES = CHART / "files" / "alerts.yaml"
ADDED = {"instance", "le"}  # by Prometheus, and by histograms


def exported() -> dict[str, set[str]]:
    """Names of series with the labels they have."""
    found: dict[str, set[str]] = {}
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            for suffix in SUFFIXES[metric._type]:
                found[metric._name + suffix] = set(metric._labelnames)
    for family in REGISTRY.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set(sample.labels) - ADDED)
    return found


def queries() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".+")
    for rule in alerts():
        yield rule["alert"], rule["expr"]


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def selectors(node: Any) -> Iterator[Any]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if getattr(node, part, None) is not None:
            yield from selectors(getattr(node, part))
    for argument in getattr(node, "args", None) or []:
        yield from selectors(argument)


@pytest.mark.parametrize(("where", "query"), list(queries()), ids=lambda v: v if len(v) < 40 else "")
def test_a_query_asks_for_what_the_service_exports(where: str, query: str) -> None:
    known = exported()
    asked = list(selectors(promql_parser.parse(query)))
    assert asked
    for selector in asked:
        assert selector.name in known, where
        used = {m.name for m in selector.matchers.matchers}
        assert used <= known[selector.name] | ADDED, where


def test_alerts_say_what_is_wrong_and_where_it_is_told_what_to_do() -> None:
    page = "docs/operations/runbooks.md"
    titles = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.M)
    told = {f"{page}#{re.sub(r'[^a-z0-9_ -]', '', title.lower()).replace(' ', '-')}" for title in titles}
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] in told


async def test_probes_tell_a_service_that_opens_its_store_from_one_that_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "_STUCK_AFTER_S", 1.0)
    opened = threading.Event()

    def slow_store(*_: object) -> NoReturn:
        opened.wait(60)
        raise StoreUnavailable("no store today")

    monkeypatch.setattr(server, "open_store", slow_store)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    async def serve() -> None:
        await server.serve_until_signal(Settings(metrics_listen=f"127.0.0.1:{port}"), lambda: None)  # type: ignore[arg-type,return-value]

    serving = asyncio.create_task(serve())
    await asyncio.sleep(0)
    metrics.READY.set(0)
    assert await asyncio.to_thread(status, "/live") == 200
    assert await asyncio.to_thread(status, "/ready") == 503
    assert await asyncio.to_thread(status, "/metrics") == 200
    assert status("/live") == 503, "the event loop is busy with this very line"
    opened.set()
    with pytest.raises(StoreUnavailable):
        await serving
