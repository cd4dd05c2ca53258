from __future__ import annotations

import json
from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError, PagemeshError, UnsupportedError
from pagemesh.router.openai.chat_messages import MAX_MESSAGES
from pagemesh.router.openai.chat_request import ChatRequest, parse_chat_request

USER = {"role": "user", "content": "Hi"}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat_request(json.dumps({"messages": [USER], **fields}).encode())


def test_a_minimal_request_leaves_everything_to_the_defaults() -> None:
    request = parse()
    assert request.messages[0].for_template() == {"role": "user", "content": "Hi"}
    assert request.model is None
    assert request.temperature is None
    assert request.token_limit == ("max_tokens", None)
    assert request.stop_strings == ()
    assert not request.include_usage


def test_every_field_is_read() -> None:
    request = parse(
        model="demo",
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=-1,
        seed=-3,
        stop="\n",
        stop_token_ids=[5],
        min_tokens=2,
        ignore_eos=True,
        n=16,
        stream=True,
        stream_options={"include_usage": True},
        priority=-1,
    )
    assert (request.model, request.max_tokens, request.temperature) == ("demo", 7, 0.0)
    assert (request.top_p, request.top_k, request.seed) == (0.5, -1, -3)
    assert (request.stop_strings, request.stop_token_ids) == (("\n",), [5])
    assert (request.min_tokens, request.ignore_eos, request.n) == (2, True, 16)
    assert (request.include_usage, request.priority) == (True, -1)


def test_the_newer_limit_wins() -> None:
    request = parse(max_tokens=7, max_completion_tokens=8)
    assert request.token_limit == ("max_completion_tokens", 8)


def test_null_is_as_good_as_absent() -> None:
    names = ["model", "max_tokens", "temperature", "stop", "n", "stream", "stream_options", "seed"]
    assert parse(**dict.fromkeys(names)) == parse()


def test_text_parts_stay_apart_and_developers_are_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = parse(
        messages=[
            {"role": "developer", "content": parts, "name": "ann"},
            {"role": "assistant", "content": ""},
            USER,
        ]
    )
    assert [message.for_template() for message in request.messages] == [
        {"role": "system", "content": parts, "name": "ann"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Hi"},
    ]


def test_fields_that_change_nothing_are_accepted() -> None:
    ignored = {
        "safety_identifier": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
    }
    assert parse(**ignored) == parse()


def test_a_whole_number_may_be_written_with_a_point() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    request = parse(max_tokens=16.0, n=2.0, stop_token_ids=[1, 2.0], tools=[tool], seed=-3.0)
    assert (request.max_tokens, request.n, request.seed) == (16, 2, -3)
    assert request.stop_token_ids == [1, 2]
    assert all(type(number) is int for number in request.stop_token_ids)
    for fault in (
        {"max_tokens": 16.5},
        {"max_tokens": "16.5"},
        {"n": True},
        {"n": 0.0},
        {"n": 1e300},
        {"n": "1" * 30},
    ):
        with pytest.raises(InvalidRequestError, match=rf"^{next(iter(fault))} is "):
            parse(**fault)


def test_numbers_and_truth_may_be_written_as_vllm_takes_them() -> None:
    request = parse(
        max_tokens="4", n=" 2 ", top_k="-1", seed="9223372036854775807", stop_token_ids=["5"],
        temperature="0.5", top_p="1e-1", stream="True", ignore_eos=0,
        stream_options={"include_usage": 1},
    )  # fmt: skip
    assert (request.max_tokens, request.n, request.top_k) == (4, 2, -1)
    assert (request.seed, request.stop_token_ids) == (2**63 - 1, [5])
    assert (request.temperature, request.top_p) == (0.5, 0.1)
    assert (request.stream, request.ignore_eos, request.include_usage) == (True, False, True)
    assert parse(max_tokens="16.0").max_tokens == 16
    for fault in (
        {"temperature": "nan"},
        {"temperature": "1e999"},
        {"max_tokens": "0x10"},
        {"stream": "maybe"},
        {"stream": 2},
        {"user": 5},
    ):
        with pytest.raises(InvalidRequestError, match=rf"^{next(iter(fault))} is "):
            parse(**fault)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"messages": [}', b'{"temperature": NaN}', b'{"user": "\xff"}', b"[" * 500],
)
def test_broken_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="the body is not valid JSON: "):
        parse_chat_request(body)


def test_a_body_of_which_nothing_arrived_is_refused_with_the_likely_reason() -> None:
    with pytest.raises(
        InvalidRequestError, match="it is empty, or compressed otherwise than conte"
    ):
        parse_chat_request(b"")


@pytest.mark.parametrize("body", [b"[]", b"5", b'"text"', b"null"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="the body must be a JSON object, not"):
        parse_chat_request(body)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "messages is []: "),
        ({"messages": "Hi"}, "messages", 'messages is "Hi": '),
        ({"messages": None}, "messages", "messages is null: "),
        ({"messages": ["Hi"]}, "messages[0]", 'messages[0] is "Hi": '),
        (
            {"messages": [USER, {"role": "", "content": ""}]},
            "messages[1].role",
            'messages[1].role is "": ',
        ),
        ({"messages": [{"role": 1, "content": ""}]}, "messages[0].role", "messages[0].role is 1"),
        ({"messages": [{"content": ""}]}, "messages[0].role", "messages[0].role is missing"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content is missing"),
        (
            {"messages": [{"role": "user", "content": None}]},
            "messages[0].content",
            "messages[0].content is null",
        ),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "content is []: "),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "messages[0].content[0].text is missing",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell", "text": ""}]}]},
            "messages[0].content[0].type",
            'messages[0].content[0].type is "smell": ',
        ),
        ({"model": 5}, "model", "model is 5: "),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0: "),
        ({"max_tokens": -1}, "max_tokens", "max_tokens is -1: "),
        ({"max_tokens": "ten"}, "max_tokens", 'max_tokens is "ten": '),
        ({"max_tokens": 1.5}, "max_tokens", "max_tokens is 1.5: "),
        ({"max_tokens": True}, "max_tokens", "max_tokens is true: "),
        ({"max_tokens": 10**20}, "max_tokens", "max_tokens is 100000000000000000000: "),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens is 0: "),
        ({"min_tokens": -1}, "min_tokens", "min_tokens is -1: "),
        ({"temperature": -0.1}, "temperature", "temperature is -0.1: "),
        ({"temperature": 2.1}, "temperature", "temperature is 2.1: "),
        ({"temperature": "hot"}, "temperature", 'temperature is "hot": '),
        ({"temperature": True}, "temperature", "temperature is true: "),
        ({"top_p": -0.1}, "top_p", "top_p is -0.1: "),
        ({"top_p": 1.1}, "top_p", "top_p is 1.1: "),
        ({"top_k": -2}, "top_k", "top_k is -2: "),
        ({"seed": 2**63}, "seed", "seed is 9223372036854775808: "),
        ({"seed": 0.5}, "seed", "seed is 0.5: "),
        ({"n": 0}, "n", "n is 0: "),
        ({"stop": ""}, "stop", 'stop is "": '),
        ({"stop": ["a", ""]}, "stop[1]", 'stop[1] is "": '),
        ({"stop": ["a", 5]}, "stop[1]", "stop[1] is 5: "),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "stop_token_ids[0] is -1: "),
        ({"ignore_eos": "yes"}, "ignore_eos", 'ignore_eos is "yes": '),
        ({"stream": 2}, "stream", "stream is 2: "),
        ({"stream_options": []}, "stream_options", "stream_options is []: "),
        ({"stream_options": {"include_usage": True}}, "stream_options", "when stream is true"),
        (
            {"stream": True, "stream_options": {"include_usage": 2}},
            "stream_options.include_usage",
            "stream_options.include_usage is 2: ",
        ),
        ({"priority": 2**31}, "priority", "priority is 2147483648: "),
    ],
)
def test_a_faulty_field_is_named_with_its_value(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        parse(**fields)
    assert error.value.param == param
    assert message in error.value.message


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages is missing$"):
        parse_chat_request(b"{}")


def test_values_are_shown_only_in_part() -> None:
    with pytest.raises(InvalidRequestError) as error:
        parse(messages="x" * 10_000)
    assert len(error.value.message) < 300


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "function", "content": "5", "name": "f"}, "messages[0].role"),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]},
            "messages[0].tool_calls[0].type",
        ),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
        ),
    ],
)
def test_messages_that_only_other_models_understand_are_refused(
    message: dict[str, Any], param: str
) -> None:
    with pytest.raises(UnsupportedError) as error:
        parse(messages=[message])
    assert error.value.param == param


def test_more_messages_than_fit_into_any_context_are_refused() -> None:
    assert len(parse(messages=[USER] * MAX_MESSAGES).messages) == 16_384
    with pytest.raises(InvalidRequestError, match="at most 16384") as caught:
        parse(messages=[USER] * (MAX_MESSAGES + 1))
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("fields", "num_logprobs"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
    ids=str,
)
def test_log_probabilities_are_asked_for_with_two_fields(
    fields: dict[str, Any], num_logprobs: int | None
) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()
    assert parse_chat_request(body).num_logprobs == num_logprobs


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    ],
    ids=str,
)
def test_faulty_fields_of_log_probabilities_are_named(fields: dict[str, Any], param: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()
    with pytest.raises(PagemeshError) as error:
        parse_chat_request(body)
    assert error.value.param == param
