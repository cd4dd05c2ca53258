"""From a body to a job: the request for the generation path and the writer of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.chat.preparer import ChatPlan, ChatPreparer
from pagemesh.router.generation.limits import resolve_max_tokens, within_cap
from pagemesh.router.models import Models, ModelService
from pagemesh.router.openai.answer_options import AnswerOptions
from pagemesh.router.openai.chat_request import parse_chat_request
from pagemesh.router.openai.chat_response import ChatResponder
from pagemesh.router.openai.completion_request import (
    DEFAULT_MAX_TOKENS,
    CompletionRequest,
    parse_completion_request,
)
from pagemesh.router.openai.completion_response import CompletionResponder
from pagemesh.router.openai.echo import EchoResponder, echoed_text, echoed_tokens
from pagemesh.router.openai.fields import RequestFields, parse_object
from pagemesh.router.openai.generation_request import make_request
from pagemesh.router.openai.infilling import infilling
from pagemesh.router.openai.job import Job
from pagemesh.router.openai.responses import Responder
from pagemesh.router.openai.truncation import Truncation
from pagemesh.router.served_model import ServedModel

_RENDERED: Final = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens",
        "repetition_penalty", "presence_penalty", "frequency_penalty", "stop_token_ids", "ignore_eos",
        "logprobs", "prompt_logprobs", "logit_bias", "allowed_token_ids",
    }
)  # fmt: skip
"""Sampling parameters that vLLM has under the same name."""


class Endpoints:
    """Prepares jobs for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._chats = ChatPreparer(models)

    async def chat(self, body: bytes, call: Call) -> Job:
        """A job from the body of POST /v1/chat/completions."""
        return await self._chats.prepare(parse_chat_request(body), call, _chat_responder)

    async def render_chat(self, body: bytes, call: Call) -> dict[str, Any]:
        """The answer to POST /v1/chat/completions/render: what a job from the same body would send to workers."""
        fields = parse_chat_request(body)
        job = await self._chats.prepare(fields, call, _chat_responder)
        request = job.request
        sampling = asdict(request.choices[0].sampling)
        return {
            "request_id": f"chatcmpl-{call.request_id}",
            "model": self._models.find(fields.model, call).model.name,
            "token_ids": request.choices[0].prompt_token_ids,
            "sampling_params": {
                **{name: value for name, value in sampling.items() if name in _RENDERED},
                "n": fields.num_answers,
                "stop": request.stop,
                "include_stop_str_in_output": request.includes_stop,
                "skip_special_tokens": fields.skip_special_tokens is not False,
            },
            "features": None,
            "stream": job.stream,
            "stream_options": fields.stream_options and fields.stream_options.model_dump(),
            "cache_salt": fields.cache_salt,
            "priority": request.priority,
        }

    async def completion(self, body: bytes, call: Call) -> Job:
        """A job from the body of POST /v1/completions."""
        fields = parse_completion_request(body)
        call = fields.within(call)
        service = self._models.find(fields.model, call)
        model = service.model
        max_model_len = service.workers.require_max_model_len()
        most = model.defaults.most_tokens
        wanted = within_cap(fields.max_tokens, "max_tokens", most) or DEFAULT_MAX_TOKENS
        truncation = Truncation.of(fields, max_model_len, wanted)
        if fields.suffix:
            prompts, fields = await infilling(fields, model, max_model_len)
        else:
            prompts = await _prompts(fields, model, max_model_len, truncation)
        max_tokens = [
            resolve_max_tokens(
                len(prompt),
                max_model_len,
                # A prompt is looked at by generating from it.
                1 if fields.max_tokens == 0 else fields.max_tokens,
                DEFAULT_MAX_TOKENS,
                most,
                prompt_field="prompt",
                limit_field="max_tokens",
            )
            for prompt in prompts
        ]
        responder = CompletionResponder(
            call.request_id,
            call.created,
            model.name,
            AnswerOptions.of(fields, model),
            prompts=prompts,
            num_given=fields.n or 1,
        )
        answer: Responder = responder
        if fields.echo:
            answer = await _echoing(responder, fields, prompts, model, truncation)
        return _job(call, service, fields, prompts, max_tokens, answer)


async def _prompts(
    fields: CompletionRequest,
    model: ServedModel,
    max_model_len: int,
    truncation: Truncation | None,
) -> list[list[int]]:
    return [
        await model.encode_prompt(
            prompt,
            "prompt",
            max_model_len,
            add_special_tokens=fields.add_special_tokens is not False,
            truncation=truncation,
        )
        if isinstance(prompt, str)
        else model.check_token_ids(truncation.cut(prompt) if truncation else prompt, "prompt")
        for prompt in fields.prompts
    ]


def _chat_responder(plan: ChatPlan) -> ChatResponder:
    fields, last = plan.fields, plan.fields.messages[-1]
    return ChatResponder(
        plan.call.request_id,
        plan.call.created,
        plan.model.name,
        AnswerOptions.of(fields, plan.model),
        prompt_token_ids=plan.prompt_token_ids,
        prompt_text=plan.prompt if fields.return_prompt_text else None,
        # As in vLLM, only what the answer goes on with.
        echo=last.text if fields.echo and last.role == "assistant" else "",
        must_call=fields.tool_use.mode == "required",
    )


async def _echoing(
    inner: CompletionResponder,
    fields: CompletionRequest,
    prompts: Sequence[list[int]],
    model: ServedModel,
    truncation: Truncation | None,
) -> EchoResponder:
    tokenizer = model.tokenizer
    adds_special = fields.add_special_tokens is not False
    echoed = [
        await echoed_text(given, ids, tokenizer, add_special_tokens=adds_special)
        if isinstance(given, str) and not (truncation and truncation.may_have_cut(ids))
        else await echoed_tokens(ids, tokenizer)
        for given, ids in zip(fields.prompts, prompts, strict=True)
    ]
    return EchoResponder(
        inner,
        echoed,
        fields.n or 1,
        only_prompts=fields.max_tokens == 0,
        num_logprobs=fields.num_logprobs,
        gives_prompt_logprobs=fields.prompt_logprobs is not None,
        tokens=AnswerOptions.of(fields, model).tokens,
    )


def _job(
    call: Call,
    service: ModelService,
    fields: RequestFields,
    prompts: Sequence[Sequence[int]],
    max_tokens: Sequence[int],
    responder: Responder,
) -> Job:
    request = make_request(call, service.model, fields, prompts, max_tokens)
    return Job(service.generator, request, responder, bool(fields.stream), fields.n or 1)


def invoked_by(body: bytes, names: Sequence[str]) -> str:
    """The first of the fields that a body has; of one that has none, or is none, the first of all, which says so."""
    try:
        raw = parse_object(body)
    except InvalidRequestError:
        return names[0]
    return next((name for name in names if raw.get(name) is not None), names[0])
