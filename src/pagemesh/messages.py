"""Between plain objects and the messages of `pagemesh.v1`, in both directions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pagemesh.cache.block_hash import BLOCK_HASH_SIZE, CacheDigest
from pagemesh.core.kv import KvLayout
from pagemesh.core.load import EngineLoad, LinkSpeed, PrefillRate
from pagemesh.core.request import FinishReason
from pagemesh.errors import FailedPreconditionError, InvalidRequestError, PagemeshError
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import PARAM, StructuredKind, StructuredOutputs
from pagemesh.v1 import kvstore_pb2, types_pb2

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
    """How tokens are chosen; `check_sampling` checks it, but for what the output must look like.

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


MOST: Final = 1e15
"""Of any measured quantity, in tokens, pairs, seconds or bytes per second; products of a few are still numbers."""


def load_to_proto(load: EngineLoad, links: Sequence[types_pb2.LinkRate]) -> types_pb2.WorkerLoad:
    """What a worker reports; without a rate until one was measured."""
    return types_pb2.WorkerLoad(
        running_request_count=load.num_running,
        waiting_request_count=load.num_waiting,
        queued_request_count=load.num_queued,
        free_block_count=load.num_free_blocks,
        preemption_count=load.num_preemptions,
        swap_block_count=load.swap.num_blocks,
        used_swap_block_count=load.swap.num_used_blocks,
        pending_prefill_token_count=load.num_pending_prefill_tokens,
        prefill_rate=_rate_to_proto(load.prefill_rate) if load.prefill_rate.is_known else None,
        links=links,
    )


def _rate_to_proto(rate: PrefillRate) -> types_pb2.PrefillRate:
    return types_pb2.PrefillRate(
        seconds_per_token=rate.seconds_per_token,
        seconds_per_pair=rate.seconds_per_pair,
        seconds_per_step=rate.seconds_per_step,
        step_token_count=rate.num_tokens_per_step,
        mean_pair_count=rate.num_pairs_per_token,
    )


def rate_from_proto(message: types_pb2.PrefillRate) -> PrefillRate:
    """What a worker reported; all zeros for numbers that cannot have been measured."""
    rate = PrefillRate(
        message.seconds_per_token,
        message.seconds_per_pair,
        message.seconds_per_step,
        message.step_token_count,
        message.mean_pair_count,
    )
    seconds = (rate.seconds_per_token, rate.seconds_per_pair, rate.seconds_per_step)
    # With all of them 0, prompts of any length would take no time.
    return rate if any(seconds) and is_possible(rate) else PrefillRate()


def is_possible(measured: Iterable[float]) -> bool:
    """Whether these may have been measured: one worker's nonsense must not decide about all requests."""
    return all(0 <= number <= MOST for number in measured)


def digest_to_proto(digest: CacheDigest) -> kvstore_pb2.CacheDigest:
    """The two numbers as they are sent."""
    return kvstore_pb2.CacheDigest(
        block_count=digest.num_blocks, names_xor=digest.names_xor.to_bytes(BLOCK_HASH_SIZE)
    )


def digest_from_proto(message: kvstore_pb2.CacheDigest) -> CacheDigest:
    """The two numbers as they were sent."""
    return CacheDigest(message.block_count, int.from_bytes(message.names_xor))


def layout_to_proto(layout: KvLayout) -> types_pb2.KvLayout:
    """The message for a layout."""
    group = layout.group
    return types_pb2.KvLayout(
        block_size=layout.block_size,
        layer_count=group.num_layers,
        kv_head_count=group.num_kv_heads,
        head_dim=group.head_dim,
        dtype=layout.dtype,
    )


def layout_from_proto(message: types_pb2.KvLayout) -> KvLayout:
    """The layout that a message means."""
    return KvLayout.uniform(
        block_size=message.block_size,
        num_layers=message.layer_count,
        num_kv_heads=message.kv_head_count,
        head_dim=message.head_dim,
        dtype=message.dtype,
    )


def describe_layout(layout: types_pb2.KvLayout) -> str:
    """A layout in words, for messages of errors."""
    return (
        f"{layout.block_size} tokens x {layout.layer_count} layers x {layout.kv_head_count} heads "
        f"x {layout.head_dim} {layout.dtype}"
    )


def describe_arithmetic(arithmetic: str) -> str:
    """A class of arithmetic in words, for people."""
    return arithmetic or "one that is not named"


def require_same_kv(
    worker: types_pb2.WorkerInfo,
    model_fingerprint: str,
    layout: types_pb2.KvLayout,
    arithmetic: str,
) -> None:
    """Raise FailedPreconditionError unless a caller's model, layout and arithmetic are those of this worker."""
    if model_fingerprint != worker.model_fingerprint:
        raise FailedPreconditionError(
            f"model_fingerprint is {model_fingerprint!r}, "
            f"but {worker.worker_id} serves {worker.model_fingerprint!r}",
            reason="MODEL_MISMATCH",
        )
    if layout != worker.kv_layout:
        raise FailedPreconditionError(
            f"kv_layout is {describe_layout(layout)}, "
            f"but {worker.worker_id} has {describe_layout(worker.kv_layout)}",
            reason="LAYOUT_MISMATCH",
        )
    # Routers pair no such workers, and the blocks have other hashes; but one of another version may ask.
    if arithmetic != worker.arithmetic:
        raise FailedPreconditionError(
            f"the caller's arithmetic is {describe_arithmetic(arithmetic)}, "
            f"but that of {worker.worker_id} is {describe_arithmetic(worker.arithmetic)}",
            reason="ARITHMETIC_MISMATCH",
        )
