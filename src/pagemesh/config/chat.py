"""How conversations become prompts, and answers messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pagemesh.config.environment import read_object

ContentFormat = Literal["auto", "string", "openai"]


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """Chat templates, and what answers are taken apart by."""

    chat_template: str | None = None
    """File with a Jinja chat template instead of the model's own, or the template itself."""

    chat_template_content_format: ContentFormat = "auto"
    """How templates get the content of messages: string, as one text; openai, as a list of parts. auto finds in
    the template whether it goes through parts."""

    trust_request_chat_template: bool = False
    """Accept chat templates in requests. Each is rendered in a process of its own, with limits of time and memory."""

    default_chat_template_kwargs: str = "{}"
    """JSON object with variables that chat templates get where requests have none of that name in their
    chat_template_kwargs, such as {"enable_thinking": false}."""

    enable_auto_tool_choice: bool = True
    """Let the model choose whether it calls tools; without, requests must say which or none."""

    exclude_tools_when_tool_choice_none: bool = False
    """Leave tools out of the prompt where a request says that none is to be called. Calls that the model writes all
    the same are left out of its answer either way."""

    tool_call_parser: str = "auto"
    """How the model writes tool calls, by vLLM's names: hermes, llama3_json, llama4_json, mistral, deepseek_v3 or
    deepseek_v31; auto finds it in the chat template, none leaves calls in the text."""

    reasoning_parser: str = "auto"
    """How the model writes its thoughts, by vLLM's names: qwen3 or deepseek_r1; auto finds it in the chat template,
    none leaves thoughts in the text."""

    def __post_init__(self) -> None:
        self.read_template_defaults()

    def read_template_defaults(self) -> dict[str, Any]:
        """The variables for templates. Raises ConfigError for what is no JSON object."""
        return read_object("--default-chat-template-kwargs", self.default_chat_template_kwargs)
