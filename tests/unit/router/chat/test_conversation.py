"""What a prompt says of the answer that follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagemesh.router.chat.conversation import open_conversation
from pagemesh.router.chat.rules import ChatRules
from pagemesh.router.generation.request import ChoiceDelta, StopReason
from pagemesh.router.openai.chat_request import read_chat_request
from pagemesh.router.served_model import ServedModel
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.chat_template import ChatTemplate
from pagemesh.tokenizer.chat_templates import ChatTemplates
from pagemesh.tokenizer.model_defaults import GenerationDefaults, Matryoshka

# As ChatML; one that always opens thoughts, or writes some of their text; that of a model whose thoughts are left
# out when they are over; and one that closes thoughts for every answer.
LINES = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
PLAIN = LINES + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
OPENS = LINES + "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
SPEAKS = LINES + "{% if add_generation_prompt %}<|assistant|><think>\nOkay, {% endif %}"
WITHOUT_MARKS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
DROPS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
CLOSES = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|end|>{% endfor %}"
)

ASKED = {"role": "user", "content": "3 + 9?"}


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


async def answer(
    tokenizer: Tokenizer,
    template: str,
    parser: str,
    text: str,
    *,
    said: dict[str, Any] | None = None,
    asked: str = "3 + 9?",
    **fields: Any,
) -> tuple[str, str]:
    """Thoughts and content of an answer with this text; it goes on with what was `said`."""
    rules = ChatRules(
        reasoning_parser=parser, templates=ChatTemplates({"default": ChatTemplate(template, {})})
    )
    model = ServedModel("m", tokenizer, GenerationDefaults(), 0, Matryoshka(), rules)
    messages: list[Any] = [{**ASKED, "content": asked}]
    if said is not None:
        messages.append({"role": "assistant", **said})
        fields["continue_final_message"] = True
    request = read_chat_request({"messages": messages, **fields})
    conversation = await open_conversation(model, request, None, 4096)
    reader = conversation.reading.new_reader()
    delta = reader.push(ChoiceDelta(0, text, (1,), StopReason.STOP))
    return delta.reasoning, delta.content


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
HALF, REST_OF_CALL = CALL[:46], CALL[46:]


@pytest.mark.parametrize(
    ("written", "text", "content", "calls"),
    [
        (HALF, REST_OF_CALL, "", ["add"]),
        (CALL[:40], CALL[40:], "", ["add"]),
        (f"<think>{CALL}</think>\n{HALF}", REST_OF_CALL, "", ["add"]),
        (f"<think>{HALF}</think>\n{HALF}", REST_OF_CALL, "", ["add"]),
        ("\n", f"<think>so</think>{CALL}", "", ["add"]),
        ("<tool_", CALL.removeprefix("<tool_"), "", ["add"]),
        # What is over is told nobody, and a new call is the first.
        (f"{CALL}\n{HALF}", f"{REST_OF_CALL}\n{CALL}", "", ["add", "add"]),
        (CALL, f"\n{CALL}", "", ["add"]),
        (CALL, "\nSo", "\nSo", []),
        ("Well", ", no", ", no", []),
        ("<think>so", f"</think>{CALL}", "", ["add"]),
    ],
    ids=range(11),
)
@pytest.mark.parametrize("size", [1, 1000])
async def test_a_call_that_was_begun_is_told_whole(
    tokenizer: Tokenizer, written: str, text: str, content: str, calls: list[str], size: int
) -> None:
    templates = ChatTemplates({"default": ChatTemplate(PLAIN, {})})
    rules = ChatRules("hermes", "qwen3", templates=templates)
    model = ServedModel("m", tokenizer, GenerationDefaults(), 0, Matryoshka(), rules)
    said = {"role": "assistant", "content": written}
    tools = [{"type": "function", "function": {"name": "add"}}]
    body = {"messages": [ASKED, said], "continue_final_message": True, "tools": tools}
    reader = (
        await open_conversation(model, read_chat_request(body), None, 4096)
    ).reading.new_reader()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    found = [reader.push(ChoiceDelta(0, piece, (1,))) for piece in pieces]
    found.append(reader.push(ChoiceDelta(0, "", (2,), StopReason.STOP)))
    assert "".join(delta.content for delta in found) == content
    told = [call for delta in found for call in delta.tool_calls]
    assert [call.name for call in told if call.name] == calls
    for index in range(len(calls)):
        pieces = [call.arguments for call in told if call.index == index]
        assert "".join(pieces) == '{"a": 1}'
    assert found[-1].stop_reason is (StopReason.TOOL_CALLS if calls else StopReason.STOP)


async def test_templates_get_the_operators_variables_where_a_request_has_none(
    tokenizer: Tokenizer,
) -> None:
    template = ChatTemplate("{{ x }} {{ y }} {{ enable_thinking }}", {})
    rules = ChatRules(
        reasoning_parser="qwen3",
        templates=ChatTemplates({"default": template}),
        template_defaults={"x": 1, "y": 2, "enable_thinking": True},
    )
    model = ServedModel("m", tokenizer, GenerationDefaults(), 0, Matryoshka(), rules)
    form = StructuredOutputs.of(choice=["yes"])
    for fields, prompt, thinks in (
        ({"chat_template_kwargs": {"y": 3}}, "1 3 True", True),
        ({"reasoning_effort": "none"}, "1 2 False", False),
    ):
        request = read_chat_request({"messages": [ASKED], **fields})
        conversation = await open_conversation(model, request, form, 4096)
        assert conversation.prompt == prompt
        found = conversation.reading.form
        assert found is not None
        assert ("thoughts" in found.text) is thinks


THINKS = ("12.", "\n12")
REST = "12.</think>\n12"


@pytest.mark.parametrize(
    ("template", "parser", "said", "text", "expected"),
    [
        (PLAIN, "qwen3", {"content": "<think>\nThe user asks 3 + 9. 3 + 9 ="}, REST, THINKS),
        (PLAIN, "qwen3", {"content": "<think>\n3 + 9 = 12</think>\n\nIt"}, "is 12", ("", "is 12")),
        (PLAIN, "qwen3", {"content": "The tag <think>"}, "is one", ("", "is one")),
        (PLAIN, "qwen3", {"content": "<think>"}, REST, THINKS),
        (PLAIN, "deepseek_r1", {"content": "<think>12</think>\n\nThe"}, "is 12", ("", "is 12")),
        (PLAIN, "deepseek_r1", {"content": "The user asks"}, REST, THINKS),
        # The template shows none of it, and it was written all the same.
        (DROPS, "deepseek_r1", {"content": "<think>12</think>\n\nThe"}, "is 12", ("", "is 12")),
        (DROPS, "deepseek_r1", {"content": "The", "reasoning": "12"}, "is 12", ("", "is 12")),
        (CLOSES, "qwen3", {"content": "<think>\nThe user"}, REST, THINKS),
        (CLOSES, "qwen3", {"content": "", "reasoning": "12"}, "is 12", ("", "is 12")),
        (CLOSES, "deepseek_r1", {"content": "It is"}, "12", ("", "12")),
        (CLOSES, "deepseek_r1", {"content": ""}, "12", ("", "12")),
    ],
    ids=range(12),
)
async def test_an_answer_goes_on_as_if_the_model_had_written_all_of_it(
    tokenizer: Tokenizer,
    template: str,
    parser: str,
    said: dict[str, Any],
    text: str,
    expected: tuple[str, str],
) -> None:
    assert await answer(tokenizer, template, parser, text, said=said) == expected


@pytest.mark.parametrize(
    ("template", "asked", "fields", "text", "expected"),
    [
        (PLAIN, "3 + 9?", {}, REST, ("", REST)),
        (PLAIN, "What does <think> say?", {}, "12", ("", "12")),
        (OPENS, "3 + 9?", {}, REST, THINKS),
        (OPENS, "Mind </think>", {}, REST, THINKS),
        (SPEAKS, "3 + 9?", {}, REST, THINKS),
        (SPEAKS, "3 + 9?", {"add_generation_prompt": False}, "12", ("", "12")),
        # What the user says is none of the answer.
        (WITHOUT_MARKS, "Say <think>", {}, "12", ("", "12")),
        (WITHOUT_MARKS, "Say </think>", {}, "<think>a</think>b", ("a", "b")),
    ],
    ids=range(8),
)
async def test_thoughts_that_the_template_begins_are_told_from_what_others_wrote(
    tokenizer: Tokenizer,
    template: str,
    asked: str,
    fields: dict[str, Any],
    text: str,
    expected: tuple[str, str],
) -> None:
    assert await answer(tokenizer, template, "qwen3", text, asked=asked, **fields) == expected
