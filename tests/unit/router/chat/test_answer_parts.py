"""An answer's deltas as parts that begin, grow and end."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pagemesh.router.chat.answer_parts import AnswerParts, Begun, Grown, PartKind
from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import StopReason
from pagemesh.router.parsers.interface import ToolCallDelta
from pagemesh.sampling.logprobs import TokenLogprobs

END = ChatDelta(0, stop_reason=StopReason.STOP)


def call(index: int, arguments: str, name: str | None = None) -> ChatDelta:
    call_id = f"call-{index}" if name else None
    return ChatDelta(0, tool_calls=(ToolCallDelta(index, call_id, name, arguments),))


def score(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -1.0, 1, (), ())


def told(deltas: Iterable[ChatDelta]) -> list[str]:
    """The changes in short: what begins and ends with its index, and what is added."""
    found = []
    answer = AnswerParts()
    for delta in deltas:
        for change in answer.push(delta):
            part = change.part
            if isinstance(change, Begun):
                found.append(f"+{part.index} {part.kind.value} {part.name}".strip())
            elif isinstance(change, Grown):
                found.append(change.text)
            else:
                found.append(f"-{part.index} {part.text}")
    return found


def test_parts_follow_each_other_and_each_ends_before_the_next_begins() -> None:
    deltas = [
        ChatDelta(0, reasoning="Let me"),
        ChatDelta(0, reasoning=" see", content="Well, "),
        ChatDelta(0, content="this:"),
        call(0, "", "look"),
        call(0, '{"a": 1}'),
        call(1, "{}", "go"),
        END,
    ]
    assert told(deltas) == [
        *("+0 reasoning", "Let me", " see", "-0 Let me see"),
        *("+1 text", "Well, ", "this:", "-1 Well, this:"),
        *("+2 tool_call look", '{"a": 1}', '-2 {"a": 1}'),
        *("+3 tool_call go", "{}", "-3 {}"),
    ]


def test_an_answer_of_nothing_has_no_parts() -> None:
    assert told([ChatDelta(0, token_ids=(1,)), END]) == []


@pytest.mark.parametrize(
    ("deltas", "changes"),
    [
        pytest.param(
            [
                ChatDelta(0, reasoning="so"),
                ChatDelta(0, content="\n\n"),
                call(0, "{}", "go"),
                ChatDelta(0, content="\n"),
                END,
            ],
            ["+0 reasoning", "so", "-0 so", "+1 tool_call go", "{}", "-1 {}"],
            id="are-no-part-beside-others",
        ),
        pytest.param(
            [
                ChatDelta(0, content="\n"),
                ChatDelta(0, content=" a"),
                ChatDelta(0, content=" "),
                END,
            ],
            ["+0 text", "\n a", " ", "-0 \n a "],
            id="belong-to-the-text-behind-them",
        ),
        pytest.param(
            [ChatDelta(0, content="\n"), ChatDelta(0, content=" "), END],
            ["+0 text", "\n ", "-0 \n "],
            id="are-all-of-an-answer-that-has-nothing-else",
        ),
    ],
)
def test_blanks(deltas: list[ChatDelta], changes: list[str]) -> None:
    assert told(deltas) == changes


def test_log_probabilities_are_those_of_the_text_alone() -> None:
    answer = AnswerParts()
    deltas = [
        ChatDelta(0, reasoning="hm", logprobs=(score(1), score(2))),
        # Blanks are a text's beginning, or are none of it.
        ChatDelta(0, content="\n", content_logprobs=(score(3),)),
        call(0, "{}", "go"),
        ChatDelta(0, content=" ", content_logprobs=(score(4),)),
        ChatDelta(0, content="é", content_logprobs=(score(5), score(6))),
        ChatDelta(0, logprobs=(score(7),), stop_reason=StopReason.STOP),
    ]
    grown = [
        (change.text, [each.token_id for each in change.logprobs])
        for delta in deltas
        for change in answer.push(delta)
        if isinstance(change, Grown)
    ]
    assert grown == [("hm", []), ("{}", []), (" é", [4, 5, 6])]
    assert [each.token_id for each in answer.parts[2].logprobs] == [4, 5, 6]
    assert answer.parts[2].kind is PartKind.TEXT
