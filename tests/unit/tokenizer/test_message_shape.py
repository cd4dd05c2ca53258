"""What templates get: what was given, in the form that they take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagemesh.tokenizer.chat_template import ChatTemplate
from tests.support.late_imports import transformers

ASSISTANT = "{% for m in messages if m.role == 'assistant' %}"
CALLS = "{% for c in m.tool_calls %}[{{ c.function.name }}:"

# Templates of DeepSeek: R1 looks for a call where the content is none, a later one where there are calls. Both
# add the text of the arguments to others.
WHERE_NONE = (
    ASSISTANT
    + "{% if m['content'] is none %}"
    + CALLS
    + "{{ '' + c.function.arguments }}]{% endfor %}"
    + "{% else %}{{ '<' + m['content'] + '>' }}{% endif %}{% endfor %}"
)
WHERE_CALLS = (
    ASSISTANT
    + "{% if 'tool_calls' in m %}{% if m['content'] is none %}<none>{% else %}{{ '<' + m['content'] + '>' }}"
    + "{% endif %}"
    + CALLS
    + "{{ '' + c.function.arguments }}]{% endfor %}{% endif %}{% endfor %}"
)
PRINTED = (
    ASSISTANT + "{{ m.content }}" + CALLS + "{{ c.function.arguments }}]{% endfor %}{% endfor %}"
)
WRITTEN = (
    ASSISTANT
    + "{% if m.content %}{{ m.content }}{% elif m.content is defined %}{{ m.content is none }}{% endif %}"
    + CALLS
    + "{{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}"
)
ITEMS = (
    ASSISTANT
    + CALLS
    + "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}]{% endfor %}{% endfor %}"
)
EITHER = (
    ASSISTANT
    + CALLS
    + "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}]{% endfor %}{% endfor %}"
)
PARTS = ASSISTANT + "{% for p in m.content %}{{ p.text }};{% endfor %}!{% endfor %}"

BODY = {"city": "Paris"}
TEXT = '{"city":"Paris"}'


def said(arguments: Any = TEXT, **content: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    calls = [{"id": "c1", "type": "function", "function": function}]
    return {"role": "assistant", **content, "tool_calls": calls}


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(demo_model)


def rendered(source: str, message: dict[str, Any]) -> str:
    question = {"role": "user", "content": "Q"}
    return ChatTemplate(source, {}).render([question, message])


@pytest.mark.parametrize(
    ("source", "message", "given"),
    [
        (WHERE_NONE, said(content=""), TEXT),
        (WHERE_CALLS, said(content=""), TEXT),
        (WHERE_CALLS, said(content="x"), TEXT),
        (WRITTEN, said(content=""), BODY),
        (WRITTEN, said(), BODY),
        (ITEMS, said(content=None), BODY),
        (PRINTED, said(content=""), TEXT),
        (PRINTED, said(content=None), TEXT),
    ],
    ids=range(8),
)
def test_prompts_are_those_of_transformers(
    reference: Any, source: str, message: dict[str, Any], given: Any
) -> None:
    """Which has to be given the arguments in the form that the template needs; here they are text."""
    content = {"content": message["content"]} if "content" in message else {}
    conversation = [{"role": "user", "content": "Q"}, said(given, **content)]
    expected = reference.apply_chat_template(conversation, chat_template=source, tokenize=False)
    assert rendered(source, message) == expected


@pytest.mark.parametrize(
    ("source", "message", "expected"),
    [
        (WHERE_NONE, said(content=None), f"[weather:{TEXT}]"),
        (WHERE_CALLS, said(content=None), f"<none>[weather:{TEXT}]"),
        (WRITTEN, {"role": "assistant", "content": None}, "True"),
        (PRINTED, {"role": "assistant", "content": None}, ""),
        (EITHER, said(content=None), '[weather:{"city": "Paris"}]'),
        # Said otherwise, where the template could not do with it.
        (WHERE_NONE, said(), f"[weather:{TEXT}]"),
        (WHERE_CALLS, said(), f"<none>[weather:{TEXT}]"),
        (PARTS, {"role": "assistant", "content": None}, "!"),
        (PARTS, {"role": "assistant", "content": "a"}, "a;!"),
    ],
    ids=range(9),
)
def test_templates_get_what_they_can_do_with(
    source: str, message: dict[str, Any], expected: str
) -> None:
    assert rendered(source, message) == expected


@pytest.mark.parametrize(
    ("given", "as_object", "as_text"),
    [
        ({"a": "é"}, '{"a": "é"}', '{"a": "é"}'),
        ("", "{}", "{}"),
        (None, "{}", "{}"),
        ("null", "{}", "{}"),
        (" \n", "{}", "{}"),
        # What is no object, as a call of our own that was cut off, goes back as it came.
        ('{"city": "', '"{\\"city\\": \\""', '{"city": "'),
        ("[1]", '"[1]"', "[1]"),
        ("5", '"5"', "5"),
        ("[" * 100_000, json.dumps("[" * 100_000), "[" * 100_000),
        ("1" * 5_000, json.dumps("1" * 5_000), "1" * 5_000),
        # Halves of characters, which UTF-8 cannot hold; two of them are one.
        ('{"city": "\\ud83d"}', '{"city": "\ufffd"}', '{"city": "\\ud83d"}'),
        ('{"\\ud83d\\ude00": ["\\udead x"]}', '{"\U0001f600": ["\ufffd x"]}', None),
    ],
    ids=range(12),
)
def test_arguments_of_any_kind_are_shown(given: Any, as_object: str, as_text: str | None) -> None:
    message = said(given, content="")
    assert rendered(WRITTEN, message) == f"False[weather:{as_object}]"
    text = given if as_text is None else as_text
    assert rendered(WHERE_CALLS, message) == f"<>[weather:{text}]"
