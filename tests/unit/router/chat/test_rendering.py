"""Conversations become prompts, by whosever template, while the event loop goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagemesh.config import ChatConfig
from pagemesh.errors import InvalidRequestError
from pagemesh.router.chat.conversation import render
from pagemesh.router.chat.rules import ChatRules
from pagemesh.router.openai.chat_request import ChatRequest, read_chat_request
from pagemesh.router.served_model import ServedModel
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.chat_template import ChatTemplate
from pagemesh.tokenizer.chat_templates import ChatTemplates
from pagemesh.tokenizer.model_defaults import GenerationDefaults, Matryoshka

ENDLESS = """{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"""
HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "add"}}]


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


def make_model(tokenizer: Tokenizer, rules: ChatRules) -> ServedModel:
    return ServedModel("m", tokenizer, GenerationDefaults(), 0, Matryoshka(), rules)


def asking(**fields: Any) -> ChatRequest:
    return read_chat_request({"messages": HI, **fields})


async def num_turns_during(work: asyncio.Task[Any]) -> int:
    """How often others had their turn until it was over."""
    num_turns = 0
    while not work.done():
        await asyncio.sleep(0.01)
        num_turns += 1
    return num_turns


@pytest.mark.parametrize(
    ("setting", "source", "expected"),
    [
        ("auto", "{% for p in messages[0].content %}{{ p.text }};{% endfor %}", "a;b;"),
        ("auto", "{{ messages[0].content }}", "a\nb"),
        ("string", "{% for p in messages[0].content %}{{ p }};{% endfor %}", "a;\n;b;"),
        ("openai", "{{ messages[0].content | length }}", "2"),
    ],
)
async def test_templates_get_contents_as_they_take_them(
    tokenizer: Tokenizer, tmp_path: Path, setting: Any, source: str, expected: str
) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(source)
    config = ChatConfig(chat_template=str(path), chat_template_content_format=setting)
    rules = ChatRules.of(config, tokenizer)
    parts = [{"type": "text", "text": text} for text in "ab"]
    fields = read_chat_request({"messages": [{"role": "user", "content": parts}]})
    model = make_model(tokenizer, rules)
    assert await render(model, fields, fields.tool_use) == expected
    brought = make_model(tokenizer, replace(rules, accepts_templates=True))
    fields.chat_template = source
    assert await render(brought, fields, fields.tool_use) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "default"),
        ({"tools": TOOLS}, "tool_use"),
        ({"documents": [{"text": "d"}]}, "rag"),
        ({"tools": TOOLS, "documents": [{"text": "d"}]}, "tool_use"),
    ],
    ids=str,
)
async def test_the_template_is_that_for_what_the_request_brings(
    tokenizer: Tokenizer, fields: dict[str, Any], expected: str
) -> None:
    named = {name: ChatTemplate(name, {}) for name in ("default", "tool_use", "rag")}
    model = make_model(tokenizer, ChatRules("hermes", templates=ChatTemplates(named)))
    request = asking(**fields)
    assert await render(model, request, request.tool_use) == expected


@pytest.mark.parametrize(
    ("hides", "choice", "shown"),
    [
        (False, "none", "1 tool"),
        (True, "none", "no tool"),
        (True, "auto", "1 tool"),
    ],
)
async def test_tools_that_must_not_be_called_may_be_left_out(
    tokenizer: Tokenizer, tmp_path: Path, hides: bool, choice: str, shown: str
) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ tools | length if tools else 'no' }} tool")
    config = ChatConfig(chat_template=str(path), exclude_tools_when_tool_choice_none=hides)
    model = make_model(tokenizer, ChatRules.of(config, tokenizer))
    fields = asking(tools=TOOLS, tool_choice=choice)
    assert await render(model, fields, fields.tool_use) == shown


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}", "<critic>no"),
        ("{% for m in messages %}{{ m | tojson }}{% endfor %}", '"role": "critic"'),
        (
            "{% for m in messages if m.role == 'critic' %}{{ m.name }}{{ m.content }}{% endfor %}",
            "ann no ",
        ),
    ],
)
async def test_roles_beyond_openais_are_shown_where_the_template_takes_them(
    tokenizer: Tokenizer, source: str, expected: str
) -> None:
    assert expected in await render_critic(tokenizer, source)


@pytest.mark.parametrize(
    ("source", "message", "param"),
    [
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}no",
            'messages\\[1\\].role is "critic", which the model.s chat template does not show',
            "messages[1].role",
        ),
        (
            "{{ raise_exception('no critics') if messages[1].role == 'critic' }}",
            "no critics",
            "messages",
        ),
    ],
)
async def test_roles_that_the_template_does_not_take_are_refused(
    tokenizer: Tokenizer, source: str, message: str, param: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as error:
        await render_critic(tokenizer, source)
    assert error.value.param == param


async def render_critic(tokenizer: Tokenizer, source: str) -> str:
    templates = ChatTemplates({"default": ChatTemplate(source, {})})
    model = make_model(tokenizer, ChatRules(templates=templates))
    critic = {"role": "critic", "content": " no ", "name": "ann"}
    fields = read_chat_request({"messages": [*HI, critic]})
    return await render(model, fields, fields.tool_use)


async def test_a_template_of_a_request_is_refused_by_name(tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer, ChatRules(accepts_templates=True))
    fields = asking(chat_template="{% for %}")
    with pytest.raises(InvalidRequestError, match="not valid Jinja") as error:
        await render(model, fields, fields.tool_use)
    assert error.value.param == "chat_template"


async def test_an_endless_template_of_a_request_stops_nobody(tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer, ChatRules(accepts_templates=True))
    fields = asking(chat_template=ENDLESS)
    work = asyncio.create_task(render(model, fields, fields.tool_use))
    assert await num_turns_during(work) > 3
    with pytest.raises(InvalidRequestError, match="takes longer than 1 s"):
        await work


async def test_a_template_that_was_slow_once_is_rendered_beside_the_event_loop(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """The loop over a number that requests may set, as templates of models may have one."""
    path = tmp_path / "t.jinja"
    path.write_text("{% for a in range(n) %}{% for b in range(n) %}{% endfor %}{% endfor %}.")
    model = make_model(tokenizer, ChatRules.of(ChatConfig(chat_template=str(path)), tokenizer))
    quick = asking(chat_template_kwargs={"n": 1})
    slow = asking(chat_template_kwargs={"n": 100_000})
    assert await render(model, quick, quick.tool_use) == "."
    for is_first in (True, False):
        work = asyncio.create_task(render(model, slow, slow.tool_use))
        num_turns = await num_turns_during(work)
        with pytest.raises(InvalidRequestError, match="takes longer than 1 s"):
            await work
        assert (num_turns <= 3) == is_first
    assert await render(model, quick, quick.tool_use) == "."
