"""The document behind /openapi.json (https://spec.openapis.org/oas/v3.1.0)."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from pagemesh.router.openapi.answers import ANSWERS
from pagemesh.router.openapi.failures import failures
from pagemesh.router.openapi.operations import OPERATIONS, Model, Operation

_REF: Final = "#/components/schemas/{model}"


@lru_cache(maxsize=1)
def openapi_document() -> dict[str, Any]:
    """All routes with their bodies, answers and errors."""
    models = list(dict.fromkeys(model for op in OPERATIONS for model in op.requests))
    # Fields are described by what they are called in JSON, as bodies have them.
    refs, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=_REF
    )
    bodies = {model: refs[model, "validation"] for model in models}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        described = _describe(operation, bodies)
        paths.setdefault(operation.path, {})[operation.method] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "pagemesh", "version": metadata.version("pagemesh")},
        "paths": paths,
        "components": {
            "schemas": {**definitions["$defs"], **ANSWERS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(operation: Operation, bodies: dict[Model, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method}{operation.path}",
        "responses": _success(operation) | failures(operation),
        # Whether keys are needed is the operator's decision.
        "security": [{}] if operation.is_public else [{}, {"key": []}],
    }
    if "{" in operation.path:
        name = operation.path.partition("{")[2].partition("}")[0]
        string = {"type": "string", "minLength": 1}
        described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": string}]
    if operation.requests:
        schemas = [bodies[model] for model in operation.requests]
        body = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        content = {"application/json": {"schema": body}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _success(operation: Operation) -> dict[str, Any]:
    """Empty for what is always refused."""
    if operation.answer == operation.error:
        return {}
    kept = {"304": {"description": "The answer is the one that the client has"}}
    return {
        "200": {"description": "The answer", "content": _content(operation)},
        **(kept if operation.is_kept else {}),
    }


def _content(operation: Operation) -> dict[str, Any]:
    if "/" in operation.answer:
        return {operation.answer: {"schema": {"type": "string"}}}
    content: dict[str, Any] = {"application/json": {"schema": _schema(operation.answer)}}
    if operation.streams:
        content["text/event-stream"] = {}
    return content


def _schema(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(model=name)}
