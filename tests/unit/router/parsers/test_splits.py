"""However an answer is cut into pieces, and wherever it ends, the same is found in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.router.parsers.answers import ANSWERS, NO_CALLS, Parsed, new_parser, parsed

TEXTS = sorted({(answer.parser, answer.text) for answer in ANSWERS} | set(NO_CALLS))
THOUGHT = [
    (parser, "qwen3", f"<think>\nHm, <b> or </b>?\n</think>\n\n{text}") for parser, text in TEXTS
]
CASES = [*((parser, None, text) for parser, text in TEXTS), *THOUGHT]
FRAGMENTS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<tool",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
    ),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "```json\n",
    ),
    *("<think>", "</think>", "<", "[", "{", "}", "]", ",", ":", ";", '"', "\\", " ", "\n", "ü😀"),
    *(
        '{"name": "f"',
        ', "arguments": {',
        '"parameters": {"a": 1}',
        '"name"',
        '"id": "x"',
        "f",
        "```",
    ),
)
PARSERS = ("hermes", "llama3_json", "mistral", "deepseek_v3")


def whole(parser: str | None, reasoning: str | None, text: str) -> Parsed:
    return parsed(new_parser(parser, reasoning), [text])


@pytest.mark.parametrize(("parser", "reasoning", "text"), CASES)
def test_every_cut_in_two_changes_nothing(parser: str, reasoning: str | None, text: str) -> None:
    expected = whole(parser, reasoning, text)
    for at in range(len(text) + 1):
        assert parsed(new_parser(parser, reasoning), [text[:at], text[at:]]) == expected
    assert parsed(new_parser(parser, reasoning), text) == expected


@pytest.mark.parametrize(("parser", "text"), TEXTS)
def test_wherever_an_answer_ends_nothing_is_lost_or_made_up(parser: str, text: str) -> None:
    full = whole(parser, None, text)
    for end in range(len(text)):
        cut = whole(parser, None, text[:end])
        if not cut.calls:
            assert cut.content == text[:end]
            continue
        # All calls but the last are as in the whole, and that one as far as it goes.
        assert cut.calls[:-1] == full.calls[: len(cut.calls) - 1]
        name, arguments = full.calls[len(cut.calls) - 1]
        assert cut.calls[-1][0] == name
        # An opening bracket at the end may be a marker's beginning as well.
        assert arguments.startswith(cut.calls[-1][1].removesuffix("["))
        # The content is the whole's, and then the beginning of what had not become a call.
        assert any(
            full.content.startswith(cut.content[:at]) and text[:end].endswith(cut.content[at:])
            for at in range(len(cut.content) + 1)
        )


@given(data=st.data())
def test_random_cuts_change_nothing(data: st.DataObject) -> None:
    parser, reasoning, text = data.draw(st.sampled_from(CASES))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=20)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(new_parser(parser, reasoning), pieces) == whole(parser, reasoning, text)


@given(
    parser=st.sampled_from(PARSERS),
    reasoning=st.sampled_from((None, "qwen3", "deepseek_r1")),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=25),
)
def test_whatever_is_written_the_cuts_change_nothing(
    parser: str, reasoning: str | None, fragments: list[str]
) -> None:
    text = "".join(fragments)
    expected = whole(parser, reasoning, text)
    assert parsed(new_parser(parser, reasoning), fragments) == expected
    assert parsed(new_parser(parser, reasoning), text) == expected
    if reasoning is None and not expected.calls:
        assert expected.content == text
