"""Renders a conversation into a prompt with the model's own Jinja template, in a sandbox with an end.

Templates come with downloaded models and are not trusted: they run in Jinja's immutable sandbox, for a limited
time, may write so much, and see plain JSON values only. Blocks, filters and functions are those that transformers
offers, because templates are written against it.

Time is looked at in loops and macros, without which no template runs for long, but for single operations on
huge values. Those come from whoever writes the template; what a conversation alone can do is bounded here.
"""

from __future__ import annotations

import datetime
import functools
import json
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from pagemesh.errors import ConfigError, InvalidRequestError
from pagemesh.tokenizer.message_shape import Message, MessageShape, is_plain, takes_parts

RESERVED: Final = frozenset({"conversation", "messages", "tools", "chat_template", "tokenize"})
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

    as_parts: bool | None = None
    """Whether contents are given in parts, and not as text; None as the template wants it."""


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
        self.source: Final = source
        try:
            self._template, self.takes_parts = _compiled(source)
        # Python refuses what is nested too deeply for it in its own ways.
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError) as error:
            raise ConfigError(f"the chat template is not valid Jinja: {error}") from error
        self._variables = dict(variables)

    @functools.cached_property
    def shape(self) -> MessageShape:
        """The form in which it wants messages. Takes a dozen renderings, the first time."""
        return MessageShape.of(self._try, as_parts=self.takes_parts)

    def render(
        self,
        messages: Sequence[Message],
        options: RenderOptions = PLAIN,
        *,
        now: datetime.datetime | None = None,
    ) -> str:
        """The prompt of a conversation, given as clients of OpenAI's API have it.

        `now` is the time that templates may ask for; the present one unless told. A conversation that the
        template refuses (say, a role in the wrong place) raises InvalidRequestError with the template's own words.
        """
        for name in options.variables:
            if name in RESERVED:
                raise InvalidRequestError(
                    f"chat_template_kwargs has {name!r}, which is not for it to set",
                    param="chat_template_kwargs",
                )
        in_parts = self.takes_parts if options.as_parts is None else options.as_parts
        shape = MessageShape() if all(map(is_plain, messages)) else self.shape
        given = [shape.shaped(message, as_parts=in_parts) for message in messages]
        if options.continue_final_message:
            content = given[-1].get("content") or ([] if in_parts else "")
            given[-1]["content"] = _with_open_end(content)
        text = self._render(given, options, now or datetime.datetime.now())
        return _open_ended(text) if options.continue_final_message else text

    def _try(self, messages: Sequence[Message]) -> str | None:
        """The prompt of messages in their final form; None where the template refuses them."""
        try:
            return self._render(messages, PLAIN, datetime.datetime.now())
        except InvalidRequestError:
            return None

    def _render(
        self, messages: Sequence[Message], options: RenderOptions, now: datetime.datetime
    ) -> str:
        variables = {
            **self._variables,
            "strftime_now": now.strftime,
            **options.variables,
            "messages": messages,
            "tools": options.tools,
            "documents": options.documents,
            "add_generation_prompt": options.add_generation_prompt,
        }
        try:
            return _ENVIRONMENT.render(self._template, variables)
        # A template is a program of strangers: whatever it raises (TypeError, ZeroDivisionError …)
        # means that it cannot render this conversation.
        except Exception as error:
            raise InvalidRequestError(
                f"the model's chat template refused the messages: {str(error) or type(error).__name__}",
                param="messages",
            ) from error


def _with_open_end(content: Any) -> Any:
    if not isinstance(content, list):
        return content + _OPEN_END
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


_MAX_REPEATED: Final = 1_000_000
"""Items or characters that `*` may make, and bits of a number."""

_deadline: ContextVar[float] = ContextVar("rendering_deadline")


class TemplateLimitError(Exception):
    """A template takes too long, or writes too much."""


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Where templates are compiled and rendered, by `render`."""

    intercepted_binops = frozenset({"*", "**"})

    def tick(self) -> None:
        """Stands at the beginning of every loop's and macro's body."""
        if time.monotonic() > _deadline.get():
            raise TemplateLimitError(f"it takes longer than {MAX_SECONDS:g} s")

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Products and powers, unless what comes of them would be huge."""
        if operator == "*":
            size = _length(left) * abs(right) if isinstance(right, int) else 0
            size = max(size, _length(right) * abs(left) if isinstance(left, int) else 0)
        else:
            is_whole = isinstance(left, int) and isinstance(right, int)
            size = left.bit_length() * abs(right) if is_whole else 0
        if size > _MAX_REPEATED:
            raise TemplateLimitError(f"{operator} would make something of size {size}")
        return super().call_binop(context, operator, left, right)

    def render(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """The text; raises TemplateLimitError, and whatever the template raises."""
        token = _deadline.set(time.monotonic() + MAX_SECONDS)
        try:
            pieces, num_chars = [], 0
            for piece in template.generate(variables):
                pieces.append(piece)
                num_chars += len(piece)
                if num_chars > MAX_RENDERED_CHARS:
                    raise TemplateLimitError(f"it writes more than {MAX_RENDERED_CHARS} characters")
            return "".join(pieces)
        finally:
            _deadline.reset(token)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        repeated = (jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock)
        for node in tree.find_all(repeated):
            assert isinstance(node, repeated)
            # By the environment, and no name that a template or a request could give to something else.
            tick = jinja2.nodes.EnvironmentAttribute("tick")
            call = jinja2.nodes.Call(tick, [], [], None, None)
            node.body.insert(0, jinja2.nodes.ExprStmt(call).set_lineno(node.lineno))
        return tree


def _length(value: object) -> int:
    """Of texts and lists, and bits of numbers."""
    if isinstance(value, int):
        return value.bit_length() // 8
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


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


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


_ENVIRONMENT: Final = _environment()


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> tuple[jinja2.Template, bool]:
    """The program, and whether it takes contents in parts. Models of one family often bring the same template."""
    tree = _ENVIRONMENT.parse(source)
    in_parts = takes_parts(tree)
    return _ENVIRONMENT.from_string(tree), in_parts


MAX_SOURCE_CHARS: Final = 128 * 1024
"""Of a template, or of all that a model has; compiling takes up to 4 KiB for each, and the longest of known models has
some 30,000."""

MAX_RENDERED_CHARS: Final = 40 * 1024 * 1024
"""Of a prompt: more than the largest body that the gateway takes."""

MAX_SECONDS: Final = 1.0
"""For one rendering; usual ones take less than a thousandth of it."""
