from __future__ import annotations

import pytest

from pagemesh.errors import ConfigError
from pagemesh.router.parsers.factory import make_parser, parser_markers
from pagemesh.router.parsers.interface import ParsedPiece


def test_without_parsers_everything_is_content() -> None:
    parser = make_parser(None, None)
    assert parser.push("<think>a</think><tool_call>") == ParsedPiece("<think>a</think><tool_call>")
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
