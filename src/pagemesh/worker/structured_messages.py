"""Between descriptions of structured outputs and the messages of `pagemesh.v1`."""

from __future__ import annotations

import json
from typing import Any

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.outputs import PARAM, StructuredKind, StructuredOutputs
from pagemesh.v1 import types_pb2


def structured_to_proto(outputs: StructuredOutputs) -> types_pb2.StructuredOutputs:
    """The message."""
    message = types_pb2.StructuredOutputs(
        disable_any_whitespace=outputs.disable_any_whitespace,
        whitespace_pattern=outputs.whitespace_pattern,
    )
    match outputs.kind:
        case StructuredKind.JSON:
            message.json = outputs.text
        case StructuredKind.REGEX:
            message.regex = outputs.text
        case StructuredKind.CHOICE:
            message.choice.texts.extend(json.loads(outputs.text))
        case StructuredKind.GRAMMAR:
            message.grammar = outputs.text
        case StructuredKind.JSON_OBJECT:
            message.json_object = True
    return message


def structured_from_proto(sampling: types_pb2.SamplingParams) -> StructuredOutputs | None:
    """What sampling parameters ask for; InvalidRequestError where it is faulty."""
    if not sampling.HasField("structured_outputs"):
        return None
    message = sampling.structured_outputs
    kind = message.WhichOneof("constraint")
    if kind is None:
        raise InvalidRequestError("structured_outputs has no constraint", param=PARAM)
    options: dict[str, Any] = {"disable_any_whitespace": message.disable_any_whitespace}
    if message.HasField("whitespace_pattern"):
        options["whitespace_pattern"] = message.whitespace_pattern
    options[kind] = list(message.choice.texts) if kind == "choice" else getattr(message, kind)
    return StructuredOutputs.of(**options)
