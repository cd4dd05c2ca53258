"""Grammars of answers that may call tools: any text, and calls that fit the strict ones."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pagemesh.router.parsers.answer_start import AnswerStart
from pagemesh.router.parsers.forced import Tool
from pagemesh.router.parsers.strict_calls import strict_grammar
from pagemesh.router.parsers.thinking import thoughts_begun
from pagemesh.sampling.structured.constraint import Grammar
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.unit.router.parsers.answers import new_parser, parsed
from tests.unit.router.parsers.grammar_model import Model
from tests.unit.router.parsers.test_forced import OPENED, WRITTEN

DAYS = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}
TOOLS = (Tool("weather", DAYS, is_strict=True), Tool("note", DAYS), Tool("now", None))


def strict(model: Model, parser: str, reasoning: str | None = None, **options: Any) -> Grammar:
    tools, parallel = options.pop("tools", TOOLS), options.pop("parallel", True)
    begun = thoughts_begun(options.pop("prompt", ""))
    start = AnswerStart(reasoning, model.token_id, begun, **options)
    text = strict_grammar(parser, start, tools, parallel=parallel)
    return model.compile(StructuredOutputs.of(grammar=text))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("parser", "with_tokens"), WRITTEN)
def test_whatever_the_grammar_allows_calls_nothing_or_fits(
    models: dict[bool, Model], parser: str, with_tokens: bool, seed: int
) -> None:
    model, dice = models[with_tokens], random.Random(seed)
    begin = WRITTEN[parser, with_tokens].partition("%s")[0] if seed % 2 else "Sure"
    grammar = strict(model, parser)
    result = parsed(new_parser(parser), [model.random_text(grammar, begin, dice)])
    for name, arguments in result.calls:
        values = json.loads(arguments)
        if name == "weather":
            assert values.keys() == {"days"}
            assert values["days"] in range(1, 10)
        else:
            assert name in ("note", "now")
            assert isinstance(values, dict)
    assert bool(result.calls) or not seed % 2


@pytest.mark.parametrize(("parser", "with_tokens"), WRITTEN)
def test_texts_and_calls_may_be_mixed(
    models: dict[bool, Model], parser: str, with_tokens: bool
) -> None:
    model, written = models[with_tokens], WRITTEN[parser, with_tokens]
    grammar = strict(model, parser)
    call = written % ("weather", '{"days": 3}')
    for text in (
        "",
        "No { tool: <needed>\n",
        call,
        f"Sure.\n{call}",
        f"{call}\nIt is done.",
        f"{call}\nOnce more: {call}",
        written % ("note", '{"days": "many"}'),
        written % ("now", '{"other": [1]}'),
    ):
        assert model.allows(grammar, text), text
    for text in (
        written % ("other", "{}"),
        written % ("weather", "{}"),
        f"{call} " + written % ("weather", '{"days": 10}'),
        written % ("note", "[]"),
        written.partition("%s")[0],
    ):
        assert not model.allows(grammar, text), text


@pytest.mark.parametrize(("parser", "with_tokens"), WRITTEN)
def test_one_call_where_they_may_not_be_parallel(
    models: dict[bool, Model], parser: str, with_tokens: bool
) -> None:
    model, written = models[with_tokens], WRITTEN[parser, with_tokens]
    grammar = strict(model, parser, parallel=False)
    call = written % ("weather", '{"days": 3}')
    assert model.allows(grammar, f"Sure.\n{call}\nDone.")
    assert not model.allows(grammar, f"{call}\n{call}")


def test_calls_in_other_words_are_none_that_a_strict_tool_could_get(
    models: dict[bool, Model],
) -> None:
    grammar = strict(models[False], "llama3_json")
    for text in ('{"name":"', '{ "name"', '{"parameters"', '{\n"id"', '{"type"'):
        assert not models[False].allows(grammar, f"So: {text}", whole=False)
    assert models[False].allows(grammar, 'So: {"names": ["name"]}')


@pytest.mark.parametrize("with_tokens", [False, True])
def test_reasoning_may_come_first(models: dict[bool, Model], with_tokens: bool) -> None:
    model = models[with_tokens]
    grammar = strict(model, "hermes", "qwen3", prompt=OPENED)
    call = WRITTEN["hermes", with_tokens] % ("weather", '{"days": 3}')
    assert model.allows(grammar, f"Hm.</think>\n\nSure. {call}")
    assert model.allows(grammar, "Hm.</think>\n\nNo.")
    assert not model.allows(grammar, "Hm. No.")
    assert not model.allows(grammar, "Hm.</think>" + call.replace("3", "33"))
