"""The chart's README.md and values.schema.json, made from values.yaml and the service's settings.

    python -m deploy.helm_docs            # write both
    python -m deploy.helm_docs --check    # exit code 1 when they are not what values.yaml says

Every value has a comment that begins with `# --`; types follow from the defaults, what a default cannot say is in
`RULES`. No key may be given that is not in values.yaml.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from memory_service.settings import Settings

CHART = Path(__file__).parent / "helm" / "memory-service"
FREE = {"type": "object"}
"""Kubernetes' own objects (labels, affinity…): the API server knows their form."""
_QUANTITY = {"type": ["string", "integer", "number"], "pattern": r"^[0-9]+(\.[0-9]+)?(m|[kKMGTPE]i?)?$"}
_PORT = {"type": "integer", "minimum": 1024, "maximum": 65535}
_DURATION = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(h|m|s))+$"}
_DIGEST = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
_REGISTRY = {"type": "string", "pattern": r"^([^/\s]+(/[^/\s]+)*)?$"}
RULES: dict[str, dict[str, Any]] = {
    "store.kind": {"enum": ["embedded", "external"]},
    "store.embedded.engine": {"enum": ["chdb", "file"]},
    "store.embedded.persistence.size": _QUANTITY,
    "store.embedded.persistence.accessModes": {
        "type": "array", "minItems": 1, "items": {"enum": ["ReadWriteOncePod", "ReadWriteOnce"]},
    },
    "store.external.url": {"type": "string", "pattern": r"^((clickhouse|myscale)s?://[^/\s]+/[A-Za-z0-9_]+)?$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.digest": _DIGEST,
    "image.registry": _REGISTRY,
    "ingestion.image.digest": _DIGEST,
    "ingestion.image.registry": _REGISTRY,
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "service.externalTrafficPolicy": {"enum": ["", "Cluster", "Local"]},
    "service.port": _PORT,
    "metrics.port": _PORT,
    "metrics.serviceMonitor.interval": _DURATION,
    "tls.certManager.issuerRef.kind": {"enum": ["Issuer", "ClusterIssuer"]},
    "tls.certManager.duration": _DURATION,
    "tls.certManager.renewBefore": _DURATION,
    "ingestion.engine": {"enum": ["local", "ray"]},
    "ingestion.source.path": {"type": "string", "pattern": r"^[^'\"\\$`]+$"},
    "ingestion.knowledgeBase": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"},
    "backup.schedule": {"type": "string", "pattern": r"^(@\w+|\S+( \S+){4})$"},
    "autoscaling.targetCPUUtilizationPercentage": {"type": "integer", "minimum": 0, "maximum": 100},
    "podDisruptionBudget.maxUnavailable": {"type": ["integer", "string"]},
}  # fmt: skip
_OBJECTS = re.compile(
    r"(^|\.)(commonLabels|\w*[aA]nnotations|labels|podLabels|nodeSelector|affinity|\w*[rR]esources|\w+SecurityContext)$"
)
_LISTS_OF_OBJECTS = re.compile(
    r"(^|\.)(extra\w+|sidecars|tolerations|topologySpreadConstraints|parentRefs|ingressFrom|metricsFrom|egress)$"
)
SET_BY_CHART = frozenset(
    {"listen", "port_file", "store", "store_cluster", "store_password", "keys", "tls_certificate", "tls_key",
     "tls_client_ca", "insecure", "metrics_listen", "bundle"}
)  # fmt: skip


@dataclass(frozen=True)
class Value:
    """One line of the README: a value's path, its default as JSON, what its comment says."""

    path: str
    default: Any
    text: str


def described(source: str) -> Iterator[Value]:
    """Every value with a comment of its own, in the file's order."""
    values = yaml.safe_load(source)
    at: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in source.splitlines():
        found = re.match(r"^( *)(#|[\w.-]+:)", line)
        if not found:
            continue
        if found[2] == "#":
            text = line.strip().removeprefix("#").strip()
            comment = (
                [text.removeprefix("-- ")] if text.startswith("-- ") else [*comment, text] if comment else []
            )
            continue
        indent, key = len(found[1]), found[2].removesuffix(":")
        at = [*((i, k) for i, k in at if i < indent), (indent, key)]
        path = ".".join(k for _, k in at)
        if comment:
            default = values
            for _, part in at:
                default = default[part]
            yield Value(path, default, " ".join(comment))
        comment = []


def schema(source: str) -> dict[str, Any]:
    """JSON schema (draft 7, which Helm reads) of the values; unknown keys are refused everywhere."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart memory-service",
        **_object(yaml.safe_load(source), ""),
    }


def _object(values: dict[str, Any], path: str) -> dict[str, Any]:
    properties = {k: _schema(v, f"{path}.{k}" if path else k) for k, v in values.items()}
    if not path:
        properties["global"] = FREE  # Helm adds it for charts within charts
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _schema(value: Any, path: str) -> dict[str, Any]:
    if path in RULES:
        return RULES[path]
    if path == "settings":
        return settings_schema()
    if _OBJECTS.search(path):
        return FREE
    if _LISTS_OF_OBJECTS.search(path):
        return {"type": "array", "items": FREE}
    if isinstance(value, dict):
        return _object(value, path)
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer", "minimum": 0}
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    return {"type": "string"}


def settings_schema() -> dict[str, Any]:
    """The service's settings that an operator may give, with their own bounds."""
    kept = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "anyOf")
    found = Settings.model_json_schema()["properties"]
    properties = {
        name: {k: v for k, v in rule.items() if k in kept}
        for name, rule in sorted(found.items())
        if name not in SET_BY_CHART
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def readme(source: str) -> str:
    """The chart's page."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    intro = (CHART / "README.head.md").read_text(encoding="utf-8").rstrip()
    rows = [
        f"| `{v.path}` | `{json.dumps(v.default, ensure_ascii=False)}` | {v.text.replace('|', chr(92) + '|')} |"
        for v in described(source)
    ]
    return "\n".join(
        [f"# memory-service {chart['version']}", "", intro, "", "## Values", "",
         "Made from `values.yaml` by `python -m deploy.helm_docs`.", "",
         "| value | default | is |", "|---|---|---|", *rows, ""]
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Write or check both files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 when something differs"
    )
    check = parser.parse_args(arguments).check
    source = (CHART / "values.yaml").read_text(encoding="utf-8")
    wanted = {
        CHART / "values.schema.json": json.dumps(schema(source), indent=1, ensure_ascii=False) + "\n",
        CHART / "README.md": readme(source),
    }
    stale = [p for p, text in wanted.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    if check and stale:
        names = ", ".join(p.name for p in stale)
        print(f"{names}: not what values.yaml says; run `python -m deploy.helm_docs`", file=sys.stderr)
        return 1
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
