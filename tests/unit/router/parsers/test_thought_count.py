"""Tokens of thoughts: expected values are those that vLLM's parsers give, whose marks are one token each."""

from __future__ import annotations

import pytest

from pagemesh.router.parsers.thinking import thoughts_begun
from pagemesh.router.parsers.thought_count import make_thought_counter


def count(tokens: list[str], *, parser: str = "qwen3", prompt: str = "", at_once: int = 1) -> int:
    """Of an answer of these tokens, so many of which come together."""
    counter = make_thought_counter(
        "hermes", parser, tokens.__getitem__, begun=thoughts_begun(prompt)
    )
    assert counter is not None
    for first in range(0, len(tokens), at_once):
        counter.push(range(first, min(first + at_once, len(tokens))))
    return counter.num_tokens


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["<think>", "a", "b", "</think>", "c"], 2),
        (["\n", "<think>", "a", "</think>", "c"], 1),
        (["<", "thi", "nk", ">", "a", "b", "<", "/think", ">", "c"], 2),
        (["<think>", "a", "<", "b", "</", "think", ">", "c"], 3),
        (["<think>", "abcdefgh", "ij", "<", "/", "th", "ink", ">", "c"], 2),
        # A token of a thought's end and of the mark's beginning is the thought's.
        (["<think>", "a", ".</", "think>", "c"], 2),
        (["<think>\n", "a", "</think>\n", "c"], 1),
        (["<think>", "</think>", "c"], 0),
        # Cut off: all of it is thoughts, a beginning of a mark as well.
        (["<think>", "a", "b"], 2),
        (["<think>", "a", "</", "thi"], 3),
        (["<th"], 0),
        # A call ends the thoughts.
        (["<think>", "a", "<tool_call>", "b"], 1),
        # Only an answer that begins with the mark has thoughts.
        (["c", "<think>", "a", "</think>"], 0),
        (["c"], 0),
        ([], 0),
    ],
)
def test_tokens_between_the_marks_count(tokens: list[str], expected: int) -> None:
    for at_once in range(1, len(tokens) + 2):
        assert count(tokens, at_once=at_once) == expected


@pytest.mark.parametrize(
    ("tokens", "parser", "prompt", "expected"),
    [
        (["a", "b", "</think>", "c"], "qwen3", "x<think>\n", 2),
        (["a", "b", "</think>", "c"], "deepseek_r1", "", 2),
        (["<think>", "a", "</think>", "c"], "deepseek_r1", "", 1),
        (["</think>", "c"], "deepseek_r1", "", 0),
        ([" ", "a", "b"], "deepseek_r1", "", 3),
        (["<", "a"], "deepseek_r1", "", 2),
        (["a", "<tool_call>", "</think>", "c"], "deepseek_r1", "", 2),
        (["<think>", "a", "</think>"], "qwen3", "<think>\n\n</think>\n\n", 0),
    ],
)
def test_thoughts_may_have_begun_in_the_prompt(
    tokens: list[str], parser: str, prompt: str, expected: int
) -> None:
    for at_once in range(1, len(tokens) + 1):
        assert count(tokens, parser=parser, prompt=prompt, at_once=at_once) == expected


def test_a_long_thought_is_not_kept() -> None:
    counter = make_thought_counter(None, "deepseek_r1", lambda token_id: "abc")
    assert counter is not None
    counter.push([0] * 10_000)
    assert counter.num_tokens == 10_000
    assert len(counter._starts) < 20


def test_without_a_parser_nobody_counts() -> None:
    assert make_thought_counter("hermes", None, str) is None
