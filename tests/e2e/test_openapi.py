"""/openapi.json is true: schemathesis sends what it allows, and a little more, and the answers are as it says."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import GenerationMode
from schemathesis.schemas import BaseSchema

from proxy.app import create_app
from proxy.settings import Settings
from tests.serving import LIMIT_S, Serving

load_all_checks()
LAWS = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
    ]
)

ROUTES = [
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/audio/speech/batch"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/v1/audio/models"),
    ("GET", "/v1/audio/voices"),
    ("POST", "/v1/audio/voices"),
    ("GET", "/v1/audio/voices/{voice_id}"),
    ("DELETE", "/v1/audio/voices/{voice_id}"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="session")
def described(server: Serving) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [(*route, GenerationMode.POSITIVE) for route in ROUTES]
    + [(*route, GenerationMode.NEGATIVE) for route in ROUTES if route[0] == "POST"],  # of the others all is allowed
)
def test_no_request_fails_and_every_answer_is_as_described(
    described: BaseSchema, method: str, path: str, mode: GenerationMode
) -> None:
    # Not by schemathesis' own decorator, which needs an older pytest.
    @given(case=described[path][method].as_strategy(generation_mode=mode))
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=LAWS, timeout=LIMIT_S)

    ask()


def test_every_route_is_described(described: BaseSchema) -> None:
    operations = [operation.ok() for operation in described.get_all_operations()]
    assert {(operation.method.upper(), operation.path) for operation in operations} == {*ROUTES}


def test_a_key_is_described_where_it_is_asked_for() -> None:
    def guarded(settings: Settings) -> set[str]:
        paths = create_app(settings).openapi()["paths"]
        return {path for path, methods in paths.items() for method in methods.values() if "security" in method}

    assert guarded(Settings()) == set()
    assert guarded(Settings(api_key="k")) == {
        path for method, path in ROUTES if path.startswith("/v1/") and (method, path) != ("GET", "/v1/audio/voices")
    }
