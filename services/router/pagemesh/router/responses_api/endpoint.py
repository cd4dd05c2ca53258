"""POST /v1/responses: from a body to a job."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from pagemesh.errors import ContextLengthError
from pagemesh.router.call import Call
from pagemesh.router.chat.preparer import ChatPlan, ChatPreparer
from pagemesh.router.chat.renaming import in_words_of, renaming
from pagemesh.router.models import Models
from pagemesh.router.openai.chat_request import read_chat_request
from pagemesh.router.openai.job import Job
from pagemesh.router.openai.logprobs import TokenNames
from pagemesh.router.responses_api.chat_fields import chat_fields
from pagemesh.router.responses_api.items import Items
from pagemesh.router.responses_api.request import ResponsesRequest, parse_responses_request
from pagemesh.router.responses_api.response import ResponsesWriter
from pagemesh.router.responses_api.response_object import ResponseObject
from pagemesh.router.responses_api.tools import Tool, read_tools
from pagemesh.router.responses_api.truncation import beginnings, without_beginning

_NAMES: Final = renaming(
    (r"messages.*", "input"),
    (r"max_completion_tokens$", "max_output_tokens"),
    (r"response_format.*", "text.format"),
    (r"reasoning_effort$", "reasoning.effort"),
    (r"verbosity$", "text.verbosity"),
    (r"(tools\[\d+\]|tool_choice)\.function", r"\1"),
)


class ResponsesEndpoint:
    """Prepares jobs for the models of a mesh."""

    def __init__(self, models: Models) -> None:
        self._chats = ChatPreparer(models)

    async def prepare(self, body: bytes, call: Call) -> Job:
        """A job from a body; raises PagemeshErrors."""
        fields, raw = parse_responses_request(body)
        tools = read_tools(fields.tools or ())
        chat = chat_fields(fields, raw, tools)
        with in_words_of(_NAMES):
            try:
                return await self._prepare(chat, call, fields, tools)
            except ContextLengthError:
                if fields.truncation != "auto":
                    raise
                return await self._truncate(chat, call, fields, tools)

    async def _truncate(
        self,
        chat: dict[str, Any],
        call: Call,
        fields: ResponsesRequest,
        tools: list[Tool],
    ) -> Job:
        """The job of the longest end of the conversation that fits; ContextLengthError when none does."""
        places = beginnings(chat["messages"])
        if not places:
            return await self._prepare(chat, call, fields, tools)
        low, high = 0, len(places) - 1
        # The shortest has to fit; what has more messages has more tokens.
        best = await self._prepare(without_beginning(chat, places[high]), call, fields, tools)
        while low < high:
            middle = (low + high) // 2
            try:
                shortened = without_beginning(chat, places[middle])
                best = await self._prepare(shortened, call, fields, tools)
            except ContextLengthError:
                low = middle + 1
            else:
                high = middle
        return best

    async def _prepare(
        self,
        chat: dict[str, Any],
        call: Call,
        fields: ResponsesRequest,
        tools: list[Tool],
    ) -> Job:
        new_writer = partial(_new_writer, fields, tools)
        return await self._chats.prepare(read_chat_request(chat), call, new_writer)


def _new_writer(fields: ResponsesRequest, tools: list[Tool], plan: ChatPlan) -> ResponsesWriter:
    asked, defaults = plan.fields, plan.model.defaults
    response = ResponseObject(
        plan.call.request_id,
        plan.call.created,
        plan.model.name,
        fields,
        tools,
        temperature=defaults.temperature if asked.temperature is None else asked.temperature,
        top_p=defaults.top_p if asked.top_p is None else asked.top_p,
    )
    names = TokenNames(plan.model.tokenizer.token_bytes)
    items = Items(plan.call.request_id, names, tools, has_logprobs=fields.has_logprobs)
    return ResponsesWriter(response, items)
