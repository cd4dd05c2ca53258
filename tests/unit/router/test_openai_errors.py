from __future__ import annotations

import pytest

from pagemesh import errors
from pagemesh.errors import PagemeshError
from pagemesh.router.openai.errors import error_body, error_headers
from pagemesh.rpc.status import error_classes


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (errors.InvalidRequestError("m"), 400, "invalid_request_error", None),
        (errors.ContextLengthError("m"), 400, "invalid_request_error", "context_length_exceeded"),
        (errors.UnsupportedError("m"), 400, "invalid_request_error", "unsupported"),
        (errors.ModelNotFoundError("m"), 404, "invalid_request_error", "model_not_found"),
        (errors.OverloadedError("m"), 429, "rate_limit_error", "rate_limit_exceeded"),
        (errors.RateLimitError("m"), 429, "rate_limit_error", "rate_limit_exceeded"),
        (errors.UnauthenticatedError("m"), 401, "invalid_request_error", "invalid_api_key"),
        (errors.DeadlineError("m"), 504, "server_error", "timeout"),
        (errors.UnavailableError("m"), 503, "server_error", "unavailable"),
        (errors.WorkerLostError("m"), 503, "server_error", "worker_lost"),
        (errors.KvIntegrityError("m"), 500, "server_error", "kv_integrity"),
        (errors.InternalError("m"), 500, "server_error", "internal"),
    ],
)
def test_errors_have_openais_types(
    error: PagemeshError, status: int, kind: str, code: str | None
) -> None:
    assert error.http_status == status
    body = {"message": "m", "type": kind, "param": None, "code": code}
    assert error_body(error) == {"error": body}


def test_every_error_has_a_body() -> None:
    for kind in error_classes():
        body = error_body(kind("m", param="p"))["error"]
        assert body["message"] == "m"
        assert body["param"] == "p"
        assert body["type"] in {"invalid_request_error", "rate_limit_error", "server_error"}


def test_clients_are_told_when_to_come_back() -> None:
    assert error_headers(errors.OverloadedError("m")) == {"retry-after": "1"}
    assert error_headers(errors.WorkerLostError("m")) == {"retry-after": "1"}
    assert error_headers(errors.RateLimitError("m", retry_after=2.1)) == {"retry-after": "3"}
    assert error_headers(errors.RateLimitError("m", retry_after=0.0)) == {"retry-after": "1"}
    assert error_headers(errors.InvalidRequestError("m")) == {}


def test_clients_are_told_when_coming_back_is_of_no_use() -> None:
    assert error_headers(errors.RateLimitError("m")) == {"x-should-retry": "false"}


def test_clients_are_told_how_to_send_a_key() -> None:
    assert error_headers(errors.UnauthenticatedError("m")) == {"www-authenticate": "Bearer"}
