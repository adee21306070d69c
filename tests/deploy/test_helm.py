"""The chart: what it renders is what Kubernetes accepts, and what contradicts itself is refused with the reason."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy import helm_docs
from deploy.kube_tools import tool

CHART = helm_docs.CHART
GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = sorted(p.stem for p in (CHART / "examples").glob("*.yaml"))
KUBERNETES = "1.31.0"
CUSTOM = {"Certificate", "ServiceMonitor", "PrometheusRule", "RayJob"}
EXTERNAL = {"kind": "external", "external": {"url": "clickhouse://m@ch:8123/m", "existingSecret": "s"}}
TLS = {"enabled": True, "existingSecret": "t"}
MTLS = {"clientCaSecret": "ca", "existingClientSecret": "c"}
URL = "clickhouse://m@ch:8123/m"
KEY = "m3_0123456789ab_" + "a_-B" * 11


@functools.cache
def helm() -> Path:
    return tool("helm")


def run(*arguments: str | Path, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    given = ["-f", "-"] if values is not None else []
    return subprocess.run(
        [helm(), *arguments, *given], input=yaml.safe_dump(values) if values is not None else None,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def render(values: dict[str, Any] | None = None, *options: str | Path) -> list[dict[str, Any]]:
    done = run("template", "memories", CHART, "--namespace", "shop", *options, values=values or {})
    assert done.returncode == 0, done.stderr
    return [m for m in yaml.safe_load_all(done.stdout) if m]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [m for m in manifests if m["kind"] == kind]
    return found


def accepted(manifests: list[dict[str, Any]]) -> None:
    """Raises what Kubernetes' schemas find wrong, and what the house forbids."""
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        assert len(manifest["metadata"]["name"]) <= (52 if manifest["kind"] == "CronJob" else 63)
        for spec in pods(manifest):
            for container in spec["containers"]:
                assert re.search(r"(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})$", container["image"])
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
                assert container["resources"]["limits"]["memory"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["automountServiceAccountToken"] is False
            mounted = {m["name"] for c in spec["containers"] for m in c["volumeMounts"]}
            claims = {t["metadata"]["name"] for t in manifest["spec"].get("volumeClaimTemplates", [])}
            assert mounted <= {v["name"] for v in spec["volumes"]} | claims


def pods(node: Any) -> list[dict[str, Any]]:
    """Every pod's spec in a manifest, however deep."""
    if isinstance(node, list):
        return [p for n in node for p in pods(n)]
    if not isinstance(node, dict):
        return []
    here = [node] if "containers" in node else []
    return here + [p for n in node.values() for p in pods(n)]


def test_the_chart_is_linted() -> None:
    done = run("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


def test_schema_and_readme_are_what_the_values_say() -> None:
    assert helm_docs.main(["--check"]) == 0


def test_every_value_is_described() -> None:
    source = (CHART / "values.yaml").read_text()
    told = {v.path for v in helm_docs.described(source)}

    def leaves(node: Any, path: str) -> list[str]:
        if path in told or not isinstance(node, dict):
            return [path]
        return [p for k, v in node.items() for p in leaves(v, f"{path}.{k}" if path else k)]

    whole = [p for p in leaves(yaml.safe_load(source), "") if not re.search(r"\.(requests|limits)\.", p)]
    assert [p for p in whole if p not in told] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_render_to_what_kubernetes_accepts(example: str) -> None:
    accepted(render(None, "-f", CHART / "examples" / f"{example}.yaml"))


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_render_as_they_were_reviewed(example: str) -> None:
    done = run(
        "template", "memories", CHART, "--namespace", "shop", "-f", CHART / "examples" / f"{example}.yaml"
    )
    text = re.sub(
        r'(api-key: m3_|"created_at\\":\\"|"id\\":\\"|"sha256\\":\\")[^\\"\n]+', r"\1…", done.stdout
    )
    golden = GOLDEN / f"{example}.yaml"
    if "WRITE_GOLDEN" in os.environ:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), (
        "is the difference meant? WRITE_GOLDEN=1 pytest tests/deploy/test_helm.py"
    )


OPERATORS = sorted((CHART / "examples" / "clickhouse").glob("*.yaml"))
FIELDS = {
    # What the official operator's API reference lists; its definitions are not among Kubernetes' schemas.
    "KeeperCluster": {"replicas", "podTemplate", "containerTemplate", "dataVolumeClaimSpec", "settings"},
    "ClickHouseCluster": {
        "replicas", "shards", "keeperClusterRef", "podTemplate", "containerTemplate", "dataVolumeClaimSpec", "settings",
        "upgradeChannel",
    },
}  # fmt: skip


@pytest.mark.parametrize("file", OPERATORS, ids=lambda f: f.stem)
def test_the_custom_resources_of_clickhouse_are_whole(file: Path) -> None:
    """No definitions of theirs can be had here: Kubernetes' own parts are validated, names compared."""
    resources = {r["kind"]: r for r in yaml.safe_load_all(file.read_text())}
    keeper, server = [r for r in resources.values() if r["kind"] != "Certificate"]
    assert all(r["metadata"]["namespace"] == "databases" for r in resources.values())
    for resource in (keeper, server):
        known = FIELDS.get(resource["kind"])
        assert known is None or set(resource["spec"]) <= known
    text = file.read_text()
    assert "latest" not in text
    assert "clickhouse-memories" in text, "the Secret with the password that the chart's example names"


def test_the_official_operator_gets_volumes_and_containers_that_kubernetes_takes() -> None:
    for resource in yaml.safe_load_all((CHART / "examples" / "clickhouse" / "official.yaml").read_text()):
        spec = resource["spec"]
        if resource["kind"] == "Certificate":
            continue
        container = {**spec["containerTemplate"], "name": "server"}
        container["image"] = "{repository}:{tag}".format(**container["image"])
        accepted_by_schema("v1", "Pod", {"containers": [container]})
        accepted_by_schema("v1", "PersistentVolumeClaim", spec["dataVolumeClaimSpec"])


def accepted_by_schema(version: str, kind: str, spec: dict[str, Any]) -> None:
    manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_production_example_goes_with_the_official_operator() -> None:
    resources = {
        r["kind"]: r
        for r in yaml.safe_load_all((CHART / "examples" / "clickhouse" / "official.yaml").read_text())
    }
    external = yaml.safe_load((CHART / "examples" / "production.yaml").read_text())["store"]["external"]
    cluster = resources["ClickHouseCluster"]
    host = f"{cluster['metadata']['name']}-clickhouse-headless.databases.svc"
    (user,) = cluster["spec"]["settings"]["extraUsersConfig"]["users"]
    assert external["url"] == f"clickhouses://{user}@{host}:8443/memories"
    assert external["cluster"] == "default"
    assert host in resources["Certificate"]["spec"]["dnsNames"]
    (password,) = cluster["spec"]["containerTemplate"]["env"]
    assert password["valueFrom"]["secretKeyRef"] == {"name": external["existingSecret"], "key": "password"}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replicas": 2}, "embedded store has one writer"),
        ({"autoscaling": {"enabled": True}}, "autoscaling.enabled needs store.kind external"),
        ({"store": {"kind": "external"}}, "set store.external.url"),
        ({"store": {"external": {"url": URL}}}, "store.kind is embedded"),
        ({"store": {**EXTERNAL, "external": {"url": URL, "caSecret": "ca"}}}, "asks for no certificate"),
        (
            {"store": {"kind": "external", "external": {"url": "clickhouse://m:secret@ch/m"}}},
            "holds a password",
        ),
        ({"store": {**EXTERNAL, "external": {**EXTERNAL["external"], "password": "x"}}}, "both set"),  # type: ignore[dict-item]
        ({"service": {"type": "LoadBalancer"}, "auth": {"enabled": False}}, "without authentication"),
        ({"service": {"type": "NodePort"}}, "keys would travel in the clear"),
        ({"tls": {"enabled": True}}, "needs tls.existingSecret or tls.certManager.enabled"),
        ({"tls": {"existingSecret": "t"}}, "tls.enabled is false"),
        ({"tls": {**TLS, **MTLS}, "auth": {"enabled": False}}, "the key file what they may do"),
        ({"tls": {**TLS, "certManager": {"enabled": True}}}, "keep one"),
        (
            {"tls": {**TLS, "clientCaSecret": "ca"}, "backup": {"enabled": True, "target": "s3://b"}},
            "tls.existingClientSecret",
        ),
        ({"auth": {"generate": False}}, "auth.generate, auth.apiKey or auth.existingSecret"),
        ({"auth": {"apiKey": KEY, "existingSecret": "s"}}, "both set"),
        ({"auth": {"apiKey": "secret"}}, "no key"),
        ({"image": {"tag": "latest"}}, "latest is refused"),
        ({"ingestion": {"enabled": True}}, "the claim with the documents"),
        ({"backup": {"enabled": True}}, "needs backup.target"),
        ({"backup": {"enabled": True, "target": "here"}}, "set backup.existingClaim"),
        ({"metrics": {"enabled": False, "serviceMonitor": {"enabled": True}}}, "need metrics.enabled"),
        ({"terminationGracePeriodSeconds": 20}, "calls under way would be killed"),
        ({"settings": {"max_kk": 1}}, "max_kk"),
        ({"settings": {"listen": "0.0.0.0:1"}}, "listen"),
        ({"settings": {"max_k": 0}}, "max_k"),
        ({"replica": 2}, "replica"),
        ({"store": {"kind": "cloud"}}, "store.kind"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_reason(values: dict[str, Any], reason: str) -> None:
    done = run("template", "memories", CHART, values=values)
    assert done.returncode != 0
    assert reason in done.stderr


def test_a_given_key_opens_the_service_and_is_the_same_at_every_rendering() -> None:
    import hashlib

    from memory_service.access.keys import KeyFile

    one, other = (of_kind(render({"auth": {"apiKey": KEY}}), "Secret")["stringData"] for _ in range(2))
    assert one == other
    assert one["api-key"] == KEY
    (key,) = KeyFile.model_validate_json(one["keys.json"]).keys
    _, key_id, secret = KEY.split("_", 2)
    assert (key.id, key.sha256) == (key_id, hashlib.sha256(secret.encode()).hexdigest())


def test_the_generated_key_opens_the_service_that_gets_its_hash() -> None:
    import hashlib

    from memory_service.access.keys import KeyFile

    secret = of_kind(render(), "Secret")["stringData"]
    _, key_id, given = secret["api-key"].split("_", 2)
    (key,) = KeyFile.model_validate_json(secret["keys.json"]).keys
    assert (key.id, key.sha256) == (key_id, hashlib.sha256(given.encode()).hexdigest())
    assert given not in secret["keys.json"]


def test_settings_reach_the_service_as_it_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from memory_service.settings import CONFIG_VARIABLE, Settings

    given = {"max_k": 7, "default_deadline_s": 2.5, "reflection": False}
    file = tmp_path / "service.toml"
    file.write_text(of_kind(render({"settings": given, "tls": TLS}), "ConfigMap")["data"]["service.toml"])
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    read = Settings()
    assert (read.max_k, read.default_deadline_s, read.reflection) == (7, 2.5, False)
    assert read.listen == "0.0.0.0:7430"
    assert str(read.tls_certificate) == "/etc/memory-service/tls/tls.crt"


def test_changed_settings_replace_the_pods() -> None:
    def checksum(values: dict[str, Any]) -> str:
        return of_kind(render(values), "StatefulSet")["spec"]["template"]["metadata"]["annotations"][
            "checksum/config"
        ]

    assert checksum({}) == checksum({}) != checksum({"settings": {"max_k": 7}})


labels = st.dictionaries(
    st.sampled_from(["team", "app.example.org/tier"]), st.sampled_from(["a", "b-1"]), max_size=2
)
flags = st.booleans()


@st.composite
def some_values(draw: st.DrawFn) -> dict[str, Any]:
    """Values that agree with each other."""
    external, tls = draw(flags), draw(flags)
    public, mutual = tls and draw(flags), tls and draw(flags)
    return {
        "store": {"kind": "external", "external": draw(st.sampled_from([
            {"url": URL, "existingSecret": "s"},
            {"url": "clickhouses://m@ch/m", "password": "p", "caSecret": "ca"},
        ]))} if external
        else {"embedded": {"engine": draw(st.sampled_from(["chdb", "file"])), "persistence": {"enabled": draw(flags)}}},
        "replicas": draw(st.integers(0, 5)) if external else 1,
        "autoscaling": {"enabled": external and draw(flags)},
        "tls": {**TLS, **(MTLS if mutual else {})} if tls else {},
        "service": {"type": draw(st.sampled_from(["NodePort", "LoadBalancer"])) if public else "ClusterIP"},
        "auth": {"enabled": public or mutual or draw(flags)},
        "networkPolicy": {"enabled": draw(flags)},
        "metrics": {"enabled": True, "serviceMonitor": {"enabled": draw(flags)}, "dashboard": {"enabled": draw(flags)}},
        "backup": {"enabled": draw(flags), "target": "s3://bucket/path"},
        "ingestion": {"enabled": draw(flags), "engine": draw(st.sampled_from(["local", "ray"])),
                      "source": {"existingClaim": "documents"}},
        "probes": {"liveness": {"enabled": draw(flags)}},
        "commonLabels": draw(labels), "podLabels": draw(labels), "nodeSelector": draw(labels),
        "fullnameOverride": draw(st.sampled_from(["", "m", "long-" * 13 + "name"])),
    }  # fmt: skip


def test_only_kuberay_and_its_own_pods_reach_the_ports_of_ray() -> None:
    """Whoever reaches them runs what he likes: Ray asks nobody who he is."""
    manifests = render(None, "-f", CHART / "examples" / "production.yaml")
    (policy,) = [
        m for m in manifests if m["kind"] == "NetworkPolicy" and m["metadata"]["name"].endswith("-ray")
    ]
    sources = [source for rule in policy["spec"]["ingress"] for source in rule["from"]]
    labels = [source["podSelector"]["matchLabels"] for source in sources]
    job = of_kind(manifests, "RayJob")["metadata"]["name"]
    assert labels[1:] == [{"job-name": job}, {"app.kubernetes.io/component": "kuberay-operator"}]
    assert labels[0]["app.kubernetes.io/component"] == "ingest"
    assert ["namespaceSelector" in source for source in sources] == [False, False, True]


def test_long_names_leave_room_for_every_suffix() -> None:
    names = {"fullnameOverride": "long-" * 13 + "name", "nameOverride": "n" * 80}
    backup = {"enabled": True, "target": "s3://b"}
    accepted(render({**names, "backup": backup}))
    accepted(
        render({**names, "backup": backup, "store": {**EXTERNAL, "external": {"url": URL, "password": "p"}}})
    )


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(some_values())
def test_whatever_values_agree_render_to_what_kubernetes_accepts(values: dict[str, Any]) -> None:
    accepted(render(values))
