"""Renders a conversation into a prompt with the model's own Jinja template.

Templates come with downloaded models and are not trusted: they run in Jinja's immutable sandbox and
see plain JSON values only. Blocks, filters and functions are those that transformers offers, because
templates are written against it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from pagemesh.errors import ConfigError, InvalidRequestError
from pagemesh.tokenizer.folder import read_json


class ChatTemplate:
    """One compiled template; `variables` are special tokens such as `bos_token`."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """Raises ConfigError when `source` is not valid Jinja."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template is not valid Jinja: {error}") from error
        self._variables = dict(variables)

    def render(
        self, messages: Sequence[Mapping[str, Any]], now: datetime.datetime | None = None
    ) -> str:
        """The prompt that asks for the next assistant message.

        `now` is the time that templates may ask for; the present one unless told. A conversation that the
        template refuses (say, a role in the wrong place) raises InvalidRequestError with the template's own words.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                strftime_now=(now or datetime.datetime.now()).strftime,
                **self._variables,
            )
        # A template is a program of strangers: whatever it raises (TypeError, ZeroDivisionError …)
        # means that it cannot render this conversation.
        except Exception as error:
            raise InvalidRequestError(
                f"the model's chat template refused the messages: {error}", param="messages"
            ) from error


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
