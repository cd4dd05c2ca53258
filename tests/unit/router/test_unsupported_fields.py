from __future__ import annotations

from typing import Any

import pytest

from pagemesh.errors import UnsupportedError
from pagemesh.router.openai.unsupported import NEUTRAL_VALUES, refuse_foreign, refuse_unsupported


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{}]}, "functions"),
        ({"suffix": "end"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"thinking_token_budget": 10}, "thinking_token_budget"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
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
        {"something_new": 5},
    ],
)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    refuse_unsupported(fields)


def test_fields_of_the_other_endpoint_are_refused_by_name() -> None:
    refuse_foreign({"best_of": 1, "top_logprobs": 0, "n": 2}, "best_of", "top_logprobs")
    with pytest.raises(
        UnsupportedError, match=r"best_of is not supported here \(it is 3\)"
    ) as error:
        refuse_foreign({"best_of": 3}, "top_logprobs", "best_of")
    assert error.value.param == "best_of"
