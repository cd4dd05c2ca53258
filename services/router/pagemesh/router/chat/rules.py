"""What holds for all conversations with one model: who takes its answers apart, and what requests may bring."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pagemesh.config import ChatConfig
from pagemesh.config.router import ContentFormat
from pagemesh.errors import ConfigError, InvalidRequestError, UnsupportedError
from pagemesh.router.parsers.factory import parser_markers
from pagemesh.tokenizer.chat_template import RESERVED, ChatTemplate
from pagemesh.tokenizer.chat_templates import DEFAULT, ChatTemplates, read_chat_template
from pagemesh.tokenizer.tokenizer import Tokenizer

_TOOL_SIGNS = (
    # Qwen 3 Coder writes XML in the same tags.
    ("<tool_call>", "<function=", "hermes"),
    ("[TOOL_CALLS]", None, "mistral"),
    ("<|python_tag|>", None, "llama3_json"),
    ("<｜tool▁call▁begin｜>", "```json", "deepseek_v31"),
    ("<｜tool▁call▁begin｜>", None, "deepseek_v3"),
)
"""Text in a chat template, text that must not be in it, and what they mean; the first that fits."""

_PLAIN_TOOL_PARSER = "llama3_json"
"""For calls that a model must make without knowing how."""

_THOUGHT_SIGN = "</think>"

_JINJA = re.compile(r"[{}\n]")


@dataclass(frozen=True, slots=True)
class ChatRules:
    """What holds for one model."""

    tool_parser: str | None = None
    """Name of the one for tool calls; None when there is none."""

    reasoning_parser: str | None = None
    """Name of the one for thoughts; None when there is none."""

    allows_auto_tools: bool = True
    """Whether the model may choose to call tools."""

    hides_unused_tools: bool = False
    """Whether prompts are without tools that must not be called."""

    templates: ChatTemplates = field(default_factory=lambda: ChatTemplates({}))
    """For requests that bring none: the operator's, or the model's own."""

    accepts_templates: bool = False
    """Whether requests may bring their own."""

    content_format: ContentFormat = "auto"
    """How templates get the content of messages."""

    template_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Variables that templates get where a request says nothing of them."""

    @classmethod
    def of(cls, config: ChatConfig, tokenizer: Tokenizer) -> Self:
        """The rules for a model; ConfigError naming a bad setting."""
        templates = tokenizer.chat_templates
        if config.chat_template is not None:
            templates = _given_templates(config.chat_template, tokenizer)
        templates.load()
        source = templates.source
        tools = _named(config.tool_call_parser, lambda: find_tool_parser(source))
        reasoning = _named(config.reasoning_parser, lambda: find_reasoning_parser(source))
        # Also says whether there are such parsers.
        parser_markers(tools, reasoning)
        return cls(
            tools,
            reasoning,
            config.enable_auto_tool_choice,
            config.exclude_tools_when_tool_choice_none,
            templates,
            config.trust_request_chat_template,
            config.chat_template_content_format,
            _template_defaults(config),
        )

    def require_template_accepted(self) -> None:
        """Raise InvalidRequestError unless requests may bring templates."""
        if not self.accepts_templates:
            raise InvalidRequestError(
                "chat_template is only accepted where the router runs with --trust-request-chat-template",
                param="chat_template",
            )

    @property
    def as_parts(self) -> bool | None:
        """Whether templates get contents as OpenAI's lists of parts, and not as text; None as each wants it."""
        return None if self.content_format == "auto" else self.content_format == "openai"

    def require_tool_parser(self, *, is_auto: bool) -> str:
        """The parser for tool calls; UnsupportedError for calls of the model's choice that nobody knows or allows."""
        if is_auto and not self.allows_auto_tools:
            raise UnsupportedError(
                'tool_choice "auto" needs a router with --enable-auto-tool-choice',
                param="tool_choice",
            )
        if self.tool_parser is None and not is_auto:
            # Plain JSON, which any model can be made to write.
            return _PLAIN_TOOL_PARSER
        if self.tool_parser is None:
            raise UnsupportedError(
                "tools need a router that knows how the model calls them: see its --tool-call-parser",
                param="tools",
            )
        return self.tool_parser


def find_tool_parser(template: str) -> str | None:
    """The parser for a model with this chat template, if it shows how it writes calls."""
    for sign, but_not, name in _TOOL_SIGNS:
        if sign in template and (but_not is None or but_not not in template):
            return name
    return None


def find_reasoning_parser(template: str) -> str | None:
    """The parser for a model with this chat template, if it knows thoughts.

    Of those, it is the one that fits both models that always think and models that say when they do.
    """
    return "qwen3" if _THOUGHT_SIGN in template else None


def _named(setting: str, find: Callable[[], str | None]) -> str | None:
    if setting == "auto":
        return find()
    return None if setting == "none" else setting


def _is_template(text: str) -> bool:
    try:
        return bool(_JINJA.search(text)) and not Path(text).is_file()
    except OSError:
        # No file can have so long a name.
        return True


def _template_defaults(config: ChatConfig) -> dict[str, Any]:
    defaults = config.read_template_defaults()
    for name in defaults:
        if name in RESERVED:
            raise ConfigError(
                f"--default-chat-template-kwargs has {name!r}, which is not for it to set"
            )
    return defaults


def _given_templates(path: str, tokenizer: Tokenizer) -> ChatTemplates:
    try:
        template = (
            ChatTemplate(path, tokenizer.template_variables)
            # As in vLLM, what no file's name has is a template itself.
            if _is_template(path)
            else read_chat_template(Path(path), tokenizer.template_variables)
        )
    except ConfigError as error:
        raise ConfigError(f"--chat-template {error.message}") from error
    return ChatTemplates({DEFAULT: template})
