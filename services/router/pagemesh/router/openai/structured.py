"""The ways in which a body says what its answer must look like: OpenAI's and vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic
from pydantic import Field

from pagemesh.errors import InvalidRequestError
from pagemesh.router.openai.lax_types import Truth
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.sampling.structured.schemas import leniently

Schema = dict[str, Any] | str
"""A JSON schema, or its text."""


class JsonSchemaFormat(pydantic.BaseModel):
    """The `json_schema` object of a `response_format`; one that is not strict is followed as far as it can be."""

    model_config = pydantic.ConfigDict(strict=True)

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: Truth | None = None


class ResponseFormat(pydantic.BaseModel):
    """OpenAI's `response_format` object; a `schema` beside its type is how llama.cpp and others have it."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class StructuredFields(pydantic.BaseModel):
    """vLLM's `structured_outputs` object. What it does not know would change the answer: refused."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    json_: Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: Truth | None = None
    disable_any_whitespace: Truth | None = None
    whitespace_pattern: str | None = None


def read_structured_outputs(
    response_format: ResponseFormat | None,
    structured: StructuredFields | None,
    guided: Mapping[str, Any],
) -> StructuredOutputs | None:
    """What the answer must look like, None for any; InvalidRequestError when said in several ways.

    `guided` has the values of vLLM's older fields that begin with `guided_`, without that.
    """
    given, whitespace = _ways(response_format, structured, guided)
    if len(given) > 1:
        raise InvalidRequestError(
            "You can only use one kind of constraints for structured outputs, but there are"
            f" {' and '.join(given)}",
            param=list(given)[-1],
        )
    for name, options in given.items():
        try:
            return StructuredOutputs.of(**whitespace | options)
        except InvalidRequestError as error:
            raise InvalidRequestError(error.message, param=name) from error
    return None


def structured_field(
    response_format: ResponseFormat | None,
    structured: StructuredFields | None,
    guided: Mapping[str, Any],
) -> str | None:
    """The field that says what the answer must look like; None when there is none."""
    given, _ = _ways(response_format, structured, guided)
    return next(iter(given), None)


def _ways(
    response_format: ResponseFormat | None,
    structured: StructuredFields | None,
    guided: Mapping[str, Any],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """What each field that is given says, and what JSON may have between its parts."""
    ways: dict[str, dict[str, Any]] = {
        "response_format": _from_format(response_format),
        "structured_outputs": structured.model_dump(exclude_none=True, by_alias=True)
        if structured is not None
        else {},
    }
    ways |= {f"guided_{name}": {name: value} for name, value in guided.items() if value is not None}
    # Not a way of its own: it goes with the field that says what the JSON is.
    whitespace = ways.pop("guided_whitespace_pattern", {})
    return {name: options for name, options in ways.items() if options}, whitespace


def _from_format(response_format: ResponseFormat | None) -> dict[str, Any]:
    if response_format is None:
        return {}
    schema = response_format.schema_
    if response_format.type == "text":
        if schema is not None:
            raise InvalidRequestError(
                'response_format.schema is given, but response_format.type is "text"',
                param="response_format",
            )
        return {}
    if response_format.type == "json_schema" and response_format.json_schema is not None:
        given = response_format.json_schema
        schema = given.schema_ if given.strict else leniently(given.schema_)
    if schema is not None:
        return {"json": schema}
    if response_format.type == "json_object":
        return {"json_object": True}
    raise InvalidRequestError(
        "When response_format type is 'json_schema', the 'json_schema' field must be provided",
        param="response_format",
    )
