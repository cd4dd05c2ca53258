"""Exceptions of pagemesh to gRPC statuses and back, with google.rpc.ErrorInfo as AIP-193 asks for.

A status carries the code and message of the exception and an ErrorInfo with its reason, the domain
"pagemesh" and the offending field. Reading a status gives the most specific class of the tree whose
code and default reason match, else the broadest one of that code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, cast

import grpc
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from pagemesh.errors import (
    DeadlineError,
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    KvIntegrityError,
    ModelNotFoundError,
    OverloadedError,
    PagemeshError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)

ERROR_DOMAIN: Final = "pagemesh"

_FIELD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.\[\]-]{0,63}")
"""Names of fields and headers."""

CLASS_BY_CODE: Final[dict[str, type[PagemeshError]]] = {
    "CANCELLED": UnavailableError,  # by the peer: our own cancellation is never read as an error
    "UNKNOWN": InternalError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "DEADLINE_EXCEEDED": DeadlineError,
    "NOT_FOUND": ModelNotFoundError,
    "ALREADY_EXISTS": FailedPreconditionError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "FAILED_PRECONDITION": FailedPreconditionError,
    "ABORTED": UnavailableError,
    "OUT_OF_RANGE": InvalidRequestError,
    "UNIMPLEMENTED": UnsupportedError,
    "INTERNAL": InternalError,
    "UNAVAILABLE": UnavailableError,
    "DATA_LOSS": KvIntegrityError,
    "UNAUTHENTICATED": UnauthenticatedError,
}
"""The broadest class for each gRPC code other than OK."""


def error_classes(root: type[PagemeshError] = PagemeshError) -> Iterator[type[PagemeshError]]:
    """All classes of the exception tree, parents first."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def make_error(code: str, reason: str, message: str, param: str | None = None) -> PagemeshError:
    """The exception for what another process reported as code name, reason and message."""
    for candidate in error_classes():
        is_exact = candidate.grpc_code == code and candidate.default_reason == reason
        if is_exact and candidate is not PagemeshError:
            return candidate(message, param=param)
    broadest = CLASS_BY_CODE.get(code, InternalError)
    return broadest(message, reason=reason or None, param=param)


def as_pagemesh_error(error: BaseException) -> PagemeshError:
    """Any exception as one of the tree; what is not known becomes INTERNAL and tells nothing more."""
    if isinstance(error, PagemeshError):
        return error
    if isinstance(error, grpc.RpcError):
        return from_rpc_error(error)
    if isinstance(error, TimeoutError):
        return DeadlineError("the time for the call is over")
    return InternalError("internal error")


def to_status(error: PagemeshError) -> status_pb2.Status:
    """The rich status of an exception."""
    status = status_pb2.Status(
        code=code_pb2.Code.Value(error.grpc_code),
        message=error.message,
    )
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)
    if error.param is not None:
        info.metadata["param"] = error.param
    status.details.add().Pack(info)
    if isinstance(error, OverloadedError) and error.retry_after is not None:
        wait = error_details_pb2.RetryInfo()
        wait.retry_delay.FromNanoseconds(int(error.retry_after * 1e9))
        status.details.add().Pack(wait)
    return status


def from_rpc_error(error: grpc.RpcError) -> PagemeshError:
    """The exception behind a failed call, whoever answered it."""
    code = error.code()
    details = error.details() or f"the call failed with {code.name}"
    try:
        # An RpcError that a call raised is that call as well; the stubs do not know it.
        status = rpc_status.from_call(cast(grpc.Call, error))
    except ValueError:  # a peer whose status and details disagree; the plain status is what counts
        status = None
    info, wait = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details if status is not None else ():
        # Each leaves what is of another kind alone.
        detail.Unpack(info)
        detail.Unpack(wait)
    if info.domain != ERROR_DOMAIN:
        return make_error(code.name, "", details)
    known = make_error(code.name, info.reason, details, info.metadata.get("param"))
    if isinstance(known, OverloadedError) and wait.HasField("retry_delay"):
        known.retry_after = wait.retry_delay.ToNanoseconds() / 1e9
    return known


def for_log(error: PagemeshError) -> dict[str, str | int]:
    """What a log may say of an error that a client is told.

    What is the client's mistake is often explained in its own words, which may be those of a prompt.
    """
    told: dict[str, str | int] = {"reason": error.reason, "status": error.http_status}
    if error.http_status >= 500 and not isinstance(error, UnsupportedError):
        told["error"] = error.message
    elif error.param is not None and _FIELD.fullmatch(error.param):
        told["param"] = error.param
    return told


async def abort(context: grpc.aio.ServicerContext[object, object], error: PagemeshError) -> None:
    """End an RPC with the rich status of an exception; raises grpc's AbortError."""
    await context.abort_with_status(rpc_status.to_status(to_status(error)))
