"""Between the engine's plain objects and the messages of `pagemesh.v1`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pagemesh.engine.interface import EngineLoad, FinishReason
from pagemesh.errors import InvalidRequestError, PagemeshError
from pagemesh.sampling.params import SamplingParams
from pagemesh.v1 import types_pb2

_FINISH_REASONS: Final = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: types_pb2.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: types_pb2.FINISH_REASON_ERROR,
}


def finish_reason_to_proto(reason: FinishReason) -> types_pb2.FinishReason.ValueType:
    """The message's value for why a request ended."""
    return _FINISH_REASONS[reason]


def error_to_proto(error: PagemeshError) -> types_pb2.Error:
    """An error inside a stream."""
    return types_pb2.Error(code=error.grpc_code, reason=error.reason, message=error.message)


def load_to_proto(load: EngineLoad) -> types_pb2.WorkerLoad:
    """The worker's load."""
    return types_pb2.WorkerLoad(
        running_request_count=load.num_running,
        waiting_request_count=load.num_waiting,
        free_block_count=load.num_free_blocks,
        pending_prefill_token_count=load.num_pending_prefill_tokens,
    )


def sampling_to_proto(sampling: SamplingParams) -> types_pb2.SamplingParams:
    """How tokens are chosen, for another worker."""
    return types_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
    )


def sampling_from_proto(sampling: types_pb2.SamplingParams) -> SamplingParams:
    """How tokens are chosen; InvalidRequestError where a router should have refused it."""
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise InvalidRequestError(
            f"temperature is {sampling.temperature}, but must be 0 or more", param="temperature"
        )
    if not 0 <= sampling.top_p <= 1:
        raise InvalidRequestError(
            f"top_p is {sampling.top_p}, but must be in [0, 1]", param="top_p"
        )
    if sampling.max_tokens == 0:
        raise InvalidRequestError("max_tokens is 0, but must be positive", param="max_tokens")
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p or 1.0,
        top_k=sampling.top_k,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_token_ids=tuple(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
    )


def prompt_from_proto(token_ids: Sequence[int], field: str) -> tuple[int, ...]:
    """The ids of a prompt; InvalidRequestError when there are none."""
    if not token_ids:
        raise InvalidRequestError(f"{field} is empty", param=field)
    return tuple(token_ids)
