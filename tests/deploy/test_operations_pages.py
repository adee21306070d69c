"""The pages of docs/operations: every block says how it was tried, and the others are run, page by page (slow).

They are typed as they stand, against the real service and the default model. A temporary folder stands in for /srv and
/etc. Pages that begin with a running service get one, with a knowledge base `handbook` of one document and a backup of
it; `SERVICE_PID` is its process.
"""

import asyncio
import configparser
import contextlib
import json
import operator
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import promql_parser
import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from deploy.kube_tools import ROOT, tool
from deploy.wheels import WHEELS
from docs import site
from edge_client.serve.access import ServeSettings
from edge_client.settings import EdgeSettings
from memory_model.catalogue.table import PREFIX
from memory_model.defaults import PACKAGED
from memory_model.models.folder import ModelFolder
from memory_service.api import backup_ages, gauges, server
from memory_service.client.connection import Connection
from memory_service.errors import StoreUnavailable
from memory_service.settings import Settings
from memory_service.telemetry import metrics
from memory_service.telemetry.metrics import REGISTRY
from testing.programs import ran

FOLDER = ROOT / "docs" / "operations"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"# (?:run by (?P<by>\S+)|not run here: (?P<why>.+))")


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of all fenced blocks of a page, in its order."""
    return _BLOCK.findall((FOLDER / page).read_text())


def runs(language: str, text: str) -> bool:
    """Whether a block is run as it stands: its first line may say otherwise."""
    return language == "sh" and _REMARK.match(text) is None


WANTED = (
    "README",
    "install",
    "upgrade",
    "scale",
    "backup",
    "keys",
    "runbooks",
    "capacity",
    "promises",
    "trust",
    "stores",
)


def test_every_subject_of_operations_has_its_page() -> None:
    assert {f"{name}.md" for name in WANTED} == set(PAGES)
    index = (FOLDER / "README.md").read_text()
    assert all(f"]({page})" in index for page in PAGES if page != "README.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_how_it_was_tried(page: str) -> None:
    for language, text in blocks(page):
        assert language in ("sh", "ini"), f"{page}: name the language of\n{text}"
        remark = _REMARK.match(text)
        if remark and remark["by"]:
            assert (ROOT / remark["by"]).is_file(), f"{page}: {remark['by']}"
        if runs(language, text):
            assert "kubectl" not in text or "--dry-run=client" in text, f"{page}: there is no cluster to run\n{text}"


@pytest.mark.parametrize("page", PAGES)
def test_what_is_asked_of_a_cluster_names_the_namespace(page: str) -> None:
    """The release is not in the default one: there, a command would find nothing."""
    text = (FOLDER / page).read_text().replace("\\\n", "")
    asked = re.findall(r"(?:^ *|`)((?:helm (?:install|upgrade|test|rollback)|kubectl) [^`\n]+)", text, re.MULTILINE)
    for command in asked:
        if not re.match(r"kubectl (create namespace|apply -f)|.* --dry-run=client", command):
            assert " -n " in command, command


def test_the_unit_of_systemd_can_be_enabled_and_waits_for_calls_under_way() -> None:
    ((_, text),) = [block for block in blocks("install.md") if block[0] == "ini"]
    unit = configparser.ConfigParser()
    unit.read_string(text)
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert unit.getint("Service", "TimeoutStopSec") > Settings.model_fields["shutdown_grace_s"].default


def test_the_page_of_the_installation_installs_what_its_commands_need() -> None:
    page = (FOLDER / "install.md").read_text()
    (install,) = [text for _, text in blocks("install.md") if "pip install torch" in text]
    installed = [wheel for wheel in WHEELS if f"dist/{wheel.name.replace('-', '_')}-*.whl" in install]
    assert f"the {['no', 'one', 'two', 'three', 'four', 'five'][len(WHEELS)]} wheels of a release" in page
    programs = {program for wheel in WHEELS for program in wheel.scripts}
    called = {program for program in programs if re.search(rf"\b{program} \w", page)}
    assert called <= {program for wheel in installed for program in wheel.scripts}
    base = ModelFolder.open(PACKAGED).base
    assert f"memory-model pull {base.removeprefix(PREFIX)}" in install, "`memory-model export` reads it"


BEFORE = """
mkdir -p /srv/memories /srv/backups /etc/memory-service
printf 'height: 47 metres\\nbuilt: 1871\\n' > "Lighthouse of Mirren.md"
memory-service serve --bundle bundle --store file:///srv/memories/store & SERVICE_PID=$!
until memory-service kb list; do sleep 1; done
memory-service ingest "Lighthouse of Mirren.md" --kb handbook
memory-service backup handbook /srv/backups/handbook
"""
STARTS_BY_ITSELF = {"install.md"}


@pytest.mark.slow
@pytest.mark.parametrize("page", ["install.md", "upgrade.md", "scale.md", "backup.md", "keys.md", "runbooks.md"])
def test_the_commands_of_a_page_do_what_it_says(page: str, bundle: Path, tmp_path: Path) -> None:
    for name, target in (("bundle", bundle), ("deploy", ROOT / "deploy"), ("requirements", ROOT / "requirements")):
        (tmp_path / name).symlink_to(target)
    said = [text for language, text in blocks(page) if runs(language, text)]
    assert said
    script = "\n".join([*([] if page in STARTS_BY_ITSELF else [BEFORE]), *said])
    for folder in ("/srv/", "/etc/memory-service"):
        script = script.replace(folder, f"{tmp_path}{folder}")
    log = tmp_path / "output"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment(tmp_path),
            start_new_session=True,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        code = process.wait(timeout=570)
    finally:
        with contextlib.suppress(ProcessLookupError):  # what the page leaves running
            os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, log.read_text()[-4000:]


def environment(folder: Path) -> dict[str, str]:
    """The programs of this environment, helm and kubectl; an address of its own in place of the default one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ours = ("MEMORY_SERVICE_", "EDGE_CLIENT_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    tool("kubectl")
    return {
        **inherited,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(tool("helm").parent), os.environ["PATH"]]),
        "HOME": str(folder),
        "MEMORY_SERVICE_LISTEN": address,
        "MEMORY_SERVICE_ADDRESS": address,
        "EDGE_CLIENT_SERVICE": address,
    }


# Dashboard and alerts: every query can be parsed, and asks for what the service really exports.

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
