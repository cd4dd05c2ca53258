from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pagemesh.router.parsers.factory import parser_markers, tool_parser_names
from tests.unit.router.parsers.grammar_model import Model, new_model


@pytest.fixture(scope="module")
def models(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[bool, Model]]:
    """One for which all markers are text, and one with tokens for them."""
    markers = frozenset[str]().union(
        *(parser_markers(parser, "qwen3") for parser in tool_parser_names())
    )
    found = {
        False: new_model(demo_model, tmp_path_factory.mktemp("text"), [], []),
        True: new_model(
            demo_model,
            tmp_path_factory.mktemp("tokens"),
            special=sorted(markers - {"[ARGS]"}),
            other=["[ARGS]"],
        ),
    }
    yield found
    for model in found.values():
        model.compiler.close()
