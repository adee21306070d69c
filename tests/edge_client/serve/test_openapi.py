"""`GET /openapi.json` is true: what schemathesis makes of it is answered as it describes."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from testing.processes import AppProcess

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
EXAMPLES = 25
pytestmark = pytest.mark.slow
LIMITS = ("max_tokens", "max_completion_tokens")


def short(body: Any) -> Any:
    """The same request for an answer of a few tokens, if it has one."""
    if not isinstance(body, dict) or not body.keys() & {"messages", "prompt"}:
        return body
    limits = {name: 2 for name in LIMITS if isinstance(value := body.get(name), int) and (value == -1 or value > 2)}
    return {"max_tokens": 2, **body, **limits}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_requests_are_answered_as_described(server: AppProcess, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue
        strategy = operation.as_strategy(generation_mode=mode)

        @seed(0)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def answered(case: Case) -> None:
            case.body = short(case.body)
            case.call_and_validate(checks=CHECKS)

        answered()
