"""A conversation as the model sees it, and how what it answers is taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagemesh.router.chat.answer_reading import AnswerReading
from pagemesh.router.openai.chat_request import ChatRequest
from pagemesh.router.openai.chat_tools import ToolUse
from pagemesh.router.openai.truncation import Truncation
from pagemesh.router.served_model import ServedModel
from pagemesh.sampling.structured.outputs import StructuredOutputs


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
    reading = AnswerReading.of(model, fields, use, form, prompt)
    token_ids = await model.encode_rendered(
        prompt,
        param,
        max_model_len,
        add_special_tokens=bool(fields.add_special_tokens),
        truncation=truncation,
    )
    return Conversation(prompt, token_ids, reading)


async def render(model: ServedModel, fields: ChatRequest, use: ToolUse) -> str:
    """The prompt that a conversation becomes."""
    rules, tokenizer = model.chat, model.tokenizer
    if fields.chat_template is not None:
        rules.require_template_accepted()
        return await model.rendering.with_source(
            fields.chat_template, tokenizer, fields, use, rules.as_parts
        )
    template = rules.templates.choose(
        has_tools=bool(use.shown), has_documents=bool(fields.documents)
    )
    return await model.rendering.with_template(template, fields, use, rules.as_parts)
