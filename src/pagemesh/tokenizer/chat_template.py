"""Renders a conversation into a prompt with the model's own Jinja template.

Templates come with downloaded models and are not trusted: they run in Jinja's immutable sandbox, for a limited
time, and see plain JSON values only. Blocks, filters and functions are those that transformers offers, because
templates are written against it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from pagemesh.errors import ConfigError, InvalidRequestError
from pagemesh.tokenizer.bounded_jinja import MAX_SOURCE_CHARS, BoundedEnvironment
from pagemesh.tokenizer.content_format import takes_parts
from pagemesh.tokenizer.folder import read_json

_RESERVED: Final = frozenset({"conversation", "messages", "tools", "chat_template", "tokenize"})
"""What requests have fields of their own for, or nobody may choose."""

_OPEN_END: Final = "\ue000open end\ue000"
"""Put behind the last message to find its end again; no text has these characters."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What a conversation is rendered with, besides its messages."""

    tools: Sequence[Mapping[str, Any]] | None = None
    """Functions as in OpenAI's requests."""

    documents: Sequence[Mapping[str, Any]] | None = None
    """For templates that know of retrieval."""

    add_generation_prompt: bool = True
    """Whether the prompt ends with the beginning of the assistant's next message."""

    continue_final_message: bool = False
    """Whether the prompt ends where the last message's text does, so that the answer goes on there."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    """Further ones that the template may know."""


PLAIN: Final = RenderOptions()
"""A prompt for the next message, without anything special."""


class ChatTemplate:
    """One compiled template; `variables` are special tokens such as `bos_token`."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """Raises ConfigError when `source` is not valid Jinja."""
        if len(source) > MAX_SOURCE_CHARS:
            raise ConfigError(
                f"the chat template has {len(source)} characters, but {MAX_SOURCE_CHARS} are the most"
            )
        environment = BoundedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        self.source: Final = source
        self._environment = environment
        try:
            self._template = environment.from_string(source)
            self.takes_parts: Final = takes_parts(environment.parse(source))
        # Python refuses what is nested too deeply for it in its own ways.
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError) as error:
            raise ConfigError(f"the chat template is not valid Jinja: {error}") from error
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: RenderOptions = PLAIN,
        *,
        now: datetime.datetime | None = None,
    ) -> str:
        """The prompt of a conversation.

        `now` is the time that templates may ask for; the present one unless told. A conversation that the
        template refuses (say, a role in the wrong place) raises InvalidRequestError with the template's own words.
        """
        for name in options.variables:
            if name in _RESERVED:
                raise InvalidRequestError(
                    f"chat_template_kwargs has {name!r}, which is not for it to set",
                    param="chat_template_kwargs",
                )
        given = [dict(message) for message in messages]
        if options.continue_final_message:
            given[-1]["content"] = _with_open_end(given[-1].get("content"))
        variables = {
            **self._variables,
            "strftime_now": (now or datetime.datetime.now()).strftime,
            **options.variables,
            "messages": given,
            "tools": options.tools,
            "documents": options.documents,
            "add_generation_prompt": options.add_generation_prompt,
        }
        try:
            text = self._environment.render(self._template, variables)
        # A template is a program of strangers: whatever it raises (TypeError, ZeroDivisionError …)
        # means that it cannot render this conversation.
        except Exception as error:
            raise InvalidRequestError(
                f"the model's chat template refused the messages: {str(error) or type(error).__name__}",
                param="messages",
            ) from error
        return _open_ended(text) if options.continue_final_message else text


def _with_open_end(content: Any) -> Any:
    if not isinstance(content, list):
        return (content or "") + _OPEN_END
    if not content:
        return [{"type": "text", "text": _OPEN_END}]
    return [*content[:-1], {**content[-1], "text": content[-1]["text"] + _OPEN_END}]


def _open_ended(text: str) -> str:
    """The text up to the end of the last message."""
    text, mark, _ = text.rpartition(_OPEN_END)
    if not mark:
        raise InvalidRequestError(
            "continue_final_message is true, but the model's chat template does not show the last message",
            param="continue_final_message",
        )
    return text.replace(_OPEN_END, "")


def load_chat_template(folder: Path, variables: Mapping[str, str]) -> ChatTemplate | None:
    """The template of a model folder: chat_template.jinja, else the one in tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"), variables)
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    source = read_json(folder, "tokenizer_config.json").get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    return None if source is None else ChatTemplate(source, variables)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`, which marks training text; its body is rendered as is."""

    tags = {"generation"}  # noqa: RUF012 (declared so by the base class)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes characters of HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
