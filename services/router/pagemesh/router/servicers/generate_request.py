"""`Inference.Generate`: from its message to a request for the generation path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pagemesh.errors import InvalidRequestError
from pagemesh.messages import sampling_from_proto, structured_from_proto
from pagemesh.router.call import Call
from pagemesh.router.chat.answer_reading import AnswerReading
from pagemesh.router.chat.conversation import open_conversation
from pagemesh.router.chat.renaming import in_words_of
from pagemesh.router.generation.limits import resolve_max_tokens
from pagemesh.router.generation.request import Choice, GenerationRequest
from pagemesh.router.models import ModelService
from pagemesh.router.openai.generation_request import hidden_tokens
from pagemesh.router.served_model import ServedModel
from pagemesh.router.servicers.chat_messages import CHAT_NAMES, read_chat
from pagemesh.router.servicers.generate_messages import TypedAnswer
from pagemesh.sampling.params import MAX_TEMPERATURE, SamplingParams, check_sampling
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.v1 import inference_pb2, types_pb2

_SEED_MASK: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What to go on with."""

    token_ids: Sequence[int]

    form: StructuredOutputs | None
    """What the answers must look like."""

    reading: AnswerReading | None = None
    """How answers of a conversation are taken apart."""


@dataclass(frozen=True, slots=True)
class TypedJob:
    """A checked request, ready to run."""

    request: GenerationRequest
    answer: TypedAnswer


async def prepare_generation(
    service: ModelService, request: inference_pb2.GenerateRequest, call: Call
) -> TypedJob:
    """What a message asks of a model; raises a PagemeshError naming the message's faulty field."""
    _check_stops(request, service.model.api.max_stop_strings)
    num_choices = _num_choices(request, service.model.api.max_choices)
    field = request.WhichOneof("prompt") or "prompt"
    model, max_model_len = service.model, service.workers.require_max_model_len()
    prompt = await _open(model, request, field, max_model_len)
    wanted = types_pb2.SamplingParams()
    wanted.CopyFrom(request.sampling)
    wanted.max_tokens = resolve_max_tokens(
        len(prompt.token_ids),
        max_model_len,
        request.sampling.max_tokens or None,
        None,
        model.defaults.most_tokens,
        prompt_field=field,
        limit_field="sampling.max_tokens",
    )
    if not request.use_seed:
        wanted.seed = model.seeds.draw()
    sampling = _check_sampling(model, sampling_from_proto(wanted), request.bad_words)
    reading = prompt.reading
    return TypedJob(
        GenerationRequest(
            call=call,
            choices=_choices(prompt, sampling, num_choices),
            num_prompts=1,
            stop=tuple(request.stop),
            priority=request.priority,
            is_open_ended=not request.sampling.max_tokens and model.defaults.most_tokens is None,
            cache_salt=request.cache_salt,
            form_field="chat.tools"
            if reading is not None and reading.is_form_of_tools
            else "sampling.structured_outputs",
            hidden_token_ids=None if reading is None else hidden_tokens(model, reading.markers),
            thought_marks=None if reading is None else reading.thought_marks,
        ),
        TypedAnswer(
            num_choices,
            [] if reading is None else [reading.new_reader() for _ in range(num_choices)],
        ),
    )


def _choices(prompt: _Prompt, sampling: SamplingParams, num_choices: int) -> tuple[Choice, ...]:
    token_ids = tuple(prompt.token_ids)
    return tuple(
        Choice(
            token_ids,
            replace(
                sampling,
                structured_outputs=prompt.form,
                seed=(sampling.seed + index) & _SEED_MASK,
                # The prompt is the same for all: the first answer says what is asked of it.
                prompt_logprobs=sampling.prompt_logprobs if index == 0 else None,
            ),
        )
        for index in range(num_choices)
    )


def _num_choices(request: inference_pb2.GenerateRequest, most: int) -> int:
    if request.choice_count > most:
        raise InvalidRequestError(
            f"choice_count is {request.choice_count}, but must be at most {most}",
            param="choice_count",
        )
    return request.choice_count or 1


def _check_stops(request: inference_pb2.GenerateRequest, most: int) -> None:
    """Raise InvalidRequestError for too many stop strings, or an empty one."""
    if len(request.stop) > most or "" in request.stop:
        raise InvalidRequestError(
            f"stop has {len(request.stop)} strings, but must have at most {most}, "
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


async def _open(
    model: ServedModel, request: inference_pb2.GenerateRequest, field: str, max_model_len: int
) -> _Prompt:
    form = structured_from_proto(request.sampling)
    match field:
        case "text":
            return _Prompt(await model.encode_prompt(request.text, field, max_model_len), form)
        case "chat":
            fields = read_chat(request.chat)
            with in_words_of(CHAT_NAMES):
                _, ids, reading = await open_conversation(
                    model, fields, form, max_model_len, param="messages"
                )
            return _Prompt(ids, reading.form, reading)
        case "token_ids":
            return _Prompt(model.check_token_ids(list(request.token_ids.ids), field), form)
    raise InvalidRequestError("none of text, chat and token_ids is set", param=field)
