"""Between the engine's plain objects and the messages of `pagemesh.v1`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagemesh.engine.interface import FinishReason
from pagemesh.errors import InvalidRequestError, PagemeshError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from pagemesh.v1 import types_pb2
from pagemesh.worker.link_meter import LinkSpeed
from pagemesh.worker.structured_messages import structured_from_proto, structured_to_proto

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
    return types_pb2.Error(
        code=error.grpc_code, reason=error.reason, message=error.message, param=error.param or ""
    )


def links_to_proto(links: Sequence[LinkSpeed]) -> list[types_pb2.LinkRate]:
    """What is believed of the links to this worker."""
    return [
        types_pb2.LinkRate(
            worker_id=link.worker_id,
            bytes_per_second=link.bytes_per_second,
            latency_seconds=link.latency_seconds,
        )
        for link in links
    ]


def sampling_to_proto(sampling: SamplingParams) -> types_pb2.SamplingParams:
    """How tokens are chosen, for another worker."""
    outputs = sampling.structured_outputs
    return types_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(0, sampling.top_k),
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
        bad_words_token_ids=[
            types_pb2.TokenSequence(token_ids=word) for word in sampling.bad_words_token_ids
        ],
        allowed_token_ids=sampling.allowed_token_ids or (),
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        structured_outputs=None if outputs is None else structured_to_proto(outputs),
    )


def sampling_from_proto(sampling: types_pb2.SamplingParams) -> SamplingParams:
    """How tokens are chosen; `sampling.validation` checks it, but for what the output must look like.

    Raises InvalidRequestError when that is faulty.
    """
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p or 1.0,
        top_k=sampling.top_k,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_token_ids=tuple(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty or 1.0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        bad_words_token_ids=tuple(tuple(word.token_ids) for word in sampling.bad_words_token_ids),
        allowed_token_ids=tuple(sampling.allowed_token_ids) or None,
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
        structured_outputs=structured_from_proto(sampling),
    )


def logprobs_to_proto(logprobs: TokenLogprobs) -> types_pb2.TokenLogprobs:
    """Log probabilities at one position, for another process."""
    return types_pb2.TokenLogprobs(
        token_id=logprobs.token_id,
        logprob=logprobs.logprob,
        rank=logprobs.rank,
        top_token_ids=logprobs.top_token_ids,
        top_logprobs=logprobs.top_logprobs,
    )


def logprobs_from_proto(logprobs: types_pb2.TokenLogprobs) -> TokenLogprobs:
    """Log probabilities at one position, from another process."""
    return TokenLogprobs(
        logprobs.token_id,
        logprobs.logprob,
        logprobs.rank,
        tuple(logprobs.top_token_ids),
        tuple(logprobs.top_logprobs),
    )


def require_peer(peer: types_pb2.PeerWorker, param: str) -> None:
    """Raise InvalidRequestError unless another worker is named so that it can be called and recognized."""
    if not (peer.worker_id and peer.address and peer.epoch):
        raise InvalidRequestError(
            f"{param} names {peer.worker_id!r} at {peer.address!r} with epoch {peer.epoch}, "
            "but needs a worker_id, an address and an epoch",
            param=param,
        )


def prompt_from_proto(token_ids: Sequence[int], field: str) -> tuple[int, ...]:
    """The ids of a prompt; InvalidRequestError when there are none."""
    if not token_ids:
        raise InvalidRequestError(f"{field} is empty", param=field)
    return tuple(token_ids)
