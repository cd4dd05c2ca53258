"""Answers that are calls of tools or have a form: what their grammars allow, and how both are read."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pagemesh.errors import UnsupportedError
from pagemesh.router.parsers.answer_start import AnswerStart
from pagemesh.router.parsers.call_or_form import CallOrForm
from pagemesh.router.parsers.factory import make_parser
from pagemesh.router.parsers.forced import CallSyntax, Tool
from pagemesh.router.parsers.thinking import thoughts_begun
from pagemesh.sampling.structured.constraint import Grammar
from pagemesh.sampling.structured.outputs import StructuredOutputs
from tests.unit.router.parsers.answers import Parsed, parsed
from tests.unit.router.parsers.grammar_model import Model
from tests.unit.router.parsers.test_forced import OPENED, WRITTEN

UNIT = {
    "type": "object",
    "properties": {"unit": {"$ref": "#/$defs/unit"}},
    "required": ["unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}
TOOLS = (Tool("weather", UNIT, is_strict=True), Tool("now", None))
# Its keys are those of calls that are bare JSON, as far as they can be.
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"$ref": "#/$defs/age"}},
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"age": {"type": "integer", "maximum": 99}},
}
ADA = '{"name": "Ada", "age": 36}'
OBJECT = {"json_object": True}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"unit": "C"}}\n</tool_call>'


class Asked:
    """A request with tools and a form."""

    def __init__(
        self, model: Model, parser: str, options: dict[str, Any], reasoning: str | None = None
    ) -> None:
        self.model, self.parser, self.reasoning = model, parser, reasoning
        outputs = StructuredOutputs.of(**options)
        self.either = CallOrForm(CallSyntax.of(parser, model.token_id), TOOLS, outputs)

    def grammar(self, *, parallel: bool = True, prompt: str = "", **options: Any) -> Grammar:
        begun = thoughts_begun(prompt)
        start = AnswerStart(self.reasoning, self.model.token_id, begun, **options)
        text = self.either.grammar(start, parallel=parallel)
        return self.model.compile(StructuredOutputs.of(grammar=text))

    def read(self, text: str, prompt: str = "", *, size: int = 1000) -> Parsed:
        """An answer that comes in pieces of this size."""
        parser = make_parser(
            self.parser,
            self.reasoning,
            begun=thoughts_begun(prompt),
            call_heads=self.either.call_heads(),
        )
        return parsed(parser, [text[at : at + size] for at in range(0, len(text), size)])


def calls(parser: str, with_tokens: bool, *arguments: str) -> str:
    """Calls for the weather, as the model writes several."""
    written = [WRITTEN[parser, with_tokens] % ("weather", each) for each in arguments]
    match parser, with_tokens:
        case "mistral", False:
            return ", ".join(written).replace("}], [TOOL_CALLS][", "}, ")
        case "deepseek_v31", True:
            return "".join(written).replace("<｜tool▁calls▁end｜><｜tool▁calls▁begin｜>", "")
        case "deepseek_v3", True:
            return "\n".join(written).replace("<｜tool▁calls▁end｜>\n<｜tool▁calls▁begin｜>", "\n")
        case "mistral", True:
            return "".join(written)
    return {"hermes": "\n", "llama3_json": "; "}[parser].join(written)


@pytest.mark.parametrize(("parser", "with_tokens"), WRITTEN)
def test_an_answer_is_calls_that_fit_or_has_the_form(
    models: dict[bool, Model], parser: str, with_tokens: bool
) -> None:
    model = models[with_tokens]
    asked = Asked(model, parser, {"json": PERSON})
    one = calls(parser, with_tokens, '{"unit": "C"}')
    two = calls(parser, with_tokens, '{"unit": "C"}', '{"unit": "F"}')
    grammar, once = asked.grammar(), asked.grammar(parallel=False)
    for text in (one, two, WRITTEN[parser, with_tokens] % ("now", "{}"), ADA):
        assert model.allows(grammar, text), text
        assert model.allows(once, text) is (text != two)
    for text in (
        "",
        "Sure.",
        f"Sure. {one}",
        f"{one}\n{ADA}",
        f"{ADA}\n{one}",
        one.replace('"C"', '"K"'),
        one.replace("weather", "other"),
        ADA.replace("36", "100"),
        ADA.replace("age", "old"),
    ):
        assert not model.allows(grammar, text), text
    for size in (1, 1000):
        read = asked.read(two, size=size)
        assert (read.content, read.calls) == (
            "",
            (("weather", '{"unit": "C"}'), ("weather", '{"unit": "F"}')),
        )
        assert asked.read(ADA, size=size) == Parsed(ADA)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("parser", "with_tokens"), WRITTEN)
def test_whatever_the_grammar_allows_is_read_as_what_it_is(
    models: dict[bool, Model], parser: str, with_tokens: bool, seed: int
) -> None:
    model, dice = models[with_tokens], random.Random(seed)
    asked = Asked(model, parser, {"json": PERSON})
    begin = WRITTEN[parser, with_tokens].partition("%s")[0] + "weather" if seed % 2 else "{"
    if seed % 2 and parser == "llama3_json":
        begin += '", "parameters'
    read = asked.read(model.random_text(asked.grammar(), begin, dice))
    assert bool(read.calls) is bool(seed % 2)
    for name, arguments in read.calls:
        assert json.loads(arguments)["unit"] in ("C", "F") if name == "weather" else name == "now"
    if not read.calls:
        person = json.loads(read.content)
        assert (len(person["name"]) <= 9, person["age"] <= 99) == (True, True)


@pytest.mark.parametrize(("parser", "with_tokens"), WRITTEN)
@pytest.mark.parametrize(
    ("options", "right", "wrong"),
    [
        (OBJECT, '{"a": [1]}', "[1]"),
        ({"json": PERSON, "disable_any_whitespace": True}, '{"name":"Ada","age":36}', ADA),
        ({"regex": r"[a-z<{]+"}, "<tool{", "T"),
        ({"choice": ["yes", "<no>", '{"n']}, "<no>", "no"),
        ({"grammar": 'start: "a" /b+/'}, "abb", "b"),
    ],
    ids=["object", "compact", "regex", "choice", "grammar"],
)
def test_forms_of_all_kinds_stand_beside_calls(
    models: dict[bool, Model],
    parser: str,
    with_tokens: bool,
    options: dict[str, Any],
    right: str,
    wrong: str,
) -> None:
    model = models[with_tokens]
    asked = Asked(model, parser, options)
    if parser == "llama3_json" and "grammar" in options:
        with pytest.raises(UnsupportedError, match="whose calls have no mark to begin with"):
            asked.grammar()
        return
    grammar = asked.grammar()
    call = calls(parser, with_tokens, '{"unit": "C"}')
    if parser == "llama3_json" and "disable_any_whitespace" in options:
        # The calls are then JSON of the same kind.
        call = call.replace(" ", "")
    assert model.allows(grammar, call)
    assert model.allows(grammar, right)
    assert not model.allows(grammar, wrong)
    assert asked.read(right, size=1) == Parsed(right)
    assert [name for name, _ in asked.read(call, size=1).calls] == ["weather"]


@pytest.mark.parametrize(
    ("parser", "options", "text"),
    [
        ("hermes", {"regex": r"(.|\n)*"}, '<tool_call>\n{"name": "other"'),
        (
            "hermes",
            {"choice": ['<tool_call>\n{"name": "weather"']},
            '<tool_call>\n{"name": "weather"',
        ),
        ("llama3_json", {"regex": r"(.|\n)*"}, '{ "name":"now", "parameters": {"a": 1}}'),
    ],
    ids=["regex", "choice", "bare"],
)
def test_no_text_of_a_form_begins_as_calls_do(
    models: dict[bool, Model], parser: str, options: dict[str, Any], text: str
) -> None:
    asked = Asked(models[False], parser, options)
    assert not models[False].allows(asked.grammar(), text)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '{"a": "<tool_call>{\\"name\\": 1}"}'),
        ("hermes", '{"a": ["<tool_call>", {"name": "weather", "arguments": {}}]}'),
        ("hermes", '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'),
        ("hermes", "<tool_call>\n"),
        ("llama3_json", '{"name": "Ada", "parameters": {"unit": "C"}}'),
        ("llama3_json", '{"name": "weather", "age": 3}'),
        ("llama3_json", '{"parameters": {"unit": "C"}, "name": "weather"}'),
        ("llama3_json", '{"a": {"name": "weather", "parameters": {}}}'),
    ],
)
def test_what_does_not_begin_as_its_calls_do_is_an_answer(
    models: dict[bool, Model], parser: str, text: str, size: int
) -> None:
    asked = Asked(models[False], parser, OBJECT)
    assert asked.read(text, size=size) == Parsed(text)


@pytest.mark.parametrize("size", [1, 1000])
def test_an_answer_is_told_as_it_comes(models: dict[bool, Model], size: int) -> None:
    asked = Asked(models[False], "llama3_json", OBJECT)
    parser = make_parser("llama3_json", None, call_heads=asked.either.call_heads())
    assert parser.push('{"name": "Ada", ').content == ""
    assert parser.push('"b').content == '{"name": "Ada", "b'
    assert parser.push("o").content == "o"
    spaced = asked.read('{"name" :"weather",\n "parameters": {"unit": "C"}}', size=size)
    assert spaced.calls == (("weather", '{"unit": "C"}'),)


@pytest.mark.parametrize("with_tokens", [False, True])
def test_reasoning_may_come_first(models: dict[bool, Model], with_tokens: bool) -> None:
    model = models[with_tokens]
    asked = Asked(model, "hermes", {"json": PERSON}, "qwen3")
    grammar = asked.grammar(prompt=OPENED)
    call = calls("hermes", with_tokens, '{"unit": "C"}')
    for text in (call, ADA):
        assert model.allows(grammar, f"Hm.</think>\n\n{text}")
        assert not model.allows(grammar, f"Hm.</think>\n\nSo: {text}")
    assert not model.allows(grammar, "Hm.")
    read = asked.read(f"Hm.</think>\n\n{call}", OPENED, size=1)
    assert (read.reasoning, read.content, len(read.calls)) == ("Hm.", "", 1)
    assert asked.read(f"Hm.</think>{ADA}", OPENED) == Parsed(ADA, "Hm.")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_where_content_stood_is_told(models: dict[bool, Model], size: int) -> None:
    asked = Asked(models[False], "hermes", {"json": PERSON}, "qwen3")
    for text in (f"<think>Hm.</think>\n\n{ADA}", f"<think>Hm.</think>\n{CALL}", ADA):
        parser = make_parser("hermes", "qwen3", call_heads=asked.either.call_heads())
        pieces = [parser.push(text[at : at + size]) for at in range(0, len(text), size)]
        pieces.append(parser.finish())
        content = "".join(piece.content for piece in pieces)
        assert content.strip() == ("" if CALL in text else ADA)
        spans = [span for piece in pieces for span in piece.content_spans]
        assert "".join(text[start:end] for start, end in spans) == content


def test_a_grammar_in_another_syntax_cannot_stand_beside_tools(models: dict[bool, Model]) -> None:
    asked = Asked(models[False], "hermes", {"grammar": 'root ::= "a"'})
    with pytest.raises(UnsupportedError, match="beside tools must be in Lark's syntax"):
        asked.grammar()
