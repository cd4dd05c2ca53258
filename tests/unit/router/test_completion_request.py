from __future__ import annotations

import json
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError, PagemeshError, UnsupportedError
from pagemesh.router.openai.completion_request import (
    CompletionRequest,
    parse_completion_request,
)


def parse(**fields: Any) -> CompletionRequest:
    return parse_completion_request(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", ["Hi"]),
        (["Hi", "Ho"], ["Hi", "Ho"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([0], [[0]]),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: list[Any]) -> None:
    assert parse(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "param", "message"),
    [
        (5, "prompt", "prompt is 5: "),
        ({}, "prompt", "prompt is {}: "),
        (None, "prompt", "prompt is null: "),
        ([], "prompt", "prompt is an empty list"),
        ([[]], "prompt", "prompt is an empty list"),
        (["a", 5], "prompt", 'prompt is ["a", 5]: '),
        ([-1], "prompt[0]", "prompt[0] is -1: "),
        ([1.5], "prompt[0]", "prompt[0] is 1.5: "),
        ([True], "prompt[0]", "prompt[0] is true: "),
        ([[1], [2, -7]], "prompt[1][1]", "prompt[1][1] is -7: "),
        ([["a"]], "prompt[0][0]", 'prompt[0][0] is "a": '),
        (["a"] * 129, "prompt", "prompt has 129 entries, but at most 128 are allowed"),
    ],
)
def test_a_faulty_prompt_is_named_with_its_value(prompt: Any, param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        parse(prompt=prompt)
    assert error.value.param == param
    assert message in error.value.message


def test_a_missing_prompt_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt is missing$"):
        parse()


def test_many_token_ids_are_one_prompt() -> None:
    assert parse(prompt=list(range(500))).prompts == [list(range(500))]


def test_what_is_not_supported_is_refused() -> None:
    with pytest.raises(UnsupportedError) as error:
        parse(prompt="Hi", use_beam_search=True)
    assert error.value.param == "use_beam_search"


def test_a_prompt_may_be_all_that_is_given_where_it_is_echoed() -> None:
    assert parse(prompt="Hi", echo=True, max_tokens=0).max_tokens == 0
    with pytest.raises(InvalidRequestError, match="max_tokens is 0, but must be at least 1 unless"):
        parse(prompt="Hi", max_tokens=0)


@pytest.mark.parametrize(
    ("fields", "num"),
    [
        ({"logprobs": 3}, None),
        ({"logprobs": 3, "echo": True}, 3),
        ({"prompt_logprobs": 2}, 2),
        ({"prompt_logprobs": 2, "logprobs": 3}, 2),
        ({"prompt_logprobs": 2, "logprobs": 3, "echo": True}, 3),
        ({"prompt_logprobs": 2, "echo": True}, 2),
        ({"echo": True}, None),
    ],
    ids=str,
)
def test_an_echo_with_logprobs_looks_at_the_prompt(fields: dict[str, Any], num: int | None) -> None:
    assert parse(prompt="Hi", **fields).num_prompt_logprobs == num


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, (1, None)),
        ({"n": 3, "logprobs": 0}, (3, 0)),
        ({"n": 2, "best_of": 5, "logprobs": 20}, (5, 20)),
        ({"n": 2, "best_of": 2, "stream": True}, (2, None)),
    ],
    ids=str,
)
def test_answers_and_log_probabilities_are_counted(
    fields: dict[str, Any], counts: tuple[int, int | None]
) -> None:
    request = parse_completion_request(json.dumps({"prompt": "x", **fields}).encode())
    assert (request.num_answers, request.num_logprobs) == counts


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
    ids=str,
)
def test_faulty_counts_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(PagemeshError) as error:
        parse_completion_request(json.dumps({"prompt": "x", **fields}).encode())
    assert error.value.param == param
