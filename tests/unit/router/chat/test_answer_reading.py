"""What form an answer must have, and who reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagemesh.router.chat.answer_reading import AnswerReading
from pagemesh.router.chat.rules import ChatRules
from pagemesh.router.generation.request import ChoiceDelta, StopReason
from pagemesh.router.openai.chat_request import read_chat_request
from pagemesh.router.parsers.thinking import thoughts_begun
from pagemesh.router.served_model import ServedModel
from pagemesh.sampling.structured.outputs import StructuredKind, StructuredOutputs
from pagemesh.tokenizer import Tokenizer
from pagemesh.tokenizer.model_defaults import GenerationDefaults, Matryoshka
from pagemesh.tokenizer.thought_span import ThoughtMarks

TOOLS = {"tools": [{"type": "function", "function": {"name": "add"}}]}
STRICT = {"type": "function", "function": {"name": "sum", "strict": True}}
BOTH = {"tools": [*TOOLS["tools"], STRICT]}
JSON = {"response_format": {"type": "json_object"}}
EBNF = {"structured_outputs": {"grammar": 'root ::= "a"'}}


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


def reading(
    tokenizer: Tokenizer,
    fields: dict[str, Any],
    *,
    prompt: str = "",
    written: str = "",
) -> AnswerReading:
    rules = ChatRules("hermes", "qwen3")
    model = ServedModel("m", tokenizer, GenerationDefaults(), 0, Matryoshka(), rules)
    request = read_chat_request({"messages": [{"role": "user", "content": "Hi"}], **fields})
    begun = thoughts_begun(prompt)
    form = request.output_constraint
    return AnswerReading.of(model, request, request.tool_use, form, begun, written)


@pytest.mark.parametrize(
    ("fields", "parsers"),
    [
        ({}, (None, "qwen3")),
        (TOOLS, ("hermes", "qwen3")),
        # The model may call all the same.
        ({**TOOLS, "tool_choice": "none"}, ("hermes", "qwen3")),
        ({"tool_choice": "none"}, (None, "qwen3")),
        ({**TOOLS, "tool_choice": "required"}, ("hermes", "qwen3")),
        # The model chooses between both.
        ({**TOOLS, **JSON}, ("hermes", "qwen3")),
        # JSON may look like a call, and is none.
        ({**TOOLS, **JSON, "tool_choice": "none"}, (None, "qwen3")),
        (JSON, (None, "qwen3")),
    ],
    ids=str,
)
def test_parsers_are_those_of_what_may_come(
    tokenizer: Tokenizer, fields: dict[str, Any], parsers: tuple[str | None, str | None]
) -> None:
    found = reading(tokenizer, fields)
    assert (found.tool_parser, found.reasoning_parser) == parsers


def test_answers_without_a_form_may_be_anything(tokenizer: Tokenizer) -> None:
    assert reading(tokenizer, TOOLS).form is None


def test_a_call_that_has_to_come_is_a_grammar(tokenizer: Tokenizer) -> None:
    form = reading(tokenizer, {**TOOLS, "tool_choice": "required"}).form
    assert form is not None
    assert form.kind is StructuredKind.GRAMMAR
    assert "thoughts" not in form.text
    assert form.text.splitlines()[0] == 'start: call ("\\n" call)*'
    once = {**TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    form = reading(tokenizer, once).form
    assert form is not None
    assert form.text.splitlines()[0] == "start: call"


def test_a_strict_tool_is_a_grammar_for_a_model_that_chooses(tokenizer: Tokenizer) -> None:
    found = reading(tokenizer, BOTH)
    assert found.form is not None
    assert found.is_form_of_tools
    assert found.form.text.splitlines()[0] == "start: (before block)* TEXT"
    form = reading(tokenizer, {**BOTH, "parallel_tool_calls": False}).form
    assert form is not None
    assert form.text.splitlines()[0] == "start: (before block)? TEXT"
    assert reading(tokenizer, {**BOTH, "tool_choice": "none"}).form is None
    only = [{"type": "function", "function": {"name": "add"}}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": only}}
    assert reading(tokenizer, {**BOTH, "tool_choice": allowed}).form is None


@pytest.mark.parametrize(
    "fields",
    [JSON, {**TOOLS, "tool_choice": "required"}, BOTH, {**TOOLS, **JSON}],
    ids=["json", "call", "strict", "either"],
)
@pytest.mark.parametrize(
    ("more", "options", "thinks"),
    [
        ({}, {}, False),
        ({}, {"prompt": "<think>\n"}, True),
        ({}, {"prompt": "<think></think>\n"}, False),
        ({"reasoning_effort": "low"}, {}, True),
        ({"reasoning_effort": "none"}, {}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, {}, True),
    ],
    ids=str,
)
def test_thoughts_come_before_a_form_only_where_there_is_a_reason_for_them(
    tokenizer: Tokenizer,
    fields: dict[str, Any],
    more: dict[str, Any],
    options: dict[str, Any],
    thinks: bool,
) -> None:
    found = reading(tokenizer, {**fields, **more}, **options)
    assert found.form is not None
    assert ("thoughts" in found.form.text) is thinks


def test_a_grammar_in_another_syntax_leaves_no_room_for_thoughts(tokenizer: Tokenizer) -> None:
    found = reading(tokenizer, {**EBNF, "reasoning_effort": "low"})
    assert found.form is not None
    assert (found.reasoning_parser, found.form.text) == (None, 'root ::= "a"')


@pytest.mark.parametrize("tools", [TOOLS, BOTH], ids=["free", "strict"])
def test_a_model_chooses_between_calls_and_a_form(
    tokenizer: Tokenizer, tools: dict[str, Any]
) -> None:
    found = reading(tokenizer, {**tools, **JSON})
    assert found.form is not None
    assert found.form.text.splitlines()[:2] == [
        "start: (calls | answer)",
        'calls: call ("\\n" call)*',
    ]
    assert not found.is_form_of_tools
    once = reading(tokenizer, {**tools, **JSON, "parallel_tool_calls": False}).form
    assert once is not None
    assert once.text.splitlines()[1] == "calls: call"
    for text, content, num_calls in (
        ('{"a": "<tool_call>"}', '{"a": "<tool_call>"}', 0),
        ('<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>', "", 1),
    ):
        delta = found.new_reader().push(ChoiceDelta(0, text, (1,), StopReason.STOP))
        assert (delta.content, len(delta.tool_calls)) == (content, num_calls)


def test_an_answer_that_is_gone_on_with_has_the_form_alone(tokenizer: Tokenizer) -> None:
    found = reading(tokenizer, {**TOOLS, **JSON}, written='{"a":')
    assert (found.tool_parser, found.form) == (None, StructuredOutputs.of(json_object=True))


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "add"}}], ids=str
)
def test_a_form_is_none_of_calls_that_have_to_come(tokenizer: Tokenizer, choice: Any) -> None:
    chosen = {**TOOLS, "tool_choice": choice}
    found, alone = reading(tokenizer, {**chosen, **JSON}), reading(tokenizer, chosen)
    assert (found.form, found.is_form_of_tools, found.tool_parser) == (alone.form, True, "hermes")


def test_stop_strings_are_kept_out_of_the_thoughts_that_somebody_reads(
    tokenizer: Tokenizer,
) -> None:
    marks = reading(tokenizer, TOOLS, prompt="<think>").thought_marks
    assert marks == ThoughtMarks("<think>", ("</think>", "<tool_call>"), True)
    # The grammar leaves no room for any.
    assert reading(tokenizer, {**EBNF, "reasoning_effort": "low"}).thought_marks is None


@pytest.mark.parametrize(("choice", "calls"), [("none", 0), ("auto", 1)])
def test_calls_that_were_not_wanted_are_neither_calls_nor_content(
    tokenizer: Tokenizer, choice: str, calls: int
) -> None:
    reader = reading(tokenizer, {**TOOLS, "tool_choice": choice}).new_reader()
    text = 'Well.\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    delta = reader.push(ChoiceDelta(0, text, (1,), StopReason.STOP))
    assert (delta.content, len(delta.tool_calls)) == ("Well.\n", calls)
    assert delta.stop_reason is (StopReason.TOOL_CALLS if calls else StopReason.STOP)
