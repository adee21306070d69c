"""The chart with null, empty, wrong and hostile values for every key of its schema: it renders or says why not."""

from __future__ import annotations

import json
import pathlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import tomllib
import yaml

from memory3 import __version__ as VERSION
from tests.deploy.chart import CHART, CUSTOM, EXTERNAL, KUBERNETES, of_kind, render, run

Path = tuple[str, ...]
HOSTILE = [
    None,
    "",
    [],
    {},
    "a: b",
    "x\n- evil: true",
    '"',
    "'",
    "{x}",
    "{{ fail `x` }}",
    "#",
    "&a",
    "*a",
    "!!binary x",
    "yes",
    "null",
    "0x10",
    "a b",
    "ü",
    "x" * 300,
    0,
    -1,
    1,
    65536,
    12_000_000,
    1e300,
    1.5,
    True,
    [None],
    ["a: b"],
    {"a": None},
    {"a": True},
    {"a: b": "{"},
]
EVERYTHING: dict[str, Any] = {
    "backup": {"enabled": True, "target": "s3://b/x"},
    "ingestion": {"enabled": True, "source": {"existingClaim": "documents"}},
    "networkPolicy": {"enabled": True},
    "ingress": {"enabled": True, "hosts": ["m.example.org"], "tlsSecret": "t"},
    "grpcRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]},
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}
EXTERNALLY = {**EVERYTHING, "store": EXTERNAL, "autoscaling": {"enabled": True}}
NO_SENTENCE = (
    "nil pointer",
    "error converting YAML",
    "YAML parse error",
    "wrong type",
    "interface conversion",
    "panic",
)
FREE = (
    "extra",
    "sidecars",
    "affinity",
    "topologySpread",
    "Context",
    "resources",
    "Resources",
    "tolerations",
    "parentRefs",
)
"""Parts of Kubernetes's own objects, which the chart passes on as they are."""
FEW = 30


def keys(node: dict[str, Any], path: Path = ()) -> Iterator[Path]:
    for name, part in node.get("properties", {}).items():
        yield (*path, name)
        yield from keys(part, (*path, name))


def cases() -> list[tuple[Path, Any]]:
    schema = json.loads((CHART / "values.schema.json").read_text())
    return [(path, value) for path in keys(schema) for value in HOSTILE]


def with_value(base: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    values = json.loads(json.dumps(base))
    node = values
    for name in path[:-1]:
        node = node.setdefault(name, {})
    node[path[-1]] = value
    return values


def problem_of(path: Path, value: Any) -> str:
    """What is wrong with how the chart takes a value; empty for nothing."""
    base = EXTERNALLY if path[0] in ("autoscaling", "migration") or path[:2] == ("store", "external") else EVERYTHING
    done = run("template", "memories", CHART, "--namespace", "shop", values=with_value(base, path, value))
    if done.returncode:
        found = [sign for sign in NO_SENTENCE if sign in done.stderr]
        return f"no sentence: {done.stderr[:300]}" if found or "Error: " not in done.stderr else ""
    manifests = [m for m in yaml.safe_load_all(done.stdout) if m]
    if any(part.startswith(FREE) or part.endswith(FREE) for part in path) or path[0] in ("networkPolicy", "global"):
        return ""
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            try:
                kubernetes_validate.validate(manifest, KUBERNETES[0], strict=True)
            except Exception as error:
                return f"{manifest['kind']} is refused: {str(error)[:300]}"
    return ""


def test_values_of_any_kind_render_or_are_refused_with_a_sentence() -> None:
    broken = {(path, repr(value)): problem_of(path, value) for path, value in random.Random(2).sample(cases(), FEW)}
    assert {case: problem for case, problem in broken.items() if problem} == {}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("section", sorted({path[0] for path, _ in cases()}))
def test_every_value_renders_or_is_refused_with_a_sentence(section: str) -> None:
    broken = {(path, repr(v)): problem_of(path, v) for path, v in cases() if path[0] == section}
    assert {case: problem for case, problem in broken.items() if problem} == {}


@pytest.mark.parametrize("name", ["podSecurityContext", "containerSecurityContext", "tolerations", "settings"])
def test_null_is_empty_where_a_list_or_a_map_is_expected(name: str) -> None:
    context = of_kind(render({name: None}), "StatefulSet")["spec"]["template"]["spec"]["securityContext"]
    assert ("runAsUser" in context) == (name != "podSecurityContext"), "OpenShift chooses the user"
    assert context["runAsNonRoot"]


@pytest.mark.parametrize("modes", [None, []])
def test_a_volume_has_a_mode_of_access(modes: Any) -> None:
    """Kubernetes makes no claim without one, and the pod waits for it."""
    done = run("template", "memories", CHART, values={"store": {"embedded": {"persistence": {"accessModes": modes}}}})
    assert done.returncode
    assert "accessModes" in done.stderr


def test_a_backup_is_of_all_knowledge_bases_each_by_itself() -> None:
    def script(**backup: Any) -> list[str]:
        job = of_kind(render({"backup": {"enabled": True, "target": "s3://b/x", **backup}}), "CronJob")
        (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        return list(container["args"])

    assert "memory-service backup '*' \"$TARGET\"" in script()[0]
    named = script(knowledgeBases=["a", "b"])
    assert named[1:] == ["backup", "a", "b"]
    assert "|| failed=1" in named[0]
    assert "exit $failed" in named[0]


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_the_retry_of_a_backup_leaves_out_what_the_first_try_saved(names: list[str]) -> None:
    values = {"enabled": True, "target": "s3://b/x", "knowledgeBases": names, "minAgeHours": 0.25}
    pod = of_kind(render({"backup": values}), "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][0].count('--min-age-h "$MIN_AGE_H"') == 1
    assert {"name": "MIN_AGE_H", "value": "0.25"} in container["env"]


def test_the_service_watches_the_age_of_backups_where_its_pods_can_read_them() -> None:
    def watched(**backup: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The settings about backups, and the pod's specification."""
        found = render({"backup": {"enabled": True, **backup}})
        config = tomllib.loads(of_kind(found, "ConfigMap")["data"]["service.toml"])
        settings = {name: value for name, value in config.items() if name.startswith("backups")}
        return settings, of_kind(found, "StatefulSet")["spec"]["template"]["spec"]

    settings, pod = watched(target="s3://b/x", existingSecret="bucket", knowledgeBases=["a", "b"], maxAgeHours=30)
    assert settings == {"backups": "s3://b/x", "backups_max_age_h": 30, "backups_of": "a,b"}
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert watched(target="x", existingClaim="claim")[0] == {}
    settings, pod = watched(target="x", existingClaim="claim", claimShared=True)
    assert settings == {"backups": "/backups/x", "backups_max_age_h": 26}
    (volume,) = [one for one in pod["volumes"] if one["name"] == "backups"]
    assert volume["persistentVolumeClaim"] == {"claimName": "claim", "readOnly": True}


def test_an_ingestion_by_other_pods_is_another_job(tmp_path: pathlib.Path) -> None:
    """A Job cannot be changed, and under Argo CD every release has revision 1."""
    newer = shutil.copytree(CHART, tmp_path / "newer")
    text = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(text.replace(f'appVersion: "{VERSION}"', 'appVersion: "9.9.9"'))

    def name(chart: pathlib.Path = CHART, **values: Any) -> str:
        done = run("template", "memories", chart, values={"ingestion": EVERYTHING["ingestion"], **values})
        return str(of_kind([m for m in yaml.safe_load_all(done.stdout) if m], "Job")["metadata"]["name"])

    same = name()
    assert same == name() == name(replicas=0)
    others: list[dict[str, Any]] = [
        {"image": {"tag": "2.0.0"}},
        {"tolerations": [{"key": "gpu"}]},
        {"service": {"port": 7500}},
        {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:1"}]},
        {"containerSecurityContext": {"runAsUser": 5}},
    ]
    found = [name(newer), *(name(**values) for values in others)]
    assert len({same, *found}) == 1 + len(found)


def test_helm_tests_knowledge_base_has_a_name_that_is_allowed() -> None:
    pod = of_kind(render({"fullnameOverride": "memory-service-of-the-research-department-eu"}), "Pod")
    assert pod["metadata"]["name"].endswith("-round-trip")
    assert len("helm-test-" + pod["metadata"]["name"].removesuffix("-round-trip")) <= 64
    assert "${HOSTNAME%-round-trip}" in pod["spec"]["containers"][0]["args"][0]


def notes(values: dict[str, Any]) -> str:
    """NOTES.txt, which `helm template` leaves out, on one line."""
    with tempfile.TemporaryDirectory() as folder:
        chart = shutil.copytree(CHART, pathlib.Path(folder, "chart"))
        text = (chart / "templates" / "NOTES.txt").read_text()
        wrapped = '{{- define "notes" }}' + text + '{{ end }}\nkind: Notes\ntext: {{ include "notes" . | quote }}\n'
        (chart / "templates" / "notes.yaml").write_text(wrapped)
        done = run("template", "memories", chart, "--show-only", "templates/notes.yaml", values=values)
    return " ".join(yaml.safe_load(done.stdout)["text"].split())


@pytest.mark.parametrize(
    "way",
    [
        {"ingress": EVERYTHING["ingress"]},
        {"grpcRoute": EVERYTHING["grpcRoute"]},
        {"service": {"type": "LoadBalancer"}, "tls": {"enabled": True, "existingSecret": "t"}},
    ],
    ids=lambda way: next(iter(way)),
)
def test_a_policy_that_shuts_out_who_comes_from_outside_is_warned_of(way: dict[str, Any]) -> None:
    values = {"networkPolicy": {"enabled": True}, **way}
    assert "reaches no pod: name it in networkPolicy.ingressFrom" in notes(values)
    values["networkPolicy"]["ingressFrom"] = [{"namespaceSelector": {}}]
    assert "reaches no pod" not in notes(values)


@pytest.mark.parametrize("way", ["ingress", "grpcRoute"])
def test_who_ends_the_tls_of_clients_whose_certificates_are_asked_for_is_warned_of(way: str) -> None:
    tls = {"enabled": True, "existingSecret": "t"}
    warning = "the service sees the controller's certificate in place of theirs"
    assert warning in notes({"tls": {**tls, "clientCaSecret": "ca"}, way: EVERYTHING[way]})
    assert warning not in notes({"tls": tls, way: EVERYTHING[way]})


def test_the_notes_tell_to_type_what_works_with_the_values() -> None:
    """A test that is rendered, the authority that there is, and what the service asks of its clients."""
    tls = {"enabled": True, "existingSecret": "t"}
    assert "helm test" in notes({})
    assert "helm test" not in notes({"tests": {"enabled": False}})
    assert "helm test" not in notes({"auth": {"existingSecret": "keys"}}), "there is no key to test with"
    assert "EDGE_CLIENT_CA=ca.crt" in notes({"tls": tls})
    public = notes({"tls": {**tls, "caKey": ""}})
    assert "EDGE_CLIENT_TLS=true" in public
    assert "EDGE_CLIENT_CA=" not in public
    assert "EDGE_CLIENT_CERTIFICATE=" not in public
    mutual = notes({"tls": {**tls, "clientCaSecret": "ca"}})
    assert "EDGE_CLIENT_CERTIFICATE=tls.crt EDGE_CLIENT_KEY=tls.key" in mutual
    assert "helm test" not in mutual, "the chart has no certificate to test with"
