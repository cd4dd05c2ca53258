"""Exceptions of pagemesh.

    PagemeshError                  code                 HTTP
    ├── InvalidRequestError        INVALID_ARGUMENT     400
    │   └── ContextLengthError     INVALID_ARGUMENT     400
    ├── UnsupportedError           UNIMPLEMENTED        400
    ├── ModelNotFoundError         NOT_FOUND            404
    ├── ResponseNotFoundError      NOT_FOUND            404
    ├── DeadlineError              DEADLINE_EXCEEDED    504
    ├── UnauthenticatedError       UNAUTHENTICATED      401
    ├── PermissionDeniedError      PERMISSION_DENIED    403
    ├── OverloadedError            RESOURCE_EXHAUSTED   429
    │   └── RateLimitError         RESOURCE_EXHAUSTED   429
    ├── UnavailableError           UNAVAILABLE          503
    │   └── WorkerLostError        UNAVAILABLE          503
    ├── FailedPreconditionError    FAILED_PRECONDITION  409
    ├── KvIntegrityError           DATA_LOSS            500
    ├── ConfigError                INVALID_ARGUMENT     400
    └── InternalError              INTERNAL             500
        ├── DeviceLostError        INTERNAL             500
        └── PoisonRequestError     INTERNAL             500

Every class knows the name of its gRPC code and its HTTP status, so that this module imports neither
grpc nor an HTTP library; `pagemesh.rpc` and the router's OpenAI errors read them from here.
"""

from __future__ import annotations

from typing import ClassVar, Final, Self


class PagemeshError(Exception):
    """Base of everything that pagemesh raises on purpose.

    `message` is one sentence for people, `reason` an UPPER_SNAKE_CASE name for machines, `param` the
    offending request field, if there is one.
    """

    grpc_code: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500
    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self, message: str, *, reason: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.param = param


class InvalidRequestError(PagemeshError):
    """The request itself is wrong; sending it again cannot help."""

    grpc_code = "INVALID_ARGUMENT"
    http_status = 400
    default_reason = "INVALID_REQUEST"


class ContextLengthError(InvalidRequestError):
    """Prompt plus output do not fit into the model's context."""

    default_reason = "CONTEXT_LENGTH_EXCEEDED"

    @classmethod
    def beyond(cls, max_model_len: int, what: str, param: str) -> Self:
        """With the words by which clients know it (LiteLLM's fallbacks, for one), and what was too long."""
        return cls(
            f"This model's maximum context length is {max_model_len} tokens. However, {what}.",
            param=param,
        )


class UnsupportedError(PagemeshError):
    """The request is well formed, but asks for something that this model or mesh cannot do."""

    grpc_code = "UNIMPLEMENTED"
    http_status = 400
    default_reason = "UNSUPPORTED"


class ModelNotFoundError(PagemeshError):
    """No worker serves a model of that name."""

    grpc_code = "NOT_FOUND"
    http_status = 404
    default_reason = "MODEL_NOT_FOUND"


class ResponseNotFoundError(PagemeshError):
    """No answer of that id is stored."""

    grpc_code = "NOT_FOUND"
    http_status = 404
    default_reason = "RESPONSE_NOT_FOUND"


class DeadlineError(PagemeshError):
    """The request's time is over."""

    grpc_code = "DEADLINE_EXCEEDED"
    http_status = 504
    default_reason = "DEADLINE_EXCEEDED"


class UnauthenticatedError(PagemeshError):
    """The caller's API key is missing or unknown."""

    grpc_code = "UNAUTHENTICATED"
    http_status = 401
    default_reason = "INVALID_API_KEY"


class PermissionDeniedError(PagemeshError):
    """What the caller is, as its certificate says, may not do this."""

    grpc_code = "PERMISSION_DENIED"
    http_status = 403
    default_reason = "PERMISSION_DENIED"


class OverloadedError(PagemeshError):
    """A bounded queue is full; the same request may succeed later.

    `retry_after` is the seconds until it may, as far as is known.
    """

    grpc_code = "RESOURCE_EXHAUSTED"
    http_status = 429
    default_reason = "OVERLOADED"

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        reason: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, reason=reason, param=param)
        self.retry_after = retry_after


class RateLimitError(OverloadedError):
    """The caller has used what it may for now.

    `retry_after` is None when the same request never would pass; `limit` names what is used up.
    """

    default_reason = "RATE_LIMIT_EXCEEDED"

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        limit: str = "",
        reason: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, retry_after=retry_after, reason=reason, param=param)
        self.limit = limit


class UnavailableError(PagemeshError):
    """Nobody can serve the request at the moment."""

    grpc_code = "UNAVAILABLE"
    http_status = 503
    default_reason = "UNAVAILABLE"


class WorkerLostError(UnavailableError):
    """The worker that ran the request went away."""

    default_reason = "WORKER_LOST"


class FailedPreconditionError(PagemeshError):
    """The peer's state does not allow the call: another model, layout or epoch."""

    grpc_code = "FAILED_PRECONDITION"
    http_status = 409
    default_reason = "FAILED_PRECONDITION"


class KvIntegrityError(PagemeshError):
    """A KV block is not what its sender said; it must not be used."""

    grpc_code = "DATA_LOSS"
    http_status = 500
    default_reason = "KV_INTEGRITY"


class ConfigError(PagemeshError):
    """A setting or a model folder cannot be used; the message names it and its value."""

    grpc_code = "INVALID_ARGUMENT"
    http_status = 400
    default_reason = "CONFIG"


class InternalError(PagemeshError):
    """A bug or a fault of the machine."""


class DeviceLostError(InternalError):
    """The device that computes failed, and will not compute again in this process."""

    default_reason = "DEVICE_LOST"


class PoisonRequestError(InternalError):
    """Workers die of the request; the same one is not tried again for a while."""

    default_reason = "POISON_REQUEST"


_MAX_SHOWN_CHARS: Final = 100


def shown(value: object) -> str:
    """A value as messages show it: cut where it would not fit into a line."""
    # A text may have gigabytes.
    text = repr(value[: _MAX_SHOWN_CHARS + 1] if isinstance(value, str) else value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
