"""Schemas of answers, as far as clients rely on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_Schema = dict[str, Any]

_STRING: Final[_Schema] = {"type": "string"}
_INTEGER: Final[_Schema] = {"type": "integer"}
_NUMBER: Final[_Schema] = {"type": "number"}
_NULLABLE: Final[_Schema] = {"type": ["string", "null"]}


def _object(**properties: _Schema) -> _Schema:
    """All of them are there; there may be more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


def _is(value: str) -> _Schema:
    return {"const": value}


def _ref(name: str) -> _Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_USAGE = _object(prompt_tokens=_INTEGER, completion_tokens=_INTEGER, total_tokens=_INTEGER)
_PROMPT_USAGE = _object(prompt_tokens=_INTEGER, total_tokens=_INTEGER)
_FLOATS_OR_BASE64: Final[_Schema] = {"anyOf": [_list(_NUMBER), _STRING]}

ANSWERS: Final[Mapping[str, _Schema]] = {
    "Error": _object(error=_object(message=_STRING, type=_STRING, param=_NULLABLE, code=_NULLABLE)),
    "AnthropicError": _object(type=_is("error"), error=_object(type=_STRING, message=_STRING)),
    "ChatCompletion": _object(
        id=_STRING,
        object=_is("chat.completion"),
        created=_INTEGER,
        model=_STRING,
        choices=_list(
            _object(
                index=_INTEGER,
                message=_object(role=_is("assistant"), content=_NULLABLE),
                finish_reason=_STRING,
            )
        ),
        usage=_USAGE,
    ),
    "Completion": _object(
        id=_STRING,
        object=_is("text_completion"),
        created=_INTEGER,
        model=_STRING,
        choices=_list(_object(index=_INTEGER, text=_STRING, finish_reason=_STRING)),
        usage=_USAGE,
    ),
    "Response": _object(
        id=_STRING,
        object=_is("response"),
        model=_STRING,
        status={"enum": ["completed", "incomplete"]},
        output=_list(_object(type=_STRING)),
        usage=_object(input_tokens=_INTEGER, output_tokens=_INTEGER, total_tokens=_INTEGER),
    ),
    "Message": _object(
        id=_STRING,
        type=_is("message"),
        role=_is("assistant"),
        model=_STRING,
        content=_list(_object(type=_STRING)),
        stop_reason=_STRING,
        usage=_object(input_tokens=_INTEGER, output_tokens=_INTEGER),
    ),
    "TokenCount": _object(input_tokens=_INTEGER),
    "Embeddings": _object(
        id=_STRING,
        object=_is("list"),
        data=_list(_object(object=_is("embedding"), index=_INTEGER, embedding=_FLOATS_OR_BASE64)),
        model=_STRING,
        usage=_PROMPT_USAGE,
    ),
    "Pooled": _object(
        id=_STRING,
        object=_is("list"),
        data=_list(_object(object=_is("pooling"), index=_INTEGER, data=_FLOATS_OR_BASE64)),
        model=_STRING,
        usage=_PROMPT_USAGE,
    ),
    "RenderedChat": _object(
        request_id=_STRING,
        model=_STRING,
        token_ids=_list(_INTEGER),
        sampling_params={"type": "object"},
    ),
    "Any": {"type": "object"},
    "Load": _object(server_load=_INTEGER),
    "TokenizerInfo": _object(tokenizer_class=_STRING, chat_template=_NULLABLE),
    "Scores": _object(
        id=_STRING,
        object=_is("list"),
        model=_STRING,
        data=_list(_object(index=_INTEGER, object=_is("score"), score=_NUMBER)),
        usage=_PROMPT_USAGE,
    ),
    "Ranking": _object(
        id=_STRING,
        model=_STRING,
        results=_list(_object(index=_INTEGER, relevance_score=_NUMBER)),
        usage=_PROMPT_USAGE,
    ),
    "Tokens": _object(count=_INTEGER, max_model_len=_INTEGER, tokens=_list(_INTEGER)),
    "Text": _object(prompt=_STRING),
    "Model": _object(
        id=_STRING,
        object=_is("model"),
        created=_INTEGER,
        owned_by=_STRING,
        root=_STRING,
        max_model_len=_INTEGER,
        quantization=_NULLABLE,
    ),
    "ModelList": _object(object=_is("list"), data=_list(_ref("Model"))),
    "Health": _object(
        status=_STRING,
        models=_list(_object(model=_STRING, decode_workers=_INTEGER, prefill_workers=_INTEGER)),
        decode_workers=_INTEGER,
        prefill_workers=_INTEGER,
    ),
    "Ready": _object(status=_STRING, missing=_list(_STRING)),
    "Version": _object(version=_STRING),
    "Mesh": {"type": "object"},
    "Document": _object(openapi=_STRING, paths={"type": "object"}),
}
"""By name."""
