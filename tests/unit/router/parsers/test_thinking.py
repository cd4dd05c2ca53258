from __future__ import annotations

import pytest

from pagemesh.router.parsers.thinking import DEEPSEEK_R1, QWEN3, thoughts_begun
from tests.unit.router.parsers.answers import new_parser, parsed

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
OPENED = "<|im_start|>assistant\n<think>\n"
CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
EITHER = ("deepseek_r1", "qwen3")


@pytest.mark.parametrize("reasoning", EITHER)
@pytest.mark.parametrize(
    ("prompt", "text", "thoughts", "content"),
    [
        ("", "<think>\nHm.\n</think>\n\nYes.", "\nHm.\n", "\n\nYes."),
        ("", " \n<think>Hm.</think>Yes. </think>", "Hm.", "Yes. </think>"),
        (OPENED, "Hm.\n</think>\n\nYes.", "Hm.\n", "\n\nYes."),
        (OPENED, "<think>Hm.</think>Yes.", "Hm.", "Yes."),
        (OPENED, "</think>Yes.", "", "Yes."),
        (OPENED, "Hm. <thin </thin", "Hm. <thin </thin", ""),
        (CLOSED, "Yes. <think>", "", "Yes. <think>"),
        ("", "<think>Hm.", "Hm.", ""),
        ("", "", "", ""),
    ],
)
def test_reasoning_is_told_from_content(
    reasoning: str, prompt: str, text: str, thoughts: str, content: str
) -> None:
    result = parsed(new_parser(None, reasoning, prompt), [text])
    assert (result.reasoning, result.content) == (thoughts, content)


@pytest.mark.parametrize("text", ["Yes.", "\n<thin", "  "])
def test_an_answer_that_says_nothing_of_thoughts_is_all_or_none(text: str) -> None:
    always = parsed(new_parser(None, "deepseek_r1"), [text])
    assert (always.reasoning, always.content) == (text, "")
    says_so = parsed(new_parser(None, "qwen3"), [text])
    assert (says_so.reasoning, says_so.content) == ("", text)


@pytest.mark.parametrize("reasoning", EITHER)
def test_calls_are_sought_only_behind_the_reasoning(reasoning: str) -> None:
    result = parsed(new_parser("hermes", reasoning), [f"<think>\nHm.</think>\n\n{CALL}"])
    assert (result.reasoning, result.content, result.calls) == ("\nHm.", "", (("f", "{}"),))


def test_qwen_may_call_tools_in_the_middle_of_its_thoughts() -> None:
    result = parsed(new_parser("hermes", "qwen3", OPENED), [f"Hm. <tool {CALL}"])
    assert (result.reasoning, result.content, result.calls) == ("Hm. <tool ", "", (("f", "{}"),))
    result = parsed(new_parser("hermes", "deepseek_r1", OPENED), [f"Hm. {CALL}"])
    assert (result.reasoning, result.calls) == (f"Hm. {CALL}", ())
    result = parsed(new_parser(None, "qwen3", OPENED), [f"Hm. {CALL}"])
    assert (result.reasoning, result.content) == (f"Hm. {CALL}", "")


def test_reasoning_is_not_held_back() -> None:
    stream = new_parser("hermes", "qwen3")
    texts = ("<think>", "\n", "Hm", ", a <", "b", "\n", "</th", "ink>", "\n", "Yes")
    pieces = [stream.push(text) for text in texts]
    assert [piece.reasoning for piece in pieces] == ["", "\n", "Hm", ", a ", "<b", "\n", *[""] * 4]
    assert [piece.content for piece in pieces] == [*[""] * 9, "\nYes"]


@pytest.mark.parametrize(
    ("begun", "text", "always", "says_so"),
    [
        # An answer that says nothing of thoughts is all of them, or none.
        (None, "The answer", True, False),
        (None, "3 + 9 = 12</think>\n\nSo", False, False),
        (None, " \n", None, None),
        (None, "<think>\nThe user", True, True),
        (None, "\n<think>3 + 9 = 12</think>\n\nThe answer", False, False),
        # Of marks in the middle of a text, only the end of thoughts is one.
        (None, "<think>a</think> and <think>", False, False),
        (True, "The user", True, True),
        (True, "<think>The user", True, True),
        (True, "so.</think>Yes", False, False),
        (True, "", True, True),
        (False, "Yes", False, False),
        (False, "Yes <think>", False, False),
        (False, "", False, False),
        # Behind thoughts that the template left empty.
        (False, "<think>The user", True, True),
    ],
)
def test_what_an_answer_began_is_left_open_or_over(
    begun: bool | None, text: str, always: bool | None, says_so: bool | None
) -> None:
    assert DEEPSEEK_R1.is_left_open(text, begun=begun) is always
    assert QWEN3.is_left_open(text, begun=begun) is says_so


@pytest.mark.parametrize(
    ("text", "begun"),
    [
        ("<|assistant|>", None),
        ("<|assistant|></think>", False),
        ("<think>Hm", True),
        ("<think></think>\n", False),
        ("<think></think><think>", True),
    ],
)
def test_the_last_mark_says_where_a_text_ends(text: str, begun: bool | None) -> None:
    assert thoughts_begun(text) is begun
