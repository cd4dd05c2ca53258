"""Between the engine's objects and messages."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pagemesh.core.request import FinishReason
from pagemesh.errors import ContextLengthError, InvalidRequestError
from pagemesh.messages import (
    error_to_proto,
    finish_reason_to_proto,
    logprobs_from_proto,
    logprobs_to_proto,
    prompt_from_proto,
    require_peer,
    sampling_from_proto,
    sampling_to_proto,
)
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.v1 import types_pb2


def test_sampling_survives_the_wire() -> None:
    sampling = SamplingParams(
        temperature=0.7,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-0.3,
        frequency_penalty=1.9,
        logit_bias={3: -99.9, 70_000: 0.1},
        bad_words_token_ids=((5,), (6, 7)),
        allowed_token_ids=(8, 9),
        logprobs=0,
        prompt_logprobs=20,
        seed=2**64 - 1,
        max_tokens=9,
        min_tokens=2,
        stop_token_ids=(3, 4),
        ignore_eos=True,
    )
    assert sampling_from_proto(sampling_to_proto(sampling)) == sampling


@pytest.mark.parametrize(
    "options",
    [
        {"json": '{"type": "object"}'},
        {"json": "{}", "disable_any_whitespace": True},
        {"json": "{}", "whitespace_pattern": ""},
        {"regex": "a+"},
        {"choice": ["yes", "né"]},
        {"grammar": 'root ::= "a"'},
        {"json_object": True, "whitespace_pattern": " ?"},
    ],
    ids=str,
)
def test_what_an_output_must_look_like_survives_the_wire(options: dict[str, Any]) -> None:
    sampling = SamplingParams(structured_outputs=StructuredOutputs.of(**options))
    assert sampling_from_proto(sampling_to_proto(sampling)) == sampling


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (types_pb2.StructuredOutputs(), "structured_outputs has no constraint"),
        (types_pb2.StructuredOutputs(json_object=False), "none are specified"),
        (types_pb2.StructuredOutputs(json="{"), "not valid JSON"),
        (types_pb2.StructuredOutputs(choice=types_pb2.Choices()), "at least one string"),
        (types_pb2.StructuredOutputs(regex="a" * 16385), "16385 bytes"),
    ],
    ids=str,
)
def test_faulty_descriptions_of_outputs_are_refused(
    outputs: types_pb2.StructuredOutputs, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        sampling_from_proto(types_pb2.SamplingParams(structured_outputs=outputs))
    assert refused.value.param == "structured_outputs"


def test_zero_values_are_the_defaults_of_the_proto() -> None:
    sampling = sampling_from_proto(types_pb2.SamplingParams(max_tokens=1))
    assert sampling == SamplingParams(temperature=0.0, top_p=1.0, top_k=0, max_tokens=1)


def test_wrong_numbers_reach_the_check_as_they_are() -> None:
    message = types_pb2.SamplingParams(max_tokens=1, temperature=math.nan, top_p=math.nan)
    sampling = sampling_from_proto(message)
    assert (math.isnan(sampling.temperature), math.isnan(sampling.top_p)) == (True, True)
    assert sampling_from_proto(types_pb2.SamplingParams()).max_tokens == 0


@pytest.mark.parametrize("count", [None, 0, 3])
def test_no_log_probabilities_and_none_beside_the_token_are_different(count: int | None) -> None:
    sampling = SamplingParams(logprobs=count, prompt_logprobs=count)
    assert sampling_from_proto(sampling_to_proto(sampling)) == sampling


def test_log_probabilities_survive_the_wire() -> None:
    logprobs = TokenLogprobs(7, -1.5, 3, (5, 7), (-0.25, -math.inf))
    assert logprobs_from_proto(logprobs_to_proto(logprobs)) == logprobs


def test_every_finish_reason_has_its_value() -> None:
    assert {reason: finish_reason_to_proto(reason) for reason in FinishReason} == {
        FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
        FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
        FinishReason.CANCELLED: types_pb2.FINISH_REASON_CANCELLED,
        FinishReason.ERROR: types_pb2.FINISH_REASON_ERROR,
    }


def test_an_error_keeps_code_reason_message_and_field() -> None:
    error = error_to_proto(ContextLengthError("too long", param="prompt"))
    assert (error.code, error.reason, error.message, error.param) == (
        "INVALID_ARGUMENT",
        "CONTEXT_LENGTH_EXCEEDED",
        "too long",
        "prompt",
    )
    assert error_to_proto(ContextLengthError("too long")).param == ""


def test_an_empty_prompt_is_refused() -> None:
    assert prompt_from_proto([3, 4], "prompt_token_ids") == (3, 4)
    with pytest.raises(InvalidRequestError, match="prompt_token_ids is empty"):
        prompt_from_proto([], "prompt_token_ids")


@pytest.mark.parametrize(
    "peer",
    [
        types_pb2.PeerWorker(address="a:1", epoch=7),
        types_pb2.PeerWorker(worker_id="p", epoch=7),
        types_pb2.PeerWorker(worker_id="p", address="a:1"),
    ],
    ids=["no name", "no address", "no epoch"],
)
def test_a_peer_that_cannot_be_called_or_recognized_is_refused(peer: types_pb2.PeerWorker) -> None:
    require_peer(types_pb2.PeerWorker(worker_id="p", address="a:1", epoch=7), "source")
    with pytest.raises(InvalidRequestError, match=r"^source names .* needs a worker_id") as caught:
        require_peer(peer, "source")
    assert caught.value.param == "source"
