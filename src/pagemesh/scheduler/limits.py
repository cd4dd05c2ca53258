"""Which requests can run at all, and when one ends by itself. Refusals name the field, its value and the limit."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.core.engine import EngineInfo
from pagemesh.core.request import EngineRequest, FinishReason
from pagemesh.errors import ContextLengthError, InvalidRequestError, UnsupportedError
from pagemesh.sampling.params import check_sampling
from pagemesh.scheduler.request import Request


def max_total_tokens(spec: EngineRequest, max_model_len: int) -> int:
    """Prompt plus output at which the request ends, stop tokens aside; an export makes one token.

    An embedding counts like one that needs no place in the context.
    """
    if spec.embed:
        return len(spec.prompt_token_ids) + 1
    if spec.hold_blocks:
        num_new_tokens = len(spec.resume_token_ids) + 1
    else:
        num_new_tokens = spec.sampling.max_tokens
    return min(len(spec.prompt_token_ids) + num_new_tokens, max_model_len)


def check_request(
    spec: EngineRequest, info: EngineInfo, vocab_size: int, eos_token_ids: Sequence[int] = ()
) -> None:
    """Raise InvalidRequestError when the request can never run on this engine.

    UnsupportedError when it asks for tokens or an embedding and the model cannot make those.
    """
    if not spec.prompt_token_ids:
        raise InvalidRequestError("prompt_token_ids is empty", param="prompt_token_ids")
    if spec.embed:
        _check_embedding(spec, info)
    elif not info.generates:
        raise UnsupportedError(
            "the model has no output head: it makes embeddings and does not generate text"
        )
    check_sampling(spec.sampling, vocab_size, eos_token_ids)
    if spec.sampling.prompt_logprobs is not None and (spec.hold_blocks or spec.await_kv):
        raise InvalidRequestError(
            "prompt_logprobs come from computing the whole prompt in one place: such a request can"
            " neither export nor import KV",
            param="prompt_logprobs",
        )
    if spec.fork_of is not None and (spec.hold_blocks or spec.await_kv):
        raise InvalidRequestError(
            f"fork_of is {spec.fork_of!r}, but a fork can neither export nor import KV",
            param="fork_of",
        )
    _check_ids("prompt_token_ids", spec.prompt_token_ids, vocab_size)
    _check_ids("resume_token_ids", spec.resume_token_ids, vocab_size)
    _check_length(spec, info)


def check_fork(spec: EngineRequest, leader: EngineRequest) -> None:
    """Raise InvalidRequestError unless the two have the same KV for the whole prompt."""
    for field in ("prompt_token_ids", "cache_salt"):
        if getattr(spec, field) != getattr(leader, field):
            raise InvalidRequestError(
                f"fork_of is {spec.fork_of!r}, whose {field} is another", param="fork_of"
            )


def _check_embedding(spec: EngineRequest, info: EngineInfo) -> None:
    if info.pooling is None:
        raise UnsupportedError("the model does not support embeddings")
    is_other = (
        spec.hold_blocks
        or spec.await_kv
        or spec.resume_token_ids
        or spec.fork_of is not None
        or spec.sampling.prompt_logprobs is not None
        or spec.sampling.structured_outputs is not None
    )
    if is_other:
        raise InvalidRequestError(
            "embed excludes exports, imports, forks, resumed tokens, log probabilities and structured"
            " outputs",
            param="embed",
        )


def _check_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{field} contains {token_id}, but the model's vocabulary has {vocab_size} tokens",
                param=field,
            )


def _check_length(spec: EngineRequest, info: EngineInfo) -> None:
    num_prompt_tokens = len(spec.prompt_token_ids)
    if spec.embed and num_prompt_tokens > info.max_model_len:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens, but the model embeds at most"
            f" {info.max_model_len}",
            param="prompt_token_ids",
        )
    if not spec.embed and num_prompt_tokens >= info.max_model_len:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens, but prompt and output together can have"
            f" only {info.max_model_len}",
            param="prompt_token_ids",
        )
    # Alone in the pool, the request must reach its end; the KV of its last token is never needed.
    num_tokens = max_total_tokens(spec, info.max_model_len) - 1
    capacity = info.num_blocks * info.layout.block_size
    if num_tokens > capacity:
        raise ContextLengthError(
            f"the request needs KV for {num_tokens} tokens, but the worker's cache holds only"
            f" {capacity}",
            param="max_tokens",
        )


class StopRules:
    """Stop tokens, the model's end-of-sequence tokens and the length limits."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self.eos_token_ids = tuple(eos_token_ids)
        """The model's own."""

    def reason(self, request: Request) -> FinishReason | None:
        """Why the request ends with its last token, or None when it goes on."""
        if request.constraint is not None and request.constraint.is_over:
            return FinishReason.STOP
        sampling, token_ids = request.spec.sampling, request.token_ids
        num_tokens = len(token_ids)
        if num_tokens - request.num_prompt_tokens > sampling.min_tokens:
            token_id = token_ids[-1]
            is_eos = token_id in self.eos_token_ids and not sampling.ignore_eos
            if is_eos or token_id in sampling.stop_token_ids:
                return FinishReason.STOP
        return FinishReason.LENGTH if num_tokens >= request.max_total_tokens else None

    def suppressed(self, request: Request, num_unknown: int = 0) -> tuple[int, ...]:
        """Tokens that must not be sampled next: all that would stop the request before min_tokens.

        Next is behind the known tokens and `num_unknown` more.

        An end of sequence is the end of a structured output, so ignoring it means not to sample it.
        """
        sampling = request.spec.sampling
        ignored = sampling.ignore_eos and request.constraint is not None
        ends = self.eos_token_ids if ignored else ()
        if request.num_generated_tokens + num_unknown >= sampling.min_tokens:
            return ends
        return (*self._stop_token_ids(request), *ends)

    def _stop_token_ids(self, request: Request) -> tuple[int, ...]:
        sampling = request.spec.sampling
        if sampling.ignore_eos:
            return sampling.stop_token_ids
        return (*sampling.stop_token_ids, *self.eos_token_ids)
