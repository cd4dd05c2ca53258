"""From a body to a job: the request for the generation path and the writer of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagemesh.router.call import Call
from pagemesh.router.generation.interface import TextGenerator
from pagemesh.router.generation.limits import resolve_max_tokens
from pagemesh.router.generation.request import GenerationRequest, Usage
from pagemesh.router.models import Models, ModelService
from pagemesh.router.openai.chat_request import parse_chat_request
from pagemesh.router.openai.chat_response import ChatResponder
from pagemesh.router.openai.completion_request import (
    DEFAULT_MAX_TOKENS,
    CompletionRequest,
    parse_completion_request,
)
from pagemesh.router.openai.completion_response import CompletionResponder
from pagemesh.router.openai.echo import EchoedPrompt, EchoResponder
from pagemesh.router.openai.fields import RequestFields
from pagemesh.router.openai.responses import CollectedChoice, Responder, best_choices
from pagemesh.router.openai.sampling import make_choices
from pagemesh.router.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request, ready to run."""

    generator: TextGenerator
    """Of the model that was asked for."""

    request: GenerationRequest
    responder: Responder
    stream: bool

    num_given: int
    """Answers given to each prompt, the best of those generated."""

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed, from all choices of the request."""
        given = best_choices(choices, self.request.num_prompts, self.num_given)
        return self.responder.whole(given, usage)


class Endpoints:
    """Prepares jobs for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def chat(self, body: bytes, call: Call) -> Job:
        """A job from the body of POST /v1/chat/completions."""
        fields = parse_chat_request(body)
        service = self._models.find(fields.model)
        model = service.model
        messages = [message.for_template() for message in fields.messages]
        max_model_len = service.workers.require_max_model_len()
        prompt = await model.encode_chat(messages, "messages", max_model_len)
        limit_field, asked = fields.token_limit
        max_tokens = resolve_max_tokens(
            len(prompt),
            max_model_len,
            asked,
            model.defaults.max_tokens,
            prompt_field="messages",
            limit_field=limit_field,
        )
        responder = ChatResponder(
            call.request_id,
            call.created,
            model.name,
            include_usage=fields.include_usage,
            token_text=model.token_text,
            has_logprobs=fields.num_logprobs is not None,
        )
        return _job(call, service, fields, [prompt], [max_tokens], responder)

    async def completion(self, body: bytes, call: Call) -> Job:
        """A job from the body of POST /v1/completions."""
        fields = parse_completion_request(body)
        service = self._models.find(fields.model)
        model = service.model
        max_model_len = service.workers.require_max_model_len()
        prompts = [
            await model.encode_prompt(prompt, "prompt", max_model_len)
            if isinstance(prompt, str)
            else model.check_token_ids(prompt, "prompt")
            for prompt in fields.prompts
        ]
        max_tokens = [
            resolve_max_tokens(
                len(prompt),
                max_model_len,
                # A prompt is looked at by generating from it.
                1 if fields.max_tokens == 0 else fields.max_tokens,
                DEFAULT_MAX_TOKENS,
                prompt_field="prompt",
                limit_field="max_tokens",
            )
            for prompt in prompts
        ]
        responder: Responder = CompletionResponder(
            call.request_id,
            call.created,
            model.name,
            include_usage=fields.include_usage,
            token_text=model.token_text,
            has_logprobs=fields.num_logprobs is not None,
        )
        if fields.echo:
            responder = _echoing(responder, fields, prompts, model)
        return _job(call, service, fields, prompts, max_tokens, responder)


def _echoing(
    inner: Responder, fields: CompletionRequest, prompts: Sequence[list[int]], model: ServedModel
) -> EchoResponder:
    echoed = [
        EchoedPrompt(
            given if isinstance(given, str) else model.tokenizer.decode(token_ids),
            token_ids,
        )
        for given, token_ids in zip(fields.prompts, prompts, strict=True)
    ]
    return EchoResponder(
        inner,
        echoed,
        fields.n or 1,
        only_prompts=fields.max_tokens == 0,
        num_logprobs=fields.num_logprobs,
        gives_prompt_logprobs=fields.prompt_logprobs is not None,
        token_text=model.token_text,
    )


def _job(
    call: Call,
    service: ModelService,
    fields: RequestFields,
    prompts: Sequence[Sequence[int]],
    max_tokens: Sequence[int],
    responder: Responder,
) -> Job:
    request = GenerationRequest(
        call=call,
        choices=make_choices(prompts, max_tokens, fields, service.model),
        num_prompts=len(prompts),
        stop=fields.stop_strings,
        priority=fields.priority or 0,
        cache_salt=fields.cache_salt or "",
    )
    return Job(service.generator, request, responder, bool(fields.stream), fields.n or 1)
