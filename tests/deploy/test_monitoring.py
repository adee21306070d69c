"""Dashboard, alerts and probes: queries ask for what the service exports, and alerts fire when they should."""

import asyncio
import json
import operator
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NoReturn

import promql_parser
import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from docs import site
from edge_client.serve.access import ServeSettings
from edge_client.settings import EdgeSettings
from memory_service.api import backup_ages, gauges, server
from memory_service.client.connection import Connection
from memory_service.errors import StoreUnavailable
from memory_service.settings import Settings
from memory_service.telemetry import metrics
from memory_service.telemetry.metrics import REGISTRY
from testing.programs import ROOT, ran

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
    for gauge in (*gauges.families(), *backup_ages.families()):
        found[gauge.name] = set(gauge._labelnames)
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


def test_the_reference_that_is_made_lists_every_setting_and_metric() -> None:
    """Metrics that only a running service registers too, which most alerts are about."""
    series = {name for name in exported() if name.startswith("memory_service_") and not name.endswith("_created")}
    wanted = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series}
    guide = (ROOT / "docs" / "operator-guide.md").read_text()
    named = re.findall(r"`(?:memory_service)?_([a-z_]+)(?:{[\w,]+})?`", guide)
    assert {f"memory_service_{name}" for name in named} == wanted
    for settings in (Settings, Connection, EdgeSettings, ServeSettings):
        wanted |= {f"{settings.model_config['env_prefix']}{name.upper()}" for name in settings.model_fields}
    assert wanted <= set(re.findall(r"`(\w+)`", site.settings_and_metrics()))


def test_the_legend_of_a_panel_names_labels_that_its_query_leaves() -> None:
    """Without its label a line of the panel has no name, and the lines of several pods are one."""
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    for target in (target for panel in dashboard["panels"] for target in panel["targets"]):
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        aggregated = re.match(r"(?:sum|min|max|avg|histogram_quantile)\b(?: by \(([^)]*)\))?", target["expr"])
        if aggregated:
            left = aggregated[1] or "".join(re.findall(r" by \(([^)]*)\)", target["expr"])[:1])
            assert named <= set(left.split(", ")), target["expr"]


def test_alerts_say_what_is_wrong_and_where_it_is_told_what_to_do() -> None:
    page = "docs/operations/runbooks.md"
    titles = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.M)
    told = {f"{page}#{re.sub(r'[^a-z0-9_ -]', '', title.lower()).replace(' ', '-')}" for title in titles}
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] in told


def test_the_runbook_of_slow_retrievals_names_every_stage_and_the_wait_for_memories() -> None:
    """A stage that it leaves out is the one that nobody looks at."""
    text = (ROOT / "docs/operations/runbooks.md").read_text().partition("## Retrieval is slow")[2].partition("\n## ")[0]
    assert {f"`{stage}`" for stage in metrics._STAGES} <= set(re.findall(r"`\w+`", text))
    assert "`cold_wait_s`" in text, "it is part of `fetch`"


def test_promtool_sees_each_alert_fire_and_not_fire() -> None:
    page = yaml.safe_load((ROOT / "tests" / "deploy" / "alerts.promtool.yaml").read_text())
    cases = [case for test in page["tests"] for case in test["alert_rule_test"]]
    both = {(rule["alert"], fires) for rule in alerts() for fires in (True, False)}
    assert {(case["alertname"], bool(case["exp_alerts"])) for case in cases} == both


def test_what_a_service_does_not_know_yet_raises_no_alert() -> None:
    """The disk of a server's store is never known, and before its first look a pod knows neither disk nor store."""
    names = ["memory_service_disk_free_bytes", "memory_service_store_up"]
    fresh = f"from memory_service.telemetry.metrics import REGISTRY as r; print(*map(r.get_sample_value, {names}))"
    values = dict(zip(names, ran(sys.executable, "-c", fresh).split(), strict=True))
    rules = [re.fullmatch(r"(\w+) (<|==) (\d+)", rule["expr"]) for rule in alerts()]
    asked = {rule[1]: (rule[2], float(rule[3])) for rule in rules if rule and rule[1] in names}
    assert asked.keys() == values.keys()
    for name, (sign, bound) in asked.items():
        fires = operator.lt if sign == "<" else operator.eq
        assert not fires(float(values[name]), bound), name


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
        settings = Settings(listen="127.0.0.1:0", metrics_listen=f"127.0.0.1:{port}")
        await server.serve_until_signal(settings, lambda: None)  # type: ignore[arg-type,return-value]

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
