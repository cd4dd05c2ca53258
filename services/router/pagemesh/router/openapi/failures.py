"""Statuses of answers that are errors, for each operation: the router's own and the gateway's."""

from __future__ import annotations

from typing import Any, Final

from pagemesh.router.openapi.operations import Operation

_ANYWHERE: Final = {
    400: "The request is no HTTP, or has no meaning",
    408: "The request did not arrive in time",
    413: "The body is too long",
    415: "The body is encoded in another way than with gzip",
    431: "The headers are too long",
    500: "A fault of pagemesh's own",
    503: "Nobody is there who could answer",
    504: "The request took longer than it was given",
}
_WITH_A_BODY: Final = {
    404: "No such model",
    429: "Over a limit, or too many requests at once; retry-after says when to try again",
}
_WITH_A_KEY: Final = {401: "No key, or not one of this mesh's"}
_WITH_A_NAME: Final = {404: "There is none of that name"}


def failures(operation: Operation) -> dict[str, Any]:
    """The `responses` of an operation that say what is wrong, by status."""
    described = dict(_ANYWHERE)
    if operation.requests:
        described |= _WITH_A_BODY
    if not operation.is_public:
        described |= _WITH_A_KEY
    if "{" in operation.path:
        described |= _WITH_A_NAME
    return {
        str(status): {"description": what, "content": _content(operation, status)}
        for status, what in sorted(described.items())
    }


def _content(operation: Operation, status: int) -> dict[str, Any]:
    names = [operation.error]
    if status == 503 and operation.tells_what_is_missing:
        names.append(operation.answer)
    schemas = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"application/json": {"schema": schema}}
