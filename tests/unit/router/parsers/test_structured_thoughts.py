"""Structured outputs of models that think first."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.router.parsers.answer_start import AnswerStart
from pagemesh.router.parsers.structured_thoughts import behind_thoughts
from pagemesh.router.parsers.thinking import thoughts_begun
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.unit.router.parsers.grammar_model import Model

PERSON = {
    "type": "object",
    "properties": {"age": {"$ref": "#/$defs/age"}},
    "required": ["age"],
    "additionalProperties": False,
    "$defs": {"age": {"type": "integer"}},
}
OPENED = "<|im_start|>assistant\n<think>\n"
CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def allows(
    model: Model,
    options: dict[str, Any],
    text: str,
    reasoning: str | None = "qwen3",
    prompt: str = "",
    thinks: bool | None = True,
) -> bool:
    start = AnswerStart(reasoning, model.token_id, thoughts_begun(prompt), thinks)
    outputs = behind_thoughts(StructuredOutputs.of(**options), start)
    return model.allows(model.compile(outputs), text)


@pytest.mark.parametrize("with_tokens", [False, True])
@pytest.mark.parametrize(
    ("options", "right", "wrong"),
    [
        ({"json": PERSON}, '{"age": 36}', '{"age": "36"}'),
        ({"json": {**PERSON, "x-guidance": "?"}}, '{\n "age":36}', '{"age":  36}'),
        ({"json": PERSON, "disable_any_whitespace": True}, '{"age":36}', '{"age": 36}'),
        ({"json": PERSON, "whitespace_pattern": " *"}, '{"age":   36}', '{"age":\n36}'),
        ({"json_object": True}, '{"a": [1, {"b": null}]}', "[1]"),
        ({"regex": r"a/b\/[\n/]c\\"}, "a/b//c\\", "a/b/c\\"),
        ({"regex": "a\n|b"}, "a\n", "a"),
        ({"choice": ["yes", 'n"o']}, 'n"o', "n"),
        ({"grammar": 'start: "a" more\nmore: "b"+\n'}, "abb", "a"),
    ],
    ids=str,
)
def test_the_description_is_of_the_answer_behind_the_thoughts(
    models: dict[bool, Model], with_tokens: bool, options: dict[str, Any], right: str, wrong: str
) -> None:
    model = models[with_tokens]
    thoughts = "<think>\nHm, {or} <b>.\n</think>\n\n"
    assert allows(model, options, thoughts + right)
    assert not allows(model, options, thoughts + wrong)
    assert not allows(model, options, thoughts)
    assert allows(model, options, right)
    assert not allows(model, options, wrong)


@pytest.mark.parametrize("with_tokens", [False, True])
def test_thoughts_are_as_the_prompt_began_them(
    models: dict[bool, Model], with_tokens: bool
) -> None:
    model, options = models[with_tokens], {"choice": ["yes", "no"]}
    assert allows(model, options, "Hm.</think>yes", "deepseek_r1")
    assert not allows(model, options, "yes", "deepseek_r1")
    assert allows(model, options, "Hm.</think>\n\nno", "qwen3", OPENED)
    assert not allows(model, options, "no", "qwen3", OPENED)


@pytest.mark.parametrize("with_tokens", [False, True])
def test_whether_there_may_be_thoughts_is_said_by_the_request_or_the_models_tokens(
    models: dict[bool, Model], with_tokens: bool
) -> None:
    model, options, text = models[with_tokens], {"choice": ["yes"]}, "<think>Hm.</think>yes"
    assert not allows(model, options, text, thinks=False)
    assert allows(model, options, text, thinks=None) == with_tokens


@pytest.mark.parametrize(("reasoning", "prompt"), [(None, OPENED), ("qwen3", CLOSED)])
def test_without_thoughts_nothing_changes(reasoning: str | None, prompt: str) -> None:
    outputs = StructuredOutputs.of(json=PERSON)
    start = AnswerStart(reasoning, lambda _: None, thoughts_begun(prompt))
    assert behind_thoughts(outputs, start) is outputs


def test_a_grammar_in_another_syntax_is_refused() -> None:
    outputs = StructuredOutputs.of(grammar='root ::= "start"')
    with pytest.raises(UnsupportedError, match="must be in Lark's syntax"):
        behind_thoughts(outputs, AnswerStart("deepseek_r1", lambda _: None))


def test_what_is_too_long_behind_thoughts_is_refused() -> None:
    outputs = StructuredOutputs.of(choice=["a" * 20000])
    with pytest.raises(InvalidRequestError, match="besides its JSON schemas"):
        behind_thoughts(outputs, AnswerStart("deepseek_r1", lambda _: None))
