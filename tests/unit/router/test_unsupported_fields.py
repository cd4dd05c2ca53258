from __future__ import annotations

from typing import Any

import pytest

from pagemesh.errors import UnsupportedError
from pagemesh.router.openai.unsupported import NEUTRAL_VALUES, refuse_unsupported

TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"suffix": "end"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        (
            {"stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        refuse_unsupported(fields)
    assert error.value.param == param
    assert param.rpartition(".")[2] in error.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {name: value for name, values in NEUTRAL_VALUES.items() for value in values[:1]},
        {name: values[-1] for name, values in NEUTRAL_VALUES.items()},
        {"frequency_penalty": 0.5, "logit_bias": {"5": 1}, "logprobs": False},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [], "tool_choice": "auto"},
        {"best_of": 2, "n": 2},
        {"best_of": 1},
        {"something_new": 5},
    ],
)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    refuse_unsupported(fields)
