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
    prompt = render(model, fields, use)
    reading = AnswerReading.of(model, fields, use, form, prompt)
    token_ids = await model.encode_rendered(
        prompt,
        param,
        max_model_len,
        add_special_tokens=bool(fields.add_special_tokens),
        truncation=truncation,
    )
    return Conversation(prompt, token_ids, reading)


def render(model: ServedModel, fields: ChatRequest, use: ToolUse) -> str:
    """The prompt that a conversation becomes."""
    template = model.chat.template_for(fields.chat_template, model.tokenizer)
    as_parts = model.chat.gives_parts(template)
    messages = fields.template_messages(as_parts=as_parts)
    return template.render(messages, fields.render_options(use))
