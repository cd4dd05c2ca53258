"""The form in which a chat template wants messages, where templates differ: found out by trying.

A content that is absent, null or empty stays that, unless the template cannot do with it: some look for calls
where the content is null, others write a null out. (transformers has left nulls out since its version 5, and some
of its older templates fail for it.) A call's arguments are an object, as in vLLM, unless the template needs text.

Whether a template takes a message's content apart itself is found in its text, as vLLM does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jinja2.nodes

Message = Mapping[str, Any]

TryRender = Callable[[Sequence[Message]], str | None]
"""Renders a conversation whose messages are in their final form; None where the template refuses it."""

_CITY: Final = "Köln"
_ARGUMENTS: Final = {"city": _CITY, "days": 2, "exact": True}
_ARGUMENTS_TEXT: Final = json.dumps(_ARGUMENTS, ensure_ascii=False)
_CALL_ID: Final = "abc123DEF"
"""Mistral's templates take only ids of nine letters and digits."""


@dataclass(frozen=True, slots=True)
class MessageShape:
    """What one template wants."""

    has_text_arguments: bool = False
    """Whether a call's arguments are JSON text, and not an object."""

    takes_absent: frozenset[bool] = frozenset()
    """Whether there may be no content: in messages without calls (False), and with some (True)."""

    takes_null: frozenset[bool] = frozenset()
    """The same for a content that is null."""

    @classmethod
    def of(cls, render: TryRender, *, as_parts: bool) -> MessageShape:
        """That of a template, which gets contents in parts or as text."""

        def tried(calls: Message) -> list[str | None]:
            contents: Sequence[Message] = ({"content": None}, {"content": empty}, {})
            return [render(_conversation(content, calls, in_form)) for content in contents]

        in_form, empty = (_parts, []) if as_parts else (_text, "")
        without, as_objects, as_texts = map(tried, ({}, _call(_ARGUMENTS), _call(_ARGUMENTS_TEXT)))
        has_text = not any(map(_shows_object, as_objects)) and any(map(_shows_text, as_texts))
        absent, null = set(), set()
        for has_calls, (with_null, blank, bare) in (
            (False, without),
            (True, as_texts if has_text else as_objects),
        ):
            if _is_as_good(bare, blank):
                absent.add(has_calls)
            if _is_as_good(with_null, blank):
                null.add(has_calls)
        return cls(has_text, frozenset(absent), frozenset(null))

    def shaped(self, message: Message, *, as_parts: bool) -> dict[str, Any]:
        """A message, given as clients have it, with its content in parts or as text."""
        found = dict(message)
        calls = message.get("tool_calls")
        if calls:
            found["tool_calls"] = [self._shaped_call(call) for call in calls]
        content = message.get("content")
        if content is not None:
            found["content"] = _parts(content) if as_parts else _text(content)
            return found
        takes_absent, takes_null = (bool(calls) in x for x in (self.takes_absent, self.takes_null))
        if takes_null and ("content" in message or not takes_absent):
            found["content"] = None
        elif takes_absent:
            found.pop("content", None)
        else:
            found["content"] = [] if as_parts else ""
        return found

    def _shaped_call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            return call
        write = _arguments_text if self.has_text_arguments else _arguments_object
        return {**call, "function": {**function, "arguments": write(function.get("arguments"))}}


def is_plain(message: Message) -> bool:
    """Whether all templates want it in the same form, but for the parts of its content."""
    return message.get("content") is not None and not message.get("tool_calls")


def read_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None when it is none.

    Halves of characters, which escapes can write and UTF-8 cannot hold, become U+FFFD.
    """
    try:
        value = json.loads(text)
        if "\\u" in text:
            whole = json.dumps(value, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
            value = json.loads(whole.decode("utf-16-le", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _conversation(content: Message, calls: Message, in_form: Callable[[str], Any]) -> list[Message]:
    """One with a message of the assistant's that has this content and these calls."""
    question = {"role": "user", "content": in_form("question")}
    answer = {"role": "assistant", **content, **calls}
    result = {
        "role": "tool",
        "tool_call_id": _CALL_ID,
        "name": "weather",
        "content": in_form("result"),
    }
    return [question, answer, result if calls else question]


def _call(arguments: object) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"tool_calls": [{"id": _CALL_ID, "type": "function", "function": function}]}


def _shows_object(text: str | None) -> bool:
    """Whether the object's values are there, and not as Python writes them."""
    return text is not None and _CITY in text and str(_ARGUMENTS) not in text


def _shows_text(text: str | None) -> bool:
    return text is not None and _ARGUMENTS_TEXT in text


def _is_as_good(text: str | None, blank: str | None) -> bool:
    """Whether a conversation is shown, and no null written out that an empty content would not be."""
    if text is None or blank is None:
        return text is not None
    return all(text.count(null) <= blank.count(null) for null in ("None", "null"))


def _text(content: Any) -> Any:
    """Parts that are text are joined by line breaks, as in vLLM."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content if isinstance(part, Mapping)]
    known = [text for text in texts if isinstance(text, str)]
    return "\n".join(known) if len(known) == len(content) else content


def _parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _arguments_object(given: Any) -> Any:
    """What is no object, as that of a call which was cut off, stays the text that it is."""
    if given is None:
        return {}
    if not isinstance(given, str):
        return given
    if given.strip() in ("", "null"):
        return {}
    found = read_object(given)
    return given if found is None else found


def _arguments_text(given: Any) -> str:
    if not isinstance(given, str):
        return json.dumps(given or {}, ensure_ascii=False)
    return "{}" if given.strip() in ("", "null") else given


def takes_parts(template: jinja2.nodes.Template) -> bool:
    """Whether it goes through the parts of a content, `{% for part in message.content %}` or the like.

    Such a template wants a list of `{"type": "text", "text": …}`; any other one wants text.
    """
    contents = {
        assign.target.name
        for assign in template.find_all(jinja2.nodes.Assign)
        if isinstance(assign.target, jinja2.nodes.Name) and _is_content(assign.node, frozenset())
    }
    return any(
        _is_content(loop.iter, frozenset(contents)) for loop in template.find_all(jinja2.nodes.For)
    )


def _is_content(node: jinja2.nodes.Node, names: frozenset[str]) -> bool:
    """Whether it is some message's content, or a variable of one of these names."""
    # `content | selectattr(…)` and `content[1:]` are of the content, too.
    while isinstance(node, jinja2.nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Slice):
        node = node.node
    match node:
        case jinja2.nodes.Name():
            return node.name in names
        case jinja2.nodes.Getattr():
            return node.attr == "content"
        case jinja2.nodes.Getitem():
            return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == "content"
    return False
