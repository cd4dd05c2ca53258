"""Exceptions to statuses and back."""

from __future__ import annotations

import grpc
import pytest

from pagemesh.errors import (
    ContextLengthError,
    DeadlineError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    PagemeshError,
    RateLimitError,
    UnavailableError,
    WorkerLostError,
)
from pagemesh.rpc.status import (
    CLASS_BY_CODE,
    as_pagemesh_error,
    error_classes,
    from_rpc_error,
    make_error,
    to_status,
)


def test_every_exception_of_the_tree_has_a_code_that_grpc_knows() -> None:
    codes = {code.name for code in grpc.StatusCode}
    for cls in error_classes():
        assert cls.grpc_code in codes, cls


def test_every_grpc_code_but_ok_has_a_class() -> None:
    assert set(CLASS_BY_CODE) == {code.name for code in grpc.StatusCode} - {"OK"}


@pytest.mark.parametrize("cls", list(error_classes()), ids=lambda cls: cls.__name__)
def test_every_exception_survives_the_wire(cls: type[PagemeshError]) -> None:
    error = make_error(cls.grpc_code, cls("told").reason, "told")
    assert error.message == "told"
    assert error.reason == cls.default_reason
    assert error.grpc_code == cls.grpc_code
    # PagemeshError itself and InternalError have the same code and reason.
    assert isinstance(error, cls)


def test_a_subclass_comes_back_as_itself() -> None:
    assert type(make_error("UNAVAILABLE", "WORKER_LOST", "gone")) is WorkerLostError
    assert type(make_error("UNAVAILABLE", "DRAINING", "stopping")) is UnavailableError
    assert make_error("UNAVAILABLE", "DRAINING", "stopping").reason == "DRAINING"
    error = make_error("INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED", "too long", "prompt")
    assert type(error) is ContextLengthError
    assert error.param == "prompt"


def test_a_code_that_nobody_knows_is_internal() -> None:
    assert type(make_error("BROKEN", "", "?")) is InternalError


def test_a_status_has_code_message_and_error_info() -> None:
    status = to_status(InvalidRequestError("top_p is 2", param="top_p"))
    assert status.code == 3
    assert status.message == "top_p is 2"
    assert status.details[0].type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    assert b"top_p" in status.details[0].value
    assert b"pagemesh" in status.details[0].value


@pytest.mark.parametrize("retry_after", [None, 2.5])
def test_a_status_says_when_to_come_back(retry_after: float | None) -> None:
    status = to_status(RateLimitError("enough", retry_after=retry_after)).SerializeToString()
    refused = grpc.aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(("grpc-status-details-bin", status)),
        "enough",
    )
    error = from_rpc_error(refused)
    assert isinstance(error, RateLimitError)
    assert error.retry_after == retry_after


def test_unknown_exceptions_tell_nothing() -> None:
    error = as_pagemesh_error(ValueError("secret"))
    assert type(error) is InternalError
    assert "secret" not in error.message


def test_a_timeout_is_a_deadline() -> None:
    assert type(as_pagemesh_error(TimeoutError())) is DeadlineError


def test_a_known_exception_stays_what_it_is() -> None:
    error = OverloadedError("full")
    assert as_pagemesh_error(error) is error


def test_a_status_of_a_stranger_is_read_by_its_code() -> None:
    refused = grpc.aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), grpc.aio.Metadata(), "too many"
    )
    error = from_rpc_error(refused)
    assert type(error) is OverloadedError
    assert error.message == "too many"


def test_a_status_whose_details_contradict_it_is_read_by_its_code() -> None:
    lie = to_status(InvalidRequestError("no")).SerializeToString()
    refused = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(("grpc-status-details-bin", lie)),
        "gone",
    )
    assert type(from_rpc_error(refused)) is UnavailableError
