from __future__ import annotations

import pytest

from pagemesh.errors import ConfigError
from pagemesh.router.parsers.factory import (
    make_parser,
    parser_markers,
    reasoning_parser_names,
    tool_parser_names,
)
from pagemesh.router.parsers.interface import ParsedPiece, Span


def test_without_parsers_everything_is_content() -> None:
    parser = make_parser(None, None)
    text = "<think>a</think><tool_call>"
    assert parser.push(text) == ParsedPiece(text, content_spans=(Span(0, 27),))
    assert parser.push("é") == ParsedPiece("é", content_spans=(Span(27, 28),))
    assert parser.finish() == ParsedPiece()


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        ConfigError,
        match='tool-call-parser is "pythonic", but it must be one of hermes, llama3_json,',
    ):
        make_parser("pythonic", None)
    with pytest.raises(
        ConfigError, match='reasoning-parser is "granite", but it must be one of deepseek_r1, qwen3'
    ):
        parser_markers(None, "granite")


def test_names_are_vllms() -> None:
    assert tool_parser_names() == (
        "hermes",
        "llama3_json",
        "llama4_json",
        "mistral",
        "deepseek_v3",
        "deepseek_v31",
    )
    assert reasoning_parser_names() == ("deepseek_r1", "qwen3")


def test_markers_are_those_of_the_parsers_that_are_used() -> None:
    assert parser_markers(None, None) == frozenset()
    assert parser_markers("mistral", None) == {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}
    assert parser_markers("hermes", "qwen3") == {
        *("<tool_call>", "</tool_call>", "<think>", "</think>"),
    }
    assert "<|python_tag|>" in parser_markers("llama3_json", "deepseek_r1")


def test_ids_are_random() -> None:
    ids = {
        delta.call_id
        for _ in range(2)
        for delta in make_parser("mistral", None).push("[TOOL_CALLS]f{}[TOOL_CALLS]g{}").tool_calls
    }
    assert len(ids) == 4
