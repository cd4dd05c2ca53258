"""One choice's deltas, taken apart: what each parser finds, and how the choice ends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pagemesh.router.chat.choice_reader import ChoiceReader
from pagemesh.router.chat.delta import ChatDelta
from pagemesh.router.generation.request import ChoiceDelta, StopReason
from pagemesh.router.parsers.factory import make_parser
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.tokenizer.detokenizer import TokenPlace

ONE = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ODD = ONE.replace('{"a": 1}', '{"a": "}\\"", b: [1,]}')
HALF = ONE.partition("1}")[0]
TWO = ONE + "\n" + ONE.replace("add", "sub")
CALLS = [("add", {"a": 1}), ("sub", {"a": 1})]


def reader(**options: Any) -> ChoiceReader:
    return ChoiceReader(make_parser("hermes", "qwen3"), **options)


def deltas(text: str, size: int, stop: StopReason = StopReason.STOP) -> list[ChoiceDelta]:
    """Pieces of `size` characters, a token each, and the end without text."""
    starts = range(0, len(text), size)
    pieces = [ChoiceDelta(0, text[start : start + size], (start,)) for start in starts]
    return [*pieces, ChoiceDelta(0, "", (999,), stop)]


def calls_of(found: list[ChatDelta]) -> list[tuple[str, Any]]:
    """Names and arguments; each call begins with its id and name, and has one index."""
    calls: list[list[str]] = []
    for call in (call for delta in found for call in delta.tool_calls):
        if call.index == len(calls):
            assert call.call_id and call.name
            calls.append([call.name, ""])
        else:
            assert call.call_id is None and call.name is None
        calls[call.index][1] += call.arguments
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_thoughts_content_and_calls_are_told_apart_however_the_text_is_cut(size: int) -> None:
    read = reader()
    found = [read.push(delta) for delta in deltas("<think>hm</think>Well: " + TWO, size)]
    assert "".join(delta.reasoning for delta in found) == "hm"
    assert "".join(delta.content for delta in found).strip() == "Well:"
    assert calls_of(found) == CALLS
    assert [delta.stop_reason for delta in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1].stop_reason is StopReason.TOOL_CALLS


def test_a_whole_answer_has_one_delta_for_each_call() -> None:
    whole = reader().push(ChoiceDelta(0, TWO[:-12], (1,), StopReason.STOP))
    assert calls_of([whole]) == CALLS
    assert [call.index for call in whole.tool_calls] == [0, 1]


def test_tokens_come_with_their_own_delta_and_those_of_content_with_their_text() -> None:
    score, place = TokenLogprobs(7, -1.0, 1, (), ()), TokenPlace(0, 6)
    read = reader()
    held = read.push(ChoiceDelta(0, "<tool_", (7,), logprobs=(score,), places=(place,)))
    assert held == ChatDelta(0, token_ids=(7,), logprobs=(score,))
    end = read.push(ChoiceDelta(0, "x", (8,), StopReason.STOP, stop_string="y"))
    assert end == ChatDelta(
        0,
        "<tool_x",
        token_ids=(8,),
        stop_reason=StopReason.STOP,
        stop_string="y",
        content_logprobs=(score,),
    )


def scored(text: str, size: int) -> list[ChoiceDelta]:
    """As `deltas`, each token with a log probability that names its first character."""
    found = []
    for delta in deltas(text, size):
        (first,), length = delta.token_ids, len(delta.text)
        place = TokenPlace(first, first + length) if length else TokenPlace(len(text), len(text))
        scores = (TokenLogprobs(first, -1.0, 1),)
        found.append(replace(delta, logprobs=scores, places=(place,)))
    return found


@pytest.mark.parametrize("size", [1, 3, 5, 1000])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>hm</think>Well: " + ONE + "\n yes", ("Well: ", "\n yes")),
        ("Well <tool_call> is none", ("Well <tool_call> is none",)),
        (f"<think>{ONE}\n</think>{ONE}", ("\n</think>",)),
        ("  ", ("  ",)),
        ("<think>hm", ()),
    ],
    ids=["content around a call", "no call", "a call in thoughts", "blanks", "thoughts alone"],
)
def test_scores_of_content_are_those_of_tokens_with_a_character_of_it(
    text: str, parts: tuple[str, ...], size: int
) -> None:
    read = reader()
    found = [read.push(delta) for delta in scored(text, size)]
    inside = {text.index(part) + i for part in parts for i in range(len(part))}
    assert [each.token_id for delta in found for each in delta.content_logprobs] == [
        start for start in range(0, len(text), size) if inside & set(range(start, start + size))
    ]
    # Each comes with its text, or behind it.
    assert [bool(delta.content) for delta in found if delta.content_logprobs] == [True] * sum(
        bool(delta.content_logprobs) for delta in found
    )


def test_a_marker_that_is_followed_by_another_one_has_its_own_place() -> None:
    read = ChoiceReader(make_parser("mistral", None))
    found = [read.push(delta) for delta in scored('[TOOL_CALLS] [TOOL_CALLS]add{"a": 1}', 1)]
    assert [each.token_id for delta in found for each in delta.content_logprobs] == [*range(13)]


@pytest.mark.parametrize(
    ("text", "stop", "named", "ends"),
    [
        pytest.param("no call", StopReason.STOP, False, StopReason.STOP, id="no-call"),
        pytest.param(ONE, StopReason.STOP, False, StopReason.TOOL_CALLS, id="a-call"),
        pytest.param(ONE, StopReason.STOP, True, StopReason.STOP, id="the-call-that-was-named"),
        # A client must not run a call that was cut off.
        pytest.param(
            HALF, StopReason.STOP, False, StopReason.STOP, id="half-a-call-and-a-stop-string"
        ),
        pytest.param(
            TWO[: len(ONE) + len(HALF) + 1],
            StopReason.STOP,
            False,
            StopReason.STOP,
            id="a-call-and-a-half",
        ),
        pytest.param(
            ONE.partition("\n</")[0],
            StopReason.STOP,
            False,
            StopReason.TOOL_CALLS,
            id="a-call-without-its-end",
        ),
        pytest.param(
            ODD, StopReason.STOP, False, StopReason.TOOL_CALLS, id="a-call-that-is-no-json"
        ),
        pytest.param(HALF, StopReason.LENGTH, False, StopReason.LENGTH, id="half-a-call"),
    ],
)
def test_how_a_choice_ends(text: str, stop: StopReason, named: bool, ends: StopReason) -> None:
    read = reader(is_named=named)
    found = [read.push(delta) for delta in deltas(text, 5, stop)]
    assert any(delta.tool_calls for delta in found) is (text != "no call")
    assert found[-1].stop_reason is ends
    assert found[-1].cuts_call is text.endswith(HALF[-6:])


def test_only_the_first_call_is_kept_where_calls_are_not_parallel() -> None:
    read = reader(keeps_one_call=True)
    assert calls_of([read.push(delta) for delta in deltas(TWO, 4)]) == CALLS[:1]


def test_thoughts_are_left_out_if_nobody_wants_them() -> None:
    read = reader(shows_reasoning=False)
    found = [read.push(delta) for delta in deltas("<think>hm</think>Yes", 3)]
    assert [delta.reasoning for delta in found] == [""] * len(found)
    assert "".join(delta.content for delta in found) == "Yes"


def test_all_else_is_passed_on() -> None:
    given = ChoiceDelta(3, "a", (5, 6), StopReason.STOP, None, 6, (), ())
    assert reader().push(given) == ChatDelta(
        3, "a", token_ids=(5, 6), stop_reason=StopReason.STOP, stop_token_id=6
    )
    score = TokenLogprobs(7, -1.0, 1, (), ())
    assert reader().push(replace(given, prompt_logprobs=(score,))).prompt_logprobs == (score,)


@pytest.mark.parametrize("text", [TWO, HALF], ids=["two", "half"])
def test_calls_that_are_dropped_leave_nothing_behind(text: str) -> None:
    read = reader(drops_calls=True)
    found = [read.push(delta) for delta in deltas("<think>hm</think>Well: " + text, 3)]
    assert calls_of(found) == []
    assert "".join(delta.content for delta in found).strip() == "Well:"
    assert (found[-1].stop_reason, found[-1].cuts_call) == (StopReason.STOP, False)


def test_places_of_an_answer_that_is_gone_on_with_are_those_of_what_is_new() -> None:
    read = ChoiceReader(make_parser("hermes", None, written="Well, "))
    pieces = scored("this: " + ONE + " so", 1)
    whole = ChoiceDelta(
        0,
        "this: " + ONE + " so",
        stop_reason=StopReason.STOP,
        token_ids=tuple(each.token_ids[0] for each in pieces),
        logprobs=tuple(each.logprobs[0] for each in pieces),
        places=tuple(each.places[0] for each in pieces),
    )
    shown = [each.token_id for each in read.push(whole).content_logprobs]
    length = len("this: " + ONE)
    assert shown == [*range(6), *range(length, length + 3)]
