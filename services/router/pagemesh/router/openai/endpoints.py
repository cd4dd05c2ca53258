"""From a body to a job: the request for the generation path and the writer of its answer."""

from __future__ import annotations

from collections.abc import Sequence

from pagemesh.router.call import Call
from pagemesh.router.chat.preparer import ChatPlan, ChatPreparer
from pagemesh.router.generation.limits import resolve_max_tokens
from pagemesh.router.generation.request import GenerationRequest
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
from pagemesh.router.openai.job import Job
from pagemesh.router.openai.responses import Responder
from pagemesh.router.openai.sampling import make_choices
from pagemesh.router.served_model import ServedModel


class Endpoints:
    """Prepares jobs for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._chats = ChatPreparer(models)

    async def chat(self, body: bytes, call: Call) -> Job:
        """A job from the body of POST /v1/chat/completions."""
        return await self._chats.prepare(parse_chat_request(body), call, _chat_responder)

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


def _chat_responder(plan: ChatPlan) -> ChatResponder:
    return ChatResponder(
        plan.call.request_id,
        plan.call.created,
        plan.model.name,
        include_usage=plan.fields.include_usage,
        token_text=plan.model.token_text,
        has_logprobs=plan.fields.num_logprobs is not None,
    )


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
