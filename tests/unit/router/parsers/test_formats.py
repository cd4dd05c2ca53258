from __future__ import annotations

import pytest

from tests.unit.router.parsers.answers import ANSWERS, NO_CALLS, Answer, joined, new_parser, parsed


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.name)
def test_calls_and_the_content_around_them_are_found(answer: Answer) -> None:
    result = parsed(new_parser(answer.parser), [answer.text])
    assert result.calls == answer.calls
    assert result.content == answer.content
    assert result.reasoning == ""


@pytest.mark.parametrize(("parser", "text"), NO_CALLS)
def test_what_is_no_call_is_content_as_it_was_written(parser: str, text: str) -> None:
    result = parsed(new_parser(parser), [text])
    assert result.content == text
    assert result.calls == ()


def test_ids_are_vllms_and_mistrals_have_nine_letters() -> None:
    two = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2
    assert parsed(new_parser("hermes"), [two]).ids == (
        f"chatcmpl-tool-{'1' * 32}",
        f"chatcmpl-tool-{'2' * 32}",
    )
    two = "[TOOL_CALLS]f{}" * 2
    assert parsed(new_parser("mistral"), [two]).ids == ("111111111", "222222222")


STREAMED = {
    "hermes": ('<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
    "llama3_json": ('{"name": "f", "parameters": ', "}"),
    "mistral": ('[TOOL_CALLS][{"name": "f", "arguments": ', "}]"),
    "deepseek_v3": ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
}


@pytest.mark.parametrize("parser", STREAMED)
def test_arguments_are_streamed_character_by_character(parser: str) -> None:
    before, after = STREAMED[parser]
    arguments = '{"a": {"b": "\\"}["}, "c": true}'
    stream = new_parser(parser)
    assert stream.push(before).tool_calls == ()
    pieces = [stream.push(char).tool_calls for char in arguments]
    assert [piece[0].name for piece in pieces] == ["f"] + [None] * (len(arguments) - 1)
    assert [piece[0].arguments for piece in pieces] == list(arguments)
    assert joined([stream.push(after), stream.finish()]).content == ""


@pytest.mark.parametrize("parser", STREAMED)
def test_text_is_not_held_back(parser: str) -> None:
    stream = new_parser(parser)
    for text in ("The", " sky", " \n", "(a) is\tblue", ". ", '"', "\n\n"):
        assert stream.push(text).content == text


@pytest.mark.parametrize(
    ("parser", "texts", "contents"),
    [
        ("hermes", ["a <", "b", "</tool_call>", "<tool", "_cal", "s", "<tool_call>", "x"],
         ["a ", "<b", "</tool_call>", "", "", "<tool_cals", "", "<tool_call>x"]),
        ("llama3_json", ["{", "\n", "x", " {", '"name": "x", "', "b", '": {}, "c', '": {"name'],
         ["", "", "{\nx", " ", "", '{"name": "x", "b', '": {}, "c', '": {"name']),
        ("mistral", ["a[0", "]", "[", "TOOL", " [", "TOOL_CALLS] f(", "x"],
         ["a[0", "]", "", "", "[TOOL ", "[TOOL_CALLS] f(", "x"]),
    ],
)  # fmt: skip
def test_text_is_held_back_only_while_it_may_be_a_call(
    parser: str, texts: list[str], contents: list[str]
) -> None:
    stream = new_parser(parser)
    assert [stream.push(text).content for text in texts] == contents


def test_blanks_that_only_separate_calls_are_no_content() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    stream = new_parser("hermes")
    assert [stream.push(text).content for text in ("\n", " ", call, "\n", "\n", call, "\n")] == [
        ""
    ] * 7
    assert stream.finish().content == ""
    assert parsed(new_parser("hermes"), ["\n", " "]).content == "\n "


def test_a_call_has_at_most_one_delta_in_a_piece() -> None:
    text = '[TOOL_CALLS]f{"a": [1]}[TOOL_CALLS]g{}'
    deltas = new_parser("mistral").push(text).tool_calls
    assert [(delta.index, delta.name, delta.arguments) for delta in deltas] == [
        (0, "f", '{"a": [1]}'),
        (1, "g", "{}"),
    ]
