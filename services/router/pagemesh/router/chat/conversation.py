"""A conversation as the model sees it, and how what it answers is taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pagemesh.errors import InvalidRequestError
from pagemesh.router.chat.answer_reading import AnswerReading
from pagemesh.router.openai.chat_request import ChatRequest
from pagemesh.router.openai.chat_tools import ToolUse
from pagemesh.router.openai.fields import shown
from pagemesh.router.openai.truncation import Truncation
from pagemesh.router.parsers.formats import find_thinking_format
from pagemesh.router.parsers.thinking import CLOSE, OPEN, thoughts_begun
from pagemesh.router.served_model import ServedModel
from pagemesh.sampling.structured.outputs import StructuredOutputs

_PROMPT_END_CHARS: Final = 1024
"""As much of a prompt as templates write for an answer."""


_SIGN: Final = "\ue000{}\ue000"
"""Stands for a message's content, with its index; no text has these characters."""


class Conversation(NamedTuple):
    """A request's, for one model."""

    prompt: str
    """Rendered with a chat template."""

    token_ids: Sequence[int]
    """Of the prompt."""

    reading: AnswerReading


async def open_conversation(
    model: ServedModel,
    fields: ChatRequest,
    form: StructuredOutputs | None,
    max_model_len: int,
    *,
    param: str = "messages",
    truncation: Truncation | None = None,
) -> Conversation:
    """Render and tokenize what the fields say; `form` is what the answer must look like.

    Raises PagemeshErrors that name fields of chat completions, and `param` for what is wrong with all messages.
    """
    use = fields.tool_use
    prompt = await render(model, fields, use)
    begun = await _thoughts_begun(model, fields, use, prompt)
    written = fields.messages[-1].text if fields.continue_final_message else ""
    reading = AnswerReading.of(model, fields, use, form, begun, written)
    token_ids = await model.encode_rendered(
        prompt,
        param,
        max_model_len,
        add_special_tokens=bool(fields.add_special_tokens),
        truncation=truncation,
    )
    return Conversation(prompt, token_ids, reading)


async def render(model: ServedModel, fields: ChatRequest, use: ToolUse) -> str:
    """The prompt that a conversation becomes; InvalidRequestError for one that the template does not take."""
    prompt = await _render(model, fields, use)
    await _check_roles(model, fields, use)
    return prompt


async def _check_roles(model: ServedModel, fields: ChatRequest, use: ToolUse) -> None:
    """Raise InvalidRequestError for a role that is not in the prompt: templates may pass over those they do not know."""
    signs = {
        index: _SIGN.format(index)
        for index, message in enumerate(fields.messages)
        if message.has_other_role
    }
    if not signs:
        return
    messages = [
        message.model_copy(update={"content": signs.get(index, message.content)})
        for index, message in enumerate(fields.messages)
    ]
    try:
        signed = await _render(model, fields.model_copy(update={"messages": messages}), use)
    except InvalidRequestError:
        # The template looks at the content, so it shows the role.
        return
    for index, sign in signs.items():
        if sign not in signed:
            param = f"messages[{index}].role"
            raise InvalidRequestError(
                f"{param} is {shown(fields.messages[index].role)}, which the model's chat template does not show",
                param=param,
            )


async def _render(model: ServedModel, fields: ChatRequest, use: ToolUse) -> str:
    rules, tokenizer = model.chat, model.tokenizer
    if use.mode == "none" and rules.hides_unused_tools:
        use = ToolUse()
    options = fields.render_options(use, as_parts=rules.as_parts, defaults=rules.template_defaults)
    if fields.chat_template is not None:
        rules.require_template_accepted()
        return await model.rendering.with_source(fields.chat_template, tokenizer, fields, options)
    template = rules.templates.choose(
        has_tools=bool(use.shown), has_documents=bool(fields.documents)
    )
    return await model.rendering.with_template(template, fields, options)


async def _thoughts_begun(
    model: ServedModel, fields: ChatRequest, use: ToolUse, prompt: str
) -> bool | None:
    """Whether a prompt ends in thoughts of the answer, or behind them; None for neither."""
    if model.chat.reasoning_parser is None:
        return None
    if fields.continue_final_message:
        last = fields.messages[-1]
        written = last.text.strip()
        # Some templates leave thoughts out, or write them anew.
        head = prompt.rstrip()
        by_template = _mark_at_end(head.removesuffix(written)) if head.endswith(written) else None
        begun = False if last.thoughts else by_template
        return find_thinking_format(model.chat.reasoning_parser).is_left_open(written, begun=begun)
    begun = _mark_at_end(prompt)
    if begun is None and OPEN not in prompt[-_PROMPT_END_CHARS:]:
        return None
    if begun is not None and _mark_at_end(fields.messages[-1].text) is None:
        return begun
    # What the template wrote for the answer has to be told from what others wrote before it.
    try:
        bare = await _render(model, fields.model_copy(update={"add_generation_prompt": False}), use)
    except InvalidRequestError:
        return begun
    return thoughts_begun(prompt.removeprefix(bare)) if prompt.startswith(bare) else begun


def _mark_at_end(text: str) -> bool | None:
    """The same for a text that may have a mark at its very end."""
    end = text.rstrip()
    return thoughts_begun(end) if end.endswith((OPEN, CLOSE)) else None
