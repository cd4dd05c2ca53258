"""Grammars of forced calls: what they allow is what parsers read, and fits the tools."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.router.parsers.answer_start import AnswerStart
from pagemesh.router.parsers.forced import Tool, forced_grammar
from pagemesh.router.parsers.thinking import thoughts_begun
from pagemesh.sampling.structured.constraint import Grammar
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.unit.router.parsers.answers import Parsed, new_parser, parsed
from tests.unit.router.parsers.grammar_model import Model

UNITS = ("°C", "°F", 'a"b\\}')
TOOLS = (
    Tool(
        "weather",
        {
            "type": "object",
            "properties": {
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"$ref": "#/$defs/unit"},
                "more": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
            },
            "required": ["days", "unit"],
            "additionalProperties": False,
            "$defs": {"unit": {"enum": UNITS}},
        },
    ),
    Tool("weather_now", None),
    Tool(
        "note",
        {
            "properties": {"text": {"type": "string", "maxLength": 5}},
            "required": ["text"],
            "additionalProperties": False,
        },
    ),
)
WAYS = (
    *((parser, with_tokens) for parser in ("hermes", "llama3_json", "mistral") for with_tokens in (False, True)),
    ("deepseek_v3", True),
    ("deepseek_v31", True),
)  # fmt: skip
NO_THOUGHTS = AnswerStart(None, lambda _: None)
OPENED = "<|im_start|>assistant\n<think>\n"


def forced(model: Model, parser: str, reasoning: str | None = None, **options: Any) -> Grammar:
    tools, parallel = options.pop("tools", TOOLS), options.pop("parallel", True)
    begun = thoughts_begun(options.pop("prompt", ""))
    start = AnswerStart(reasoning, model.token_id, begun, **options)
    text = forced_grammar(parser, start, tools, parallel=parallel)
    return model.compile(StructuredOutputs.of(grammar=text))


def check_calls(result: Parsed) -> None:
    assert result.content == ""
    assert result.calls
    for name, arguments in result.calls:
        values = json.loads(arguments)
        match name:
            case "weather":
                assert set(values) <= {"days", "unit", "more"}
                assert values["days"] in range(1, 10)
                assert values["unit"] in UNITS
                assert all(isinstance(value, bool) for value in values.get("more", []))
            case "weather_now":
                assert values == {}
            case "note":
                assert len(values["text"]) <= 5
            case _:
                raise AssertionError(name)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("parser", "with_tokens"), WAYS)
def test_whatever_the_grammar_allows_is_read_as_calls_that_fit(
    models: dict[bool, Model], parser: str, with_tokens: bool, seed: int
) -> None:
    model, dice = models[with_tokens], random.Random(seed)
    text = model.random_text(forced(model, parser), "", dice)
    check_calls(parsed(new_parser(parser), [text]))
    text = model.random_text(forced(model, parser, parallel=False), "", dice)
    result = parsed(new_parser(parser), [text])
    check_calls(result)
    assert len(result.calls) == 1


@pytest.mark.parametrize(
    ("prompt", "begin"), [("", "<think>\nHm.</think>"), ("", ""), (OPENED, "Hm.\n</think>\n\n")]
)
@pytest.mark.parametrize(("parser", "with_tokens"), WAYS)
def test_reasoning_may_come_first(
    models: dict[bool, Model], parser: str, with_tokens: bool, prompt: str, begin: str
) -> None:
    model, dice = models[with_tokens], random.Random(0)
    grammar = forced(model, parser, "qwen3", prompt=prompt, thinks=True)
    # Without a beginning there may be any thoughts: a call is one way to go on.
    begin = begin or opening(model, parser)
    result = parsed(new_parser(parser, "qwen3", prompt), [model.random_text(grammar, begin, dice)])
    check_calls(result)
    assert result.reasoning == begin.partition("</think>")[0].removeprefix("<think>") * (
        "</think>" in begin
    )


def opening(model: Model, parser: str) -> str:
    """All that is certain at the beginning of calls."""
    text = ""
    constraint = forced(model, parser).start()
    while len(allowed := model.next(constraint)) == 1:
        assert constraint.accept(allowed[0])
        text += model.tokenizer.decode(allowed, skip_special_tokens=False)
    assert text
    return text


WEATHER = '{"days": 3, "unit": "°C"}'
WRITTEN = {
    ("hermes", False): '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
    ("hermes", True): '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
    ("llama3_json", False): '{"name": "%s", "parameters": %s}',
    ("mistral", False): '[TOOL_CALLS][{"name": "%s", "arguments": %s}]',
    ("mistral", True): "[TOOL_CALLS]%s[ARGS]%s",
    ("deepseek_v3", True): "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n"
    "```json\n%s\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ("deepseek_v31", True): "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}


@pytest.mark.parametrize(("parser", "with_tokens"), WRITTEN)
def test_calls_are_written_as_the_models_write_them(
    models: dict[bool, Model], parser: str, with_tokens: bool
) -> None:
    model, written = models[with_tokens], WRITTEN[parser, with_tokens]
    grammar = forced(model, parser, parallel=False)
    assert model.allows(grammar, written % ("weather", WEATHER))
    assert model.allows(grammar, written % ("weather_now", "{}"))
    assert model.allows(grammar, written % ("weather", '{\n  "days": 3,\n  "unit": "°C"\n}'))
    for name, arguments in (
        ("other", "{}"),
        ("weather", "{}"),
        ("weather_now", WEATHER),
        ("weather", '{"days": 3, "unit": "°C", "other": 1}'),
        ("weather", '{"days": 10, "unit": "°C"}'),
        ("weather", '{"days": 3,  "unit": "°C"}'),
    ):
        assert not model.allows(grammar, written % (name, arguments))
    assert not model.allows(grammar, "Sure. " + written % ("weather_now", "{}"))
    assert not model.allows(grammar, written % ("weather_now", "{}") + "\n\n\n")
    assert not model.allows(grammar, "<think>Hm.</think>" + written % ("weather_now", "{}"))
    assert not model.allows(grammar, "")


TWO = {
    ("hermes", True): "<tool_call>\n%s\n</tool_call>\n<tool_call>\n%s\n</tool_call>",
    ("llama3_json", False): "%s; %s",
    ("mistral", False): "[TOOL_CALLS][%s, %s]",
}


@pytest.mark.parametrize(("parser", "with_tokens"), TWO)
def test_several_calls_only_when_they_may_be_parallel(
    models: dict[bool, Model], parser: str, with_tokens: bool
) -> None:
    model = models[with_tokens]
    key = "parameters" if parser == "llama3_json" else "arguments"
    call = f'{{"name": "weather_now", "{key}": {{}}}}'
    text = TWO[parser, with_tokens] % (call, call)
    assert model.allows(forced(model, parser), text)
    assert not model.allows(forced(model, parser, parallel=False), text)


@pytest.mark.parametrize("with_tokens", [False, True])
def test_thoughts_are_as_the_prompt_began_them(
    models: dict[bool, Model], with_tokens: bool
) -> None:
    model = models[with_tokens]
    call = '<tool_call>\n{"name": "weather_now", "arguments": {}}\n</tool_call>'
    closed = "<think>\n\n</think>\n\n"

    def allows(reasoning: str, prompt: str, text: str, thinks: bool | None = None) -> bool:
        grammar = forced(model, "hermes", reasoning, prompt=prompt, thinks=thinks)
        return model.allows(grammar, text)

    assert allows("qwen3", "", f"<think>\nHm.\n</think>\n\n{call}", True)
    assert not allows("qwen3", "", f"<think>\nHm.\n</think>\n\n{call}", False)
    assert allows("qwen3", "", f"<think>\nHm.\n</think>\n\n{call}") == with_tokens
    assert allows("qwen3", "", call)
    assert not allows("qwen3", "", f"Hm.</think>{call}")
    assert allows("deepseek_r1", "", f"Hm.</think>{call}")
    assert allows("deepseek_r1", "", f"<think>Hm.</think>{call}")
    assert not allows("deepseek_r1", "", call)
    assert allows("qwen3", OPENED, f"Hm.</think>{call}")
    assert not allows("qwen3", OPENED, call)
    assert allows("qwen3", closed, call)
    assert not allows("deepseek_r1", closed, f"<think>Hm.</think>{call}")
    # The parser would take it for a call.
    assert not allows("qwen3", OPENED, f"Hm. <tool_call> </think>{call}")


def test_hundreds_of_tools_with_large_schemas_compile(models: dict[bool, Model]) -> None:
    schema = {"type": "object", "properties": {f"field_{i}": {"type": "string"} for i in range(20)}}
    tools = [Tool(f"tool_{i:050}", schema) for i in range(128)]
    model = models[True]
    grammar = forced(model, "hermes", tools=tools)
    text = f'<tool_call>\n{{"name": "tool_{127:050}", "arguments": {{}}}}\n</tool_call>'
    assert model.allows(grammar, text)


def test_what_a_schema_says_and_nobody_can_follow_is_ignored_unless_it_is_strict(
    models: dict[bool, Model],
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    model = models[False]
    grammar = forced(model, "llama3_json", tools=[Tool("f", schema)])
    assert model.allows(grammar, '{"name": "f", "parameters": {"a": [1, 1]}}')
    with pytest.raises(
        InvalidRequestError, match=r'these keys are not supported: \["uniqueItems"\]$'
    ):
        forced(model, "llama3_json", tools=[Tool("f", schema, is_strict=True)])


@pytest.mark.parametrize("kind", ["string", None, ["array", "null"]])
def test_parameters_that_are_no_object_are_refused(kind: object) -> None:
    tools = [Tool("f", {"type": kind}, param="tools[1].function.parameters")]
    with pytest.raises(
        InvalidRequestError, match=r"type is .*, but it must be \"object\""
    ) as refused:
        forced_grammar("hermes", NO_THOUGHTS, tools, parallel=True)
    assert refused.value.param == "tools[1].function.parameters"


def test_parameters_may_be_an_object_or_nothing(models: dict[bool, Model]) -> None:
    tools = [Tool("f", {"type": ["object", "null"]}), Tool("g", {})]
    model = models[False]
    grammar = forced(model, "llama3_json", tools=tools)
    assert model.allows(grammar, '{"name": "f", "parameters": {"a": 1}}')
    assert not model.allows(grammar, '{"name": "f", "parameters": null}')
    assert not model.allows(grammar, '{"name": "g", "parameters": []}')


@pytest.mark.parametrize("name", ["get weather", 'a"b', "f[0]", "<f>"])
def test_a_name_that_the_format_cannot_hold_is_refused(name: str) -> None:
    tools = [Tool(name, None, param="tools[0].function.parameters")]
    with pytest.raises(InvalidRequestError, match="cannot call a tool with the name") as refused:
        forced_grammar("deepseek_v31", NO_THOUGHTS, tools, parallel=True)
    assert refused.value.param == "tools[0].function"


@pytest.mark.parametrize("name", ["get weather", 'a"b\\', "f[0]", "<tool_call>", "wetter_für_😀"])
def test_other_formats_hold_any_name(models: dict[bool, Model], name: str) -> None:
    model = models[False]
    for parser in ("hermes", "llama3_json", "mistral"):
        grammar = forced(model, parser, tools=[Tool(name, None)], parallel=False)
        result = parsed(new_parser(parser), [model.random_text(grammar, "", random.Random(0))])
        assert [called for called, _ in result.calls] == [name]
