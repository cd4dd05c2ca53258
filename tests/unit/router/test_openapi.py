"""The document about all routes: complete, and right about the bodies that are taken."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest

from pagemesh.config import HttpLimitsConfig
from pagemesh.errors import FailedPreconditionError, PagemeshError, PermissionDeniedError
from pagemesh.gateway.replies import local_reply_config
from pagemesh.gateway.transcoding import http_routes
from pagemesh.router.openai.chat_request import read_chat_request
from pagemesh.router.openapi.answers import ANSWERS
from pagemesh.router.openapi.document import openapi_document
from pagemesh.router.openapi.operations import OPERATIONS

OPEN_PATHS = ("/health", "/ping", "/ready", "/version", "/openapi.json", "/console/")
DOCUMENT = openapi_document()


def test_all_routes_are_there_and_no_others() -> None:
    described = {(op.path, op.method.upper()) for op in OPERATIONS}
    routes = {(r.path.replace("=**", ""), method) for r in http_routes() for method in r.methods}
    assert described == routes


def test_what_needs_no_key_is_said_to_need_none() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            assert (operation["security"] == [{}]) == (path == "/" or path.startswith(OPEN_PATHS))


def test_every_reference_has_its_schema() -> None:
    schemas = DOCUMENT["components"]["schemas"]

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set[str]().union(*map(references, value)) if isinstance(value, list) else set()

    names = {reference.rpartition("/")[2] for reference in references(DOCUMENT)}
    assert names <= set(schemas)
    assert all(op.answer in schemas or "/" in op.answer for op in OPERATIONS)
    for name, schema in ANSWERS.items():
        assert schemas[name] is schema, "a body has the name of an answer"


def test_every_status_of_an_error_is_named() -> None:
    kinds = [PagemeshError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    # What only processes of the mesh hear, and what the gateway says of methods that are no operation.
    inside = {FailedPreconditionError.http_status, PermissionDeniedError.http_status}
    own = {kind.http_status for kind in kinds} - inside
    gateway = re.findall(r"'local_reply\.(\d+)'", str(local_reply_config(HttpLimitsConfig())))
    named = DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert set(named) == {"200", *map(str, own), *gateway} - {"204", "405"}


@pytest.mark.parametrize(
    ("body", "is_valid"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, True),
        ({"messages": [{"role": "user", "content": "hi"}], "temperature": None}, True),
        ({"messages": [{"role": "user", "content": "hi"}], "temperature": 3}, False),
        ({"messages": [{"role": "user", "content": "hi"}], "n": 0}, False),
        ({"messages": []}, False),
        ({}, False),
    ],
)
def test_bodies_are_described_as_they_are_read(body: dict[str, Any], is_valid: bool) -> None:
    schema = {
        **DOCUMENT["components"]["schemas"]["ChatRequest"],
        "components": DOCUMENT["components"],
    }
    assert jsonschema.Draft202012Validator(schema).is_valid(body) is is_valid
    try:
        read_chat_request(body)
    except PagemeshError:
        assert not is_valid
    else:
        assert is_valid
