"""Between the engine's objects and messages."""

from __future__ import annotations

import pytest

from pagemesh.engine.interface import EngineLoad, FinishReason
from pagemesh.errors import ContextLengthError, InvalidRequestError
from pagemesh.sampling.params import SamplingParams
from pagemesh.v1 import types_pb2
from pagemesh.worker.messages import (
    error_to_proto,
    finish_reason_to_proto,
    load_to_proto,
    prompt_from_proto,
    sampling_from_proto,
    sampling_to_proto,
)


def test_sampling_survives_the_wire() -> None:
    sampling = SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        seed=2**64 - 1,
        max_tokens=9,
        min_tokens=2,
        stop_token_ids=(3, 4),
        ignore_eos=True,
    )
    assert sampling_from_proto(sampling_to_proto(sampling)) == sampling


def test_zero_values_are_the_defaults_of_the_proto() -> None:
    sampling = sampling_from_proto(types_pb2.SamplingParams(max_tokens=1))
    assert sampling == SamplingParams(temperature=0.0, top_p=1.0, top_k=0, max_tokens=1)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        pytest.param({"max_tokens": 0}, "max_tokens", id="no tokens"),
        pytest.param({"temperature": -1.0}, "temperature", id="negative temperature"),
        pytest.param({"temperature": float("nan")}, "temperature", id="temperature is no number"),
        pytest.param({"top_p": 1.5}, "top_p", id="top_p above 1"),
        pytest.param({"top_p": float("nan")}, "top_p", id="top_p is no number"),
    ],
)
def test_a_wrong_value_is_refused_by_name(change: dict[str, float], param: str) -> None:
    values = {"max_tokens": 1, **change}
    with pytest.raises(InvalidRequestError, match=param) as caught:
        sampling_from_proto(types_pb2.SamplingParams(**values))  # type: ignore[arg-type]
    assert caught.value.param == param


def test_every_finish_reason_has_its_value() -> None:
    assert {reason: finish_reason_to_proto(reason) for reason in FinishReason} == {
        FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
        FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
        FinishReason.CANCELLED: types_pb2.FINISH_REASON_CANCELLED,
        FinishReason.ERROR: types_pb2.FINISH_REASON_ERROR,
    }


def test_an_error_keeps_code_reason_and_message() -> None:
    error = error_to_proto(ContextLengthError("too long"))
    assert (error.code, error.reason, error.message) == (
        "INVALID_ARGUMENT",
        "CONTEXT_LENGTH_EXCEEDED",
        "too long",
    )


def test_a_load_keeps_its_numbers() -> None:
    assert load_to_proto(EngineLoad(1, 2, 3, 4)) == types_pb2.WorkerLoad(
        running_request_count=1,
        waiting_request_count=2,
        free_block_count=3,
        pending_prefill_token_count=4,
    )


def test_an_empty_prompt_is_refused() -> None:
    assert prompt_from_proto([3, 4], "prompt_token_ids") == (3, 4)
    with pytest.raises(InvalidRequestError, match="prompt_token_ids is empty"):
        prompt_from_proto([], "prompt_token_ids")
