"""`Inference.Generate`: from its message to a request for the generation path."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.generation.limits import resolve_max_tokens
from pagemesh.router.generation.request import Choice, GenerationRequest
from pagemesh.router.models import ModelService
from pagemesh.router.served_model import ServedModel
from pagemesh.router.servicers.generate_messages import read_chat
from pagemesh.sampling.params import MAX_TEMPERATURE, SamplingParams
from pagemesh.sampling.validation import check_sampling
from pagemesh.v1 import inference_pb2, types_pb2
from pagemesh.worker.messages import sampling_from_proto

_MAX_STOPS: Final = 4


async def prepare_generation(
    service: ModelService, request: inference_pb2.GenerateRequest, call: Call
) -> GenerationRequest:
    """What a message asks of a model; raises a PagemeshError naming the message's faulty field."""
    _check_stops(request)
    field = request.WhichOneof("prompt") or "prompt"
    max_model_len = service.workers.require_max_model_len()
    prompt = await _encode(service.model, request, field, max_model_len)
    wanted = types_pb2.SamplingParams()
    wanted.CopyFrom(request.sampling)
    wanted.max_tokens = resolve_max_tokens(
        len(prompt),
        max_model_len,
        request.sampling.max_tokens or None,
        None,
        prompt_field=field,
        limit_field="sampling.max_tokens",
    )
    if not request.use_seed:
        wanted.seed = secrets.randbits(63)
    sampling = _check_sampling(service.model, sampling_from_proto(wanted), request.bad_words)
    return GenerationRequest(
        call=call,
        choices=(Choice(tuple(prompt), sampling),),
        num_prompts=1,
        stop=tuple(request.stop),
        priority=request.priority,
        is_open_ended=not request.sampling.max_tokens,
        cache_salt=request.cache_salt,
    )


def _check_stops(request: inference_pb2.GenerateRequest) -> None:
    """Raise InvalidRequestError for too many stop strings, or an empty one."""
    if len(request.stop) > _MAX_STOPS or "" in request.stop:
        raise InvalidRequestError(
            f"stop has {len(request.stop)} strings, but must have at most {_MAX_STOPS}, "
            "none of them empty",
            param="stop",
        )


def _check_sampling(
    model: ServedModel, sampling: SamplingParams, bad_words: Sequence[str]
) -> SamplingParams:
    """The parameters with the bad words' ids; InvalidRequestError names the message's field."""
    if sampling.temperature > MAX_TEMPERATURE:
        raise InvalidRequestError(
            f"sampling.temperature is {sampling.temperature}, but must be at most {MAX_TEMPERATURE}",
            param="sampling.temperature",
        )
    try:
        check_sampling(sampling, model.tokenizer.vocab_size)
    except InvalidRequestError as error:
        message = f"sampling.{error.message}"
        raise InvalidRequestError(message, param=f"sampling.{error.param}") from error
    sequences = model.encode_bad_words(bad_words)
    return replace(sampling, bad_words_token_ids=sampling.bad_words_token_ids + sequences)


async def _encode(
    model: ServedModel, request: inference_pb2.GenerateRequest, field: str, max_model_len: int
) -> list[int]:
    match field:
        case "text":
            return await model.encode_prompt(request.text, field, max_model_len)
        case "chat":
            return await model.encode_chat(read_chat(request.chat), field, max_model_len)
        case "token_ids":
            return model.check_token_ids(list(request.token_ids.ids), field)
    raise InvalidRequestError("none of text, chat and token_ids is set", param=field)
