"""schemathesis: what fits the document and what does not, for every operation, is answered as it says."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import httpx
import jsonschema
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings

from pagemesh.router.openapi.document import openapi_document
from pagemesh.router.openapi.operations import OPERATIONS, Operation
from tests.fuzz.conftest import FACTOR, check_nothing_is_left
from tests.mesh.harness import Mesh
from tests.support.late_imports import openapi_checks, schemathesis

pytestmark = pytest.mark.costly

CONFIG = {
    # What does not fit is now and then too large besides.
    "checks": {"negative_data_rejection": {"expected-statuses": [400, 404, 405, 413, 415, 422]}}
}
NUM_EXAMPLES = 20 * FACTOR
NOT_GZIP = {"content-encoding": "br"}
ENDLESS = "/mesh/events"
TRIED = [operation for operation in OPERATIONS if operation.path != ENDLESS]
"""All but the stream that has no end."""


def name_of(operation: Operation) -> str:
    return f"{operation.method.upper()} {operation.path}"


@cache
def described() -> dict[str, Any]:
    """The operations of the document, as schemathesis reads them."""
    config = schemathesis.config.SchemathesisConfig.from_dict(CONFIG)
    document = schemathesis.openapi.from_dict(openapi_document(), config=config)
    found: list[Any] = [each.ok() for each in document.get_all_operations()]  # type: ignore[union-attr]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


@cache
def checks() -> list[Any]:
    """What answers have to keep; the last is of those to what does not fit."""
    return [
        schemathesis.checks.not_a_server_error,
        openapi_checks.status_code_conformance,
        openapi_checks.content_type_conformance,
        openapi_checks.response_schema_conformance,
        openapi_checks.negative_data_rejection,
    ]


def try_out(mesh: Mesh, operation: Operation, mode: schemathesis.GenerationMode) -> set[int]:
    """Statuses with which so many cases were answered, each as the document says."""
    statuses = set()

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(described()[name_of(operation)].as_strategy(generation_mode=mode))
    def answered(case: Any) -> None:
        complete(case.body, operation)
        response = case.call(base_url=mesh.url, timeout=60)
        if mode is schemathesis.GenerationMode.NEGATIVE and is_readable(operation, case.body):
            case.validate_response(response, checks=checks()[:-1])
            return
        statuses.add(response.status_code)
        case.validate_response(response, checks=checks())

    answered()
    check_nothing_is_left(mesh)
    return statuses


def is_readable(operation: Operation, body: Any) -> bool:
    """Whether all that does not fit are numbers and truths of another type, which are read as vLLM reads them: 0 for
    false, "16" for 16."""
    components = openapi_document()["components"]
    for kind in operation.requests if isinstance(body, dict) else ():
        schema = {"$ref": f"#/components/schemas/{kind.__name__}", "components": components}
        with suppress(pydantic.ValidationError):
            read = kind.model_validate(body).model_dump(by_alias=True, exclude_unset=True)
            if jsonschema.Draft202012Validator(schema).is_valid(body | read):
                return True
    return False


def complete(body: Any, operation: Operation) -> None:
    """Ask for this mesh's model, and say something: the document cannot know the one, and need not the other."""
    if not isinstance(body, dict):
        return
    if isinstance(body.get("model"), str):
        body["model"] = "demo"
    for name in ("prompt", "input"):
        if body.get(name) in ("", []):
            body[name] = "hi"
    if operation.path in ("/v1/embeddings", "/pooling") and not set(body) & {"input", "messages"}:
        body["input"] = "hi"
    if operation.path.endswith("/score") and not set(body) & {"queries", "data_1", "text_1"}:
        body |= {"text_1": "hi", "text_2": "hi"}
    if isinstance(body.get("messages"), list):
        for message in body["messages"]:
            if isinstance(message, dict) and message.get("content") is None:
                message["content"] = "hi"


def test_the_document_that_is_served_is_the_one_that_is_tried(mesh: Mesh) -> None:
    assert httpx.get(f"{mesh.url}/openapi.json").json() == openapi_document()


@pytest.mark.product(most=10)
@pytest.mark.parametrize("operation", TRIED, ids=name_of)
def test_what_fits_the_document_is_answered_as_it_says(mesh: Mesh, operation: Operation) -> None:
    statuses = try_out(mesh, operation, schemathesis.GenerationMode.POSITIVE)
    is_found = operation.answer != operation.error and "{" not in operation.path
    assert not is_found or 200 in statuses


@pytest.mark.product(most=4)
@pytest.mark.parametrize("operation", [each for each in TRIED if each.requests], ids=name_of)
def test_what_does_not_fit_the_document_is_refused(mesh: Mesh, operation: Operation) -> None:
    statuses = try_out(mesh, operation, schemathesis.GenerationMode.NEGATIVE)
    assert 200 not in statuses


@pytest.mark.parametrize(
    ("name", "headers", "status"),
    [
        ("GET /", {"if-none-match": "*"}, 304),
        ("GET /version", NOT_GZIP, 415),
        ("GET /version", {"x-long": "x" * 2**20}, 431),
        ("POST /v1/completions", NOT_GZIP, 415),
        ("POST /v1/messages", NOT_GZIP, 415),
        ("POST /v1/messages", {"content-length": str(2**40)}, 413),
        ("POST /v1/responses/{response_id}/cancel", NOT_GZIP, 415),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value),
)
def test_what_headers_bring_about_is_in_the_document(
    mesh: Mesh, name: str, headers: dict[str, str], status: int
) -> None:
    operation = described()[name]
    case = operation.Case(path_parameters={"response_id": "resp_1"}, media_type="application/json")
    response = case.call(base_url=mesh.url, headers=headers, timeout=60)
    assert response.status_code == status
    case.validate_response(response, checks=checks())
