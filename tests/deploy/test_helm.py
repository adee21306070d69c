"""The chart: what it renders is what Kubernetes accepts, and what contradicts itself is refused with the reason."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import tomllib
import yaml

from memory3 import __version__ as VERSION
from memory_service.access.authorization import OPERATORS_NAME
from memory_service.access.keys import KeyFile
from memory_service.settings import CONFIG_VARIABLE, Settings
from testing.processes import PROGRAMS, ServiceProcess
from testing.programs import ran
from tests.deploy.chart import CHART, CUSTOM, EXTERNAL, KUBERNETES, URL, Manifest, of_kind, render, run

SET_BY_CHART = {
    "listen",
    "port_file",
    "store",
    "store_cluster",
    "store_password",
    "keys",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
    "insecure",
    "metrics_listen",
    "bundle",
}
EXAMPLES = sorted(p.stem for p in (CHART / "examples").glob("*.yaml"))
TLS = {"enabled": True, "existingSecret": "t"}
ACME = {"enabled": True, "issuerRef": {"name": "acme"}, "clusterNames": False, "dnsNames": ["m.example.org"]}
MTLS = {"clientCaSecret": "ca", "existingClientSecret": "c"}
INGESTION = {"enabled": True, "source": {"existingClaim": "documents"}}
BACKUP = {"enabled": True, "target": "s3://b"}
EVERY_POD: dict[str, Any] = {"store": EXTERNAL, "backup": BACKUP, "ingestion": INGESTION}
OURS = {"app.kubernetes.io/name": "memory-service", "app.kubernetes.io/instance": "memories"}


def example(name: str) -> list[Manifest]:
    return render(None, "-f", CHART / "examples" / f"{name}.yaml")


def pods(node: Any) -> Iterator[tuple[dict[str, Any], Manifest]]:
    """Labels and spec of every pod in manifests, however deep."""
    if isinstance(node, list):
        for part in node:
            yield from pods(part)
    elif isinstance(node, dict):
        if "containers" in node.get("spec", {}):
            yield node["metadata"]["labels"], node["spec"]
        yield from (found for part in node.values() for found in pods(part))


def accepted(manifests: list[Manifest]) -> None:
    """Raises what Kubernetes refuses, a restricted namespace refuses, or kube-linter warns of."""
    for manifest in manifests:
        name, kind = manifest["metadata"]["name"], manifest["kind"]
        for version in () if kind in CUSTOM else KUBERNETES:
            kubernetes_validate.validate(manifest, version, strict=True)
        index = f"-{manifest['spec'].get('completions', 0) - 1}" if kind == "Job" else ""
        assert len(name + index) <= (52 if kind == "CronJob" else 63)
        claims = {t["metadata"]["name"] for t in manifest.get("spec", {}).get("volumeClaimTemplates", [])}
        for labels, pod in pods(manifest):
            assert OURS.keys() <= labels.keys(), "a NetworkPolicy selects it"
            assert pod["automountServiceAccountToken"] is False
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for volume in pod["volumes"]:
                kinds = {"configMap", "emptyDir", "ephemeral", "persistentVolumeClaim", "secret"}
                assert not volume.keys() - {"name", *kinds}
            for container in pod["containers"]:
                assert re.search(r"(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})$", container["image"])
                security = container["securityContext"]
                assert security["readOnlyRootFilesystem"] is True
                assert security["allowPrivilegeEscalation"] is False
                assert security["capabilities"] == {"drop": ["ALL"]}
                assert container["resources"]["requests"]["cpu"]
                assert container["resources"]["limits"]["memory"]
                names = [variable["name"] for variable in container["env"]]
                assert len(set(names)) == len(names)
                assert {m["name"] for m in container["volumeMounts"]} <= {v["name"] for v in pod["volumes"]} | claims


def jobs(values: dict[str, Any]) -> list[Manifest]:
    return [m for m in render(values) if m["kind"] in ("Job", "CronJob")]


def environment(pod: Manifest) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}


def test_the_schema_knows_the_services_settings_and_every_value() -> None:
    """Helm's lint refuses a value that the schema lacks; the service's settings stand in no value."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]
    assert schema["properties"].keys() == Settings.model_fields.keys() - SET_BY_CHART
    assert schema["additionalProperties"] is False


def test_a_knowledge_base_may_be_called_as_the_operator_calls_it() -> None:
    """A tenant's too: the chart's own clients have an operator's key unless they are given another one."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    pattern = f"^{OPERATORS_NAME}$"
    assert schema["ingestion"]["properties"]["knowledgeBase"]["pattern"] == pattern
    assert schema["backup"]["properties"]["knowledgeBases"]["items"]["pattern"] == pattern
    ingestion, backup = {**INGESTION, "knowledgeBase": "acme/handbook"}, {"knowledgeBases": ["acme/handbook"]}
    found = render({"ingestion": ingestion, "backup": {**EVERY_POD["backup"], **backup}})
    accepted(found)
    assert fact(found, "Job", f"{POD}.args")[-1] == "acme/handbook"
    assert fact(found, "CronJob", f"spec.jobTemplate.{POD}.args")[-1] == "acme/handbook"


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_render_to_what_kubernetes_accepts(name: str) -> None:
    accepted(example(name))


def fact(manifests: list[Manifest], kind: str, path: str) -> Any:
    """What stands at a path of the manifest of a kind: keys and numbers between dots."""
    node: Any = of_kind(manifests, kind)
    for part in path.split("."):
        node = node[int(part)] if part.isdigit() else node[part]
    return node


POD = "spec.template.spec.containers.0"


@pytest.mark.parametrize(
    ("values", "kind", "path", "expected"),
    [
        # A pod that loads or waits for its store gets no traffic and is not restarted.
        ({}, "StatefulSet", f"{POD}.readinessProbe.httpGet", {"path": "/ready", "port": "metrics"}),
        ({}, "StatefulSet", f"{POD}.livenessProbe.httpGet", {"path": "/live", "port": "metrics"}),
        # A new version of the chart alone replaces no pod: its labels do not name it.
        ({}, "StatefulSet", "spec.template.metadata.labels", {**OURS, "app.kubernetes.io/component": "service"}),
        ({"sidecars": [{"name": "a", "image": "p:1"}]}, "StatefulSet", "spec.template.spec.containers.1.name", "a"),
        (
            {"image": {"registry": "r.example", "digest": "sha256:" + "a" * 64}},
            "StatefulSet",
            f"{POD}.image",
            f"r.example/memory3/memory-service@sha256:{'a' * 64}",
        ),
        (
            {"ingestion": {**INGESTION, "image": {"registry": "gpu.example", "repository": "encoder"}}},
            "Job",
            f"{POD}.image",
            f"gpu.example/encoder:{VERSION}",
        ),
        (
            {"backup": {"enabled": True, "target": "s3://b", "existingSecret": "bucket"}},
            "CronJob",
            "spec.jobTemplate.spec.template.spec.containers.0.envFrom",
            [{"secretRef": {"name": "bucket"}}],
        ),
        ({"backup": {**BACKUP, "timeZone": "Europe/Berlin"}}, "CronJob", "spec.timeZone", "Europe/Berlin"),
        ({}, "StatefulSet", "spec.volumeClaimTemplates.0.spec.accessModes", ["ReadWriteOnce"]),
        (
            {"store": EXTERNAL, "autoscaling": {"enabled": True, "targetCallsUnderWay": 16}},
            "HorizontalPodAutoscaler",
            "spec.metrics.1.pods.metric.name",
            "memory_service_calls_under_way",
        ),
        # A public authority refuses a cluster's names.
        ({"tls": {"enabled": True, "certManager": ACME}}, "Certificate", "spec.dnsNames", ["m.example.org"]),
    ],
)
def test_a_value_ends_where_kubernetes_looks(values: dict[str, Any], kind: str, path: str, expected: object) -> None:
    assert fact(render(values), kind, path) == expected


def test_every_pod_gets_what_is_given_to_all() -> None:
    everywhere: dict[str, Any] = {
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "priorityClassName": "high",
        "imagePullSecrets": ["mirror"],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:1"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "containerSecurityContext": {"runAsUser": 5},
    }
    ingestion = {**INGESTION, "nodeSelector": {"gpu": "b"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    manifests = render({**EVERY_POD, **everywhere, "ingestion": ingestion})
    accepted(manifests)
    found = {pod["containers"][0]["name"]: pod for _, pod in pods(manifests)}
    assert found.keys() == {"service", "migrate", "backup", "round-trip", "ingest"}
    ingest = found["ingest"]
    assert ingest["nodeSelector"] == {"gpu": "b"}
    assert [toleration["key"] for toleration in ingest["tolerations"]] == ["a", "gpu"]
    for name, pod in found.items():
        (container,) = pod["containers"]
        assert pod["priorityClassName"] == "high"
        assert pod["imagePullSecrets"] == [{"name": "mirror"}]
        assert environment(pod)["HTTPS_PROXY"] == "http://proxy:1"
        assert {"name": "more", "emptyDir": {}} in pod["volumes"]
        assert {"name": "more", "mountPath": "/more"} in container["volumeMounts"]
        assert container["securityContext"]["runAsUser"] == 5
        if name != "ingest":
            assert pod["nodeSelector"] == {"pool": "a"}
            assert pod["tolerations"] == everywhere["tolerations"]


def test_a_seccomp_profile_of_ones_own_replaces_the_default_one() -> None:
    """Kubernetes refuses a localhostProfile with another type than Localhost."""
    own = {"type": "Localhost", "localhostProfile": "profiles/service.json"}
    found = [
        pod["securityContext"] for _, pod in pods(render({**EVERY_POD, "podSecurityContext": {"seccompProfile": own}}))
    ]
    assert [(one["runAsNonRoot"], one["seccompProfile"]) for one in found] == [(True, own)] * 5


def test_an_upgrade_whose_pod_does_not_start_can_be_rolled_back() -> None:
    """With OrderedReady, Kubernetes waits for the pod that it would have to replace (kubernetes/kubernetes#67250)."""
    assert fact(render(), "StatefulSet", "spec.podManagementPolicy") == "Parallel"


def test_a_job_that_failed_leaves_its_pods_and_what_they_logged() -> None:
    """With OnFailure Kubernetes removes the pod once the Job gives up; the runbooks send for its log."""
    found = {labels["app.kubernetes.io/component"]: pod["restartPolicy"] for labels, pod in pods(jobs(EVERY_POD))}
    assert found == dict.fromkeys(("backup", "ingest", "migrate"), "Never")


def test_a_backup_to_a_bucket_is_made_on_a_volume_of_its_size() -> None:
    """Not on the disk of the node, whose kubelet evicts a pod that fills it."""
    scratch = {"size": "200Gi", "storageClass": "fast"}
    manifests = render({"backup": {"enabled": True, "target": "s3://b", "scratch": scratch}})
    accepted(manifests)
    ((_, pod),) = pods(of_kind(manifests, "CronJob"))
    (container,) = pod["containers"]
    (volume,) = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == environment(pod)["TMPDIR"]]
    (claim,) = [v["ephemeral"]["volumeClaimTemplate"]["spec"] for v in pod["volumes"] if v["name"] == volume]
    assert claim == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "200Gi"}},
    }


def test_the_certificate_names_every_service_that_clients_call() -> None:
    """The headless one too, over which devices balance their calls."""
    issuer = {"enabled": True, "issuerRef": {"name": "internal"}}
    manifests = render({"tls": {"enabled": True, "certManager": issuer}})
    services = [m["metadata"]["name"] for m in manifests if m["kind"] == "Service"]
    assert len(services) == 2
    ends = ("", ".shop", ".shop.svc", ".shop.svc.cluster.local")
    assert set(fact(manifests, "Certificate", "spec.dnsNames")) == {name + end for name in services for end in ends}


def test_a_certificate_is_replaced_in_time_however_short_its_issuer_makes_it() -> None:
    """cert-manager's own default is a third of the lifetime; 720h before its end is at once where that has 30 days."""
    plain = fact(render({"tls": {"enabled": True, "certManager": ACME}}), "Certificate", "spec")
    assert (plain["duration"], "renewBefore" in plain) == ("2160h", False)
    given = {**ACME, "duration": "24h", "renewBefore": "8h"}
    assert fact(render({"tls": {"enabled": True, "certManager": given}}), "Certificate", "spec.renewBefore") == "8h"


def test_clients_outside_come_by_ingress_or_gateway() -> None:
    ingress = {"enabled": True, "className": "nginx", "hosts": ["m.example.org"], "tlsSecret": "t"}
    route = {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["m.example.org"]}
    manifests = render({"ingress": ingress, "grpcRoute": route, "tls": TLS})
    accepted(manifests)
    assert of_kind(manifests, "Service", "service")["spec"]["ports"][0]["appProtocol"] == "https"
    (rule,) = of_kind(manifests, "Ingress")["spec"]["rules"]
    backend = {"name": "memories-memory-service", "port": {"name": "grpc"}}
    assert rule["http"]["paths"][0]["backend"] == {"service": backend}
    assert of_kind(manifests, "GRPCRoute")["spec"] == {
        "parentRefs": [{"name": "gateway"}],
        "hostnames": ["m.example.org"],
        "rules": [{"backendRefs": [{"name": "memories-memory-service", "port": 7430}]}],
    }


def test_ingress_nginx_neither_cuts_long_streams_off_nor_is_kept_from_the_pods() -> None:
    """By default it ends a call at 1 MB of requests or after 60 s of silence."""
    examples = CHART / "examples"
    manifests = render(None, "-f", examples / "production.yaml", "-f", examples / "ingress-nginx.yaml")
    accepted(manifests)
    named = of_kind(manifests, "Ingress")["metadata"]["annotations"]
    of_nginx = {name.removeprefix("nginx.ingress.kubernetes.io/"): value for name, value in named.items()}
    assert (of_nginx["backend-protocol"], of_nginx["proxy-body-size"]) == ("GRPCS", "0")
    assert min(int(of_nginx[f"proxy-{way}-timeout"]) for way in ("read", "send")) >= 3600
    services = [m["spec"] for m in manifests if m["kind"] == "Service"]
    assert {service.get("type", "ClusterIP") for service in services} == {"ClusterIP"}
    calls = fact(manifests, "NetworkPolicy", "spec.ingress.0.from")
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}} in calls


@pytest.mark.parametrize(("kind", "protocol"), [("ClusterIP", "https"), ("LoadBalancer", "tls"), ("NodePort", "tls")])
def test_no_load_balancer_takes_the_service_for_a_web_server(kind: str, protocol: str) -> None:
    """Azure's probe GET / of a Service whose appProtocol is https, which gRPC does not answer."""
    manifests = render({"service": {"type": kind}, "tls": TLS})
    accepted(manifests)
    found = {m["metadata"]["name"]: m["spec"]["ports"][0]["appProtocol"] for m in manifests if m["kind"] == "Service"}
    assert found == {"memories-memory-service": protocol, "memories-memory-service-headless": "https"}


def test_the_service_may_have_a_port_that_no_pod_may_listen_on() -> None:
    """443, which firewalls let out; a process that is not root listens on 1024 and above."""
    outside = {"type": "LoadBalancer", "port": 443}
    route = {"enabled": True, "parentRefs": [{"name": "gateway"}]}
    given = {"tls": TLS, "service": outside, "grpcRoute": route, "networkPolicy": {"enabled": True}, "backup": BACKUP}
    manifests = render(given)
    accepted(manifests)
    services = {m["metadata"]["name"]: m["spec"]["ports"][0] for m in manifests if m["kind"] == "Service"}
    assert {port["targetPort"] for port in services.values()} == {"grpc"}
    assert [port["port"] for port in services.values()] == [443, 7430], "the headless one's clients call pods"
    assert fact(manifests, "StatefulSet", f"{POD}.ports.0.containerPort") == 7430
    config = tomllib.loads(of_kind(manifests, "ConfigMap")["data"]["service.toml"])
    assert config["listen"] == "0.0.0.0:7430"
    assert fact(manifests, "GRPCRoute", "spec.rules.0.backendRefs.0.port") == 443
    assert {"protocol": "TCP", "port": 7430} in fact(manifests, "NetworkPolicy", "spec.egress.1.ports")
    ((_, pod),) = pods(of_kind(manifests, "CronJob"))
    assert environment(pod)["MEMORY_SERVICE_ADDRESS"] == "memories-memory-service.shop.svc:443"


def test_the_releases_own_pods_may_call_whoever_else_may() -> None:
    """Backup, ingestion, `helm test`: with `ingressFrom` as without it."""
    policy = {"enabled": True, "ingressFrom": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}
    (calls, _) = of_kind(render({**EVERY_POD, "networkPolicy": policy}), "NetworkPolicy", "service")["spec"]["ingress"]
    assert calls["from"] == [{"podSelector": {"matchLabels": OURS}}, *policy["ingressFrom"]]


def test_names_are_resolved_where_the_pods_of_dns_listen() -> None:
    """On 53, on OpenShift on 5353: a policy is about the ports of pods, behind the Service."""
    dns = of_kind(render({"networkPolicy": {"enabled": True}}), "NetworkPolicy")["spec"]["egress"][0]
    assert "to" not in dns
    found = {(port["protocol"], port["port"]) for port in dns["ports"]}
    assert found == {("UDP", 53), ("TCP", 53), ("UDP", 5353), ("TCP", 5353)}


@pytest.mark.parametrize(
    ("endpoint", "port"), [("http://otel.monitoring.svc:4319", 4319), ("https://otel.example.org", 443)]
)
def test_spans_may_leave_for_their_collector(endpoint: str, port: int) -> None:
    values = {"networkPolicy": {"enabled": True}, "settings": {"traces_endpoint": endpoint}}
    egress = of_kind(render(values), "NetworkPolicy")["spec"]["egress"]
    assert {"ports": [{"protocol": "TCP", "port": port}]} in egress


@pytest.mark.parametrize("address", ["ch:18123", "[fd00::8123]:18123"])
def test_a_policy_lets_the_pods_reach_their_store_at_the_port_of_its_address(address: str) -> None:
    url = f"clickhouse://m@{address}/m"
    values = {"store": {"kind": "external", "external": {"url": url}}, "networkPolicy": {"enabled": True}}
    manifests = render(values)
    accepted(manifests)
    (rule,) = [
        r for r in fact(manifests, "NetworkPolicy", "spec.egress") if {"protocol": "TCP", "port": 443} in r["ports"]
    ]
    assert [p["port"] for p in rule["ports"]] == [443, 8123, 8443, 9000, 9440, 18123]
    with_usual_port = render({**values, "store": EXTERNAL})
    (rule,) = [r for r in fact(with_usual_port, "NetworkPolicy", "spec.egress") if len(r["ports"]) > 4]
    assert len(rule["ports"]) == 5


def test_what_stays_on_volumes_lets_no_pod_call_outside_the_release() -> None:
    """An embedded store with backups on a claim: names are resolved, and the release's own pods called."""
    names, own = fact(example("air-gapped"), "NetworkPolicy", "spec.egress")
    assert {port["port"] for port in names["ports"]} == {53, 5353}
    assert own["to"] == [{"podSelector": {"matchLabels": OURS}}]
    to_a_bucket = render({"backup": BACKUP, "networkPolicy": {"enabled": True}})
    assert len(fact(to_a_bucket, "NetworkPolicy", "spec.egress")) == 3


def test_workers_divide_the_documents_by_the_index_of_their_pod() -> None:
    job = of_kind(render({"ingestion": {**INGESTION, "workers": 8}}), "Job", "")["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 8, 8)
    (container,) = job["template"]["spec"]["containers"]
    assert container["args"][-4:] == ["--workers", "1", "--share", "$(JOB_COMPLETION_INDEX)/8"]


@pytest.mark.parametrize(("workers", "retries"), [(0, 6), (1, 6), (8, 48)])
def test_workers_that_all_begin_before_the_service_answers_are_tried_again(workers: int, retries: int) -> None:
    """Eight that fail once are more than six failures, after which Kubernetes gives a Job up."""
    assert fact(render({"ingestion": {**INGESTION, "workers": workers}}), "Job", "spec.backoffLimit") == retries


def test_alerts_are_about_this_release_alone() -> None:
    (group,) = of_kind(example("production"), "PrometheusRule")["spec"]["groups"]
    plain = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"][0]["rules"]
    scope = 'namespace="shop",service="memories-memory-service-headless"'
    for rule, source in zip(group["rules"], plain, strict=True):
        series = re.findall(r"memory_service_\w+", source["expr"])
        assert (
            rule["expr"].count(scope)
            == len(series)
            == len(re.findall(rf"memory_service_\w+{{{scope}[,}}]", rule["expr"]))
        )
        assert {**rule, "expr": ""} == {**source, "expr": ""}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replicas": 2}, "embedded store has one writer"),
        ({"store": {"kind": "external"}}, "set store.external.url"),
        ({"store": {"kind": "external", "external": {"url": "clickhouse://m:secret@ch/m"}}}, "holds a password"),
        ({"service": {"type": "LoadBalancer"}, "auth": {"enabled": False}}, "without authentication"),
        ({"service": {"type": "NodePort"}}, "keys would travel in the clear"),
        ({"service": {"externalTrafficPolicy": "Local"}}, "ClusterIP, which has no traffic from outside"),
        ({"service": {"loadBalancerSourceRanges": ["203.0.113.0/24"]}}, "use networkPolicy.ingressFrom"),
        ({"podLabels": {"app.kubernetes.io/instance": "a"}}, "by which the chart selects its pods"),
        ({"tls": {"enabled": True}}, "needs tls.existingSecret or tls.certManager.enabled"),
        ({"tls": {**TLS, **MTLS}, "auth": {"enabled": False}}, "the key file what they may do"),
        ({"auth": {"enabled": False, "existingSecret": "k"}}, "every caller could read and write"),
        (
            {"store": {"embedded": {"persistence": {"enabled": False, "existingClaim": "c"}}}},
            "a restart would lose every memory",
        ),
        ({"ingress": {"enabled": True}}, "needs ingress.hosts and ingress.tlsSecret"),
        ({"image": {"tag": "latest"}}, "latest is refused"),
        ({"ingestion": {"enabled": True}}, "the claim with the documents"),
        ({"backup": {"enabled": True, "target": "here"}}, "set backup.existingClaim"),
        ({"backup": BACKUP, "auth": {"existingSecret": "k"}}, "an api-key that may read"),
        ({"terminationGracePeriodSeconds": 20}, "calls under way would be killed"),
        ({"settings": {"max_kk": 1}}, "max_kk"),
        ({"settings": {"max_k": 0}}, "max_k"),
        ({"replica": 2}, "replica"),
        (
            {"store": EXTERNAL, "autoscaling": {"enabled": True}, "resources": {"requests": None, "limits": None}},
            "a CPU request of every container: service has none",
        ),
        ({"service": {"containerPort": 7431}}, "gRPC and metrics need a port each"),
        (
            {"tls": {"enabled": True, "certManager": {**ACME, "duration": "24h", "renewBefore": "1440m"}}},
            "must be less than tls.certManager.duration",
        ),
        ({"store": {"embedded": {"persistence": {"size": "100"}}}}, "size"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_reason(values: dict[str, Any], reason: str) -> None:
    done = run("template", "memories", CHART, values=values)
    assert done.returncode != 0
    assert reason in done.stderr


def test_the_generated_key_opens_the_service_that_gets_its_hash() -> None:
    secret = of_kind(render(), "Secret")["stringData"]
    _, key_id, given = secret["api-key"].split("_", 2)
    (key,) = KeyFile.model_validate_json(secret["keys.json"]).keys
    assert (key.id, key.sha256) == (key_id, hashlib.sha256(given.encode()).hexdigest())
    assert given not in secret["keys.json"]


def test_settings_reach_the_service_as_it_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"max_k": 7, "default_deadline_s": 2.5, "warm_up": False}
    file = tmp_path / "service.toml"
    file.write_text(of_kind(render({"settings": given, "tls": TLS}), "ConfigMap")["data"]["service.toml"])
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    read = Settings()
    assert (read.max_k, read.default_deadline_s, read.warm_up) == (7, 2.5, False)
    assert (read.listen, read.connection_age_s) == ("0.0.0.0:7430", 0)
    assert str(read.tls_certificate) == "/etc/memory-service/tls/tls.crt"
    file.write_text(of_kind(render({"store": EXTERNAL}), "ConfigMap", "memory-service")["data"]["service.toml"])
    assert Settings().connection_age_s == 300  # new pods get traffic


def test_what_migrates_and_what_writes_memories_has_the_services_settings() -> None:
    given = {"store_timeout_s": 600, "writing_precision": "bfloat16", "model": "/models/mine"}
    manifests = render({**EVERY_POD, "ingestion": {**INGESTION, "workers": 2}, "settings": given})
    accepted(manifests)
    maps = {m["metadata"]["name"]: m for m in manifests if m["kind"] == "ConfigMap"}
    found = {}
    for _, pod in pods(manifests):
        (container,) = pod["containers"]
        if file := environment(pod).get(CONFIG_VARIABLE):
            (volume,) = [m["name"] for m in container["volumeMounts"] if Path(file).parent == Path(m["mountPath"])]
            (name,) = [v["configMap"]["name"] for v in pod["volumes"] if v["name"] == volume]
            found[container["name"]] = tomllib.loads(maps[name]["data"][Path(file).name])
    assert found.keys() == {"service", "migrate", "ingest"}
    for read in found.values():
        assert given.items() <= read.items()
    hook, job = (of_kind(manifests, kind, "-migrate")["metadata"]["annotations"] for kind in ("ConfigMap", "Job"))
    assert int(hook.pop("helm.sh/hook-weight")) < int(job.pop("helm.sh/hook-weight")), "it is there before the Job"
    assert hook == job


def test_what_the_migration_reads_can_be_made_before_it() -> None:
    """A Secret of the release itself is made after the hook that waits for it."""
    (hook,) = re.findall(r"`(helm\.sh/hook): (\S+)`", (CHART / "values.yaml").read_text())
    (weight,) = re.findall(r'`(helm\.sh/hook-weight): "(\S+)"`', (CHART / "values.yaml").read_text())
    own = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "annotations": dict([hook, weight])}}
    manifests = render({"store": EXTERNAL, "auth": {"enabled": False}, "extraManifests": [own]})
    hooks = [m for m in manifests if (m["metadata"].get("annotations") or {}).get(hook[0]) == hook[1]]
    ordered = sorted(hooks, key=lambda m: int(m["metadata"]["annotations"][weight[0]]))
    assert [m["kind"] for m in ordered] == ["Secret", "ConfigMap", "Job"]


@pytest.mark.parametrize(
    "values",
    [
        {
            "fullnameOverride": "long-" * 13 + "name",
            "nameOverride": "n" * 80,
            "ingestion": {**INGESTION, "workers": 100_000},
        },
        {"tls": {**TLS, **MTLS}, "service": {"type": "NodePort"}, "networkPolicy": {"enabled": True}},
        {"store": {"kind": "external", "external": {"url": "clickhouses://m@ch/m", "caSecret": "ca"}}, "replicas": 3},
        {"store": {"kind": "external", "external": {"url": URL}}, "fullnameOverride": "long-" * 13},
        {"ingestion": INGESTION, "auth": {"enabled": False}, "commonLabels": {"team": "a"}},
    ],
    ids=["long names", "mTLS", "authority of the store", "one server", "open"],
)
def test_other_shapes_of_a_release_are_accepted_too(values: dict[str, Any]) -> None:
    accepted(render({"backup": {"enabled": True, "target": "s3://b"}, **values}))


def test_the_key_of_the_charts_own_clients_has_the_scopes_of_their_calls() -> None:
    text = (CHART / "values.yaml").read_text()
    (said,) = re.findall(r"((?: +#.*\n)+) +existingClientSecret: .*\n\ntls:", text)
    (script,) = of_kind(render(), "Pod")["spec"]["containers"][0]["args"]
    calls = set(re.findall(r"memory-service (\w+(?: \w+)?)", script))
    assert {"kb create", "kb delete"} <= calls, "which need admin"
    assert re.search(r"`helm test`[^,]+`admin`, ingestion `write`,[^,]+, backup `read`", said.replace("\n  #", ""))


def test_the_pod_of_helm_test_has_the_memory_that_the_service_has_for_the_same_model() -> None:
    """It loads the bundle and answers as a device does."""
    large = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "6Gi"}}
    larger = {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}
    for values, expected in (
        ({"resources": large}, large),
        ({"resources": large, "tests": {"resources": larger}}, larger),
    ):
        assert fact(render(values), "Pod", "spec.containers.0.resources") == expected


@pytest.mark.slow
def test_what_helm_test_runs_passes_against_a_service(bundle: Path, tmp_path: Path) -> None:
    (script,) = of_kind(render(), "Pod")["spec"]["containers"][0]["args"]
    with ServiceProcess.start(tmp_path, bundle) as service:
        given = {"MEMORY_SERVICE_ADDRESS": service.address, "EDGE_CLIENT_SERVICE": service.address, "HOSTNAME": "pod"}
        path = f"{PROGRAMS}:{os.environ['PATH']}"
        environment = {**os.environ, **given, "EDGE_CLIENT_BUNDLE": str(bundle), "PATH": path}
        assert "47" in ran("sh", "-ec", script, env=environment)
