"""POST /v1/messages and /v1/messages/count_tokens: from a body to a job, or to a count."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from pagemesh.router.anthropic.request import PromptFields, parse_messages_request, parse_prompt
from pagemesh.router.anthropic.response import MessageWriter
from pagemesh.router.call import Call
from pagemesh.router.chat.extra_fields import extra_fields
from pagemesh.router.chat.preparer import ChatPlan, ChatPreparer
from pagemesh.router.chat.renaming import in_words_of, renaming
from pagemesh.router.models import Models
from pagemesh.router.openai.chat_request import read_chat_request
from pagemesh.router.openai.job import Job

_NAMES: Final = renaming(
    (r"messages.*|continue_final_message|add_generation_prompt", "messages"),
    (r"max_completion_tokens$", "max_tokens"),
    (r"stop(?!\w)", "stop_sequences"),
    (r"response_format.*", "output_config.format"),
    (r"reasoning_effort$", "output_config.effort"),
    (r"chat_template_kwargs.*", "thinking"),
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"(tools\[\d+\]|tool_choice)\.function", r"\1"),
    (r"parallel_tool_calls$", "tool_choice.disable_parallel_tool_use"),
)


class MessagesEndpoint:
    """Prepares jobs for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._chats = ChatPreparer(models)

    async def prepare(self, body: bytes, call: Call) -> Job:
        """A job from a body; raises PagemeshErrors."""
        fields, raw = parse_messages_request(body)
        return await self._prepare(fields, extra_fields(raw), call)

    async def count_tokens(self, body: bytes, call: Call) -> dict[str, Any]:
        """How many tokens the prompt of a body has; raises PagemeshErrors, also when it is too long."""
        job = await self._prepare(parse_prompt(body), {}, call)
        return {"input_tokens": len(job.request.choices[0].prompt_token_ids)}

    async def _prepare(self, fields: PromptFields, extra: dict[str, Any], call: Call) -> Job:
        with in_words_of(_NAMES):
            chat = read_chat_request(_merged(extra, fields.for_chat()))
            return await self._chats.prepare(chat, call, partial(_new_writer, fields))


def _merged(extra: dict[str, Any], chat: dict[str, Any]) -> dict[str, Any]:
    """Both, where the API's own fields win."""
    name = "chat_template_kwargs"
    given, own = extra.get(name), chat.get(name)
    both = {**given, **own} if isinstance(given, dict) and own else own or given
    return {**extra, **chat, name: both}


def _new_writer(fields: PromptFields, plan: ChatPlan) -> MessageWriter:
    thinking = fields.thinking
    return MessageWriter(
        plan.call.request_id,
        plan.model.name,
        len(plan.prompt_token_ids),
        shows_thinking=thinking is None or thinking.display != "omitted",
    )
