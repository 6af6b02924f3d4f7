"""Requests made from the API's own description: no 5xx, and every answer as described (R17)."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import (
    not_a_server_error,
)
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
)

from tests.server.live import LiveServer, run_live

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def described() -> Iterator[LiveServer]:
    with run_live() as server:
        yield server


def operations(server: LiveServer) -> list[Any]:
    schema: Any = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    return [found.ok() for found in schema.get_all_operations()]


def probe(operation: Any, server: LiveServer, session: Any, num_examples: int) -> None:
    """Send requests that the description of one operation allows, and some that it does not."""

    @given(case=operation.as_strategy())
    @settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def run(case: Any) -> None:
        if isinstance(case.body, dict) and "stream" in case.body:
            case.body["stream"] = False
        case.validate_response(case.call(session=session, timeout=20), checks=CHECKS)

    run()
    server.manager.paused.clear()


def check_all(server: LiveServer, num_examples: int) -> None:
    found = operations(server)
    names = {operation.path for operation in found}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/ready"} <= names
    for operation in found:
        probe(operation, server, None, num_examples)
    server.reset()
    assert server.complete().status_code == 200
    server.manager.wait_until(lambda: server.manager.num_active == 0)


@pytest.mark.filterwarnings("ignore")
def test_no_request_of_the_description_breaks_the_server(described):
    check_all(described, 8)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
def test_many_requests_of_the_description_do_not_either(described):
    check_all(described, 200)


def test_the_description_names_no_error_it_does_not_send(described):
    document = httpx.get(f"{described.url}/openapi.json").json()
    assert document["openapi"].startswith("3.")
    for path, operations_of in document["paths"].items():
        for method, operation in operations_of.items():
            assert method in ("get", "post", "delete"), path
            errors = {status for status in operation["responses"] if status >= "4"}
            assert errors <= {"400"}, path
    assert "ValidationError" not in json.dumps(document)


def test_a_wrong_parameter_is_answered_as_described(described):
    path = "/v1/responses/{response_id}/input_items"
    document = httpx.get(f"{described.url}/openapi.json").json()
    schema = document["paths"][path]["get"]["responses"]["400"]["content"]["application/json"]
    assert schema == {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}
    response = httpx.get(described.url + path, params={"limit": "many"})
    assert response.status_code == 400
    jsonschema.validate(response.json(), {**schema["schema"], **document})
