from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pagemesh.client.requests import (
    Settings,
    detokenize_request,
    embed_request,
    generate_request,
    rerank_request,
    score_request,
    tokenize_request,
)
from pagemesh.client.results import Chunk, Completion, ToolCall, Usage, join_chunks
from pagemesh.errors import InternalError, InvalidRequestError
from pagemesh.messages import sampling_from_proto
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from pagemesh.sampling.structured.outputs import StructuredOutputs

USAGE = Usage(1, 2, 0)


def test_defaults_leave_the_choice_to_the_mesh() -> None:
    request = generate_request("Hi", {})
    assert request.WhichOneof("prompt") == "text"
    assert (request.text, request.model, list(request.stop)) == ("Hi", "", [])
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.0, 0)
    assert not request.use_seed


def test_every_setting_is_sent() -> None:
    settings: Settings = {
        "messages": [{"role": "user", "content": "Hi"}],
        "model": "demo",
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "seed": 2**64 - 1,
        "stop": ["a", "b"],
    }
    request = generate_request(None, settings)
    assert [(m.role, m.content) for m in request.chat.messages] == [("user", "Hi")]
    assert (request.model, list(request.stop), request.use_seed) == ("demo", ["a", "b"], True)
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0.5, 0.25)
    assert (sampling.top_k, sampling.seed) == (3, 2**64 - 1)


def test_every_sampling_setting_is_sent() -> None:
    settings: Settings = {
        "min_p": 0.1,
        "min_tokens": 2,
        "repetition_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 1.5,
        "logit_bias": {5: -2.5},
        "bad_words": ["x y"],
        "allowed_token_ids": [5, 6],
        "structured_outputs": StructuredOutputs.of(regex="a+"),
        "logprobs": 0,
        "prompt_logprobs": 3,
        "stop_token_ids": [7],
        "ignore_eos": True,
        "priority": -2,
    }
    request = generate_request("Hi", settings)
    assert request.priority == -2
    assert list(request.bad_words) == ["x y"]
    assert sampling_from_proto(request.sampling) == SamplingParams(
        structured_outputs=StructuredOutputs.of(regex="a+"),
        temperature=0.0,
        max_tokens=0,
        min_tokens=2,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=1.5,
        logit_bias={5: -2.5},
        allowed_token_ids=(5, 6),
        logprobs=0,
        prompt_logprobs=3,
        stop_token_ids=(7,),
        ignore_eos=True,
    )
    assert not generate_request("Hi", {}).sampling.HasField("logprobs")


def test_one_stop_string_is_not_taken_for_its_letters() -> None:
    assert list(generate_request("Hi", {"stop": "END"}).stop) == ["END"]


def test_a_seed_of_zero_is_a_seed() -> None:
    assert generate_request("Hi", {"seed": 0}).use_seed


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        (None, {}, "0 of prompt, messages, token_ids are given"),
        ("Hi", {"token_ids": [1]}, "2 of prompt, messages, token_ids are given"),
        ("Hi", {"max_tokens": 0}, "max_tokens is 0"),
        ("Hi", {"max_tokens": -1}, "out of range"),
        ("Hi", {"seed": -1}, "out of range"),
        (None, {"token_ids": [-1]}, "out of range"),
        (None, {"messages": [{"role": "user"}]}, r"messages\[0\] has no content"),
    ],
)
def test_what_cannot_be_sent_is_refused(prompt: str | None, settings: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        generate_request(prompt, settings)


def test_either_text_or_messages_are_tokenized() -> None:
    assert tokenize_request("Hi", {}).text == "Hi"
    request = tokenize_request(None, {"messages": [{"role": "user", "content": "Hi"}]})
    assert request.chat.messages[0].content == "Hi"
    with pytest.raises(InvalidRequestError, match="0 of text, messages are given"):
        tokenize_request(None, {})


def test_chunks_are_joined() -> None:
    chunks = [Chunk("a", (1,)), Chunk("b", (2, 3), "stop", USAGE)]
    assert join_chunks(chunks) == [Completion("ab", (1, 2, 3), "stop", USAGE)]


def test_log_probabilities_are_joined() -> None:
    first, second = TokenLogprobs(1, -0.5, 1), TokenLogprobs(2, -1.5, 2)
    chunks = [
        Chunk("a", (1,), logprobs=(first,), prompt_logprobs=(second,)),
        Chunk("b", (2,), "stop", USAGE, logprobs=(second,)),
    ]
    (answer,) = join_chunks(chunks)
    assert (answer.logprobs, answer.prompt_logprobs) == ((first, second), (second,))


def test_thoughts_calls_and_several_answers_are_joined() -> None:
    chunks = [
        Chunk("", (1,), reasoning="Hm"),
        Chunk("x", (9,), "length", index=1),
        Chunk("", (2,), reasoning=".", tool_calls=(ToolCall(0, "c", "f", "{"),)),
        Chunk("", (3,), tool_calls=(ToolCall(0, "", "", "}"), ToolCall(1, "d", "g", "{}"))),
        Chunk("", (), "tool_calls", USAGE),
    ]
    first, second = join_chunks(chunks)
    assert (first.reasoning, first.finish_reason, first.token_ids) == (
        "Hm.",
        "tool_calls",
        (1, 2, 3),
    )
    assert first.tool_calls == (ToolCall(0, "c", "f", "{}"), ToolCall(1, "d", "g", "{}"))
    assert second == Completion("x", (9,), "length", USAGE)
    with pytest.raises(InternalError):
        join_chunks([Chunk("x", (9,), index=1), *chunks[:1], chunks[-1]])


def test_an_answer_without_an_end_is_an_error() -> None:
    with pytest.raises(InternalError):
        join_chunks([Chunk("a", (1,))])
    with pytest.raises(InternalError):
        join_chunks([])


USER: Any = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("prompt", "settings", "param", "message"),
    [
        (
            "\ud800",
            {},
            "prompt",
            "prompt is not valid Unicode: surrogates not allowed at character 0",
        ),
        (5, {}, "prompt", "prompt is 5, which is of the wrong type"),
        ("a", {"temperature": "hot"}, "temperature", "temperature is 'hot', which is of the wrong"),
        ("a", {"top_k": 1.5}, "top_k", "top_k is 1.5, which is of the wrong type"),
        ("a", {"n": -1}, "n", "n is -1, which is out of range"),
        ("a", {"bad_words": "x"}, "bad_words", "bad_words is 'x', which is of the wrong type"),
        ("a", {"stop": ["\ud800"]}, "stop", "stop is not valid Unicode"),
        (
            "a",
            {"logit_bias": {"a": 1}},
            "logit_bias",
            "logit_bias is {'a': 1}, which is of the wrong",
        ),
        (
            "a",
            {"structured_outputs": "x"},
            "structured_outputs",
            "structured_outputs is 'x', which",
        ),
        (
            "a",
            {"temprature": 1},
            "temprature",
            "no setting 'temprature'; did you mean temperature?",
        ),
        ("a", {"zzz": 1}, "zzz", "there is no setting 'zzz'$"),
        (
            None,
            {"token_ids": ["a"]},
            "token_ids",
            r"token_ids is \['a'\], which is of the wrong type",
        ),
        (
            None,
            {"token_ids": ["x" * 200]},
            "token_ids",
            r"token_ids is \['x+…, which is of the wrong type",
        ),
        (None, {"messages": 5}, "messages", "messages is 5, which is of the wrong type"),
        (None, {"messages": [5]}, "messages[0]", r"messages\[0\] cannot be sent: "),
        (None, {"messages": [USER, {**USER, "content": "\ud800"}]}, "messages[1]", "surrogates"),
        (None, {"messages": [USER], "tools": 3}, "tools", "tools is 3, which is of the wrong type"),
        (None, {"messages": [USER], "tools": [3]}, "tools[0]", r"tools\[0\] cannot be sent: "),
        (
            None,
            {"messages": [USER], "tool_choice": {"function": 3}},
            "tool_choice",
            "is of the wrong",
        ),
        (
            None,
            {"messages": [USER], "tool_choice": 3},
            "tool_choice",
            "tool_choice is 3, but must be",
        ),
        (
            None,
            {"messages": [USER], "chat_template_kwargs": {"a": {1}}},
            "chat_template_kwargs",
            "wrong",
        ),
    ],
)
def test_a_faulty_argument_is_named_with_its_value(
    prompt: Any, settings: Any, param: str, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        generate_request(prompt, settings)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("make", "param"),
    [
        (lambda: detokenize_request([-1], ""), "token_ids"),
        (lambda: tokenize_request("a", {"modell": "x"}), "modell"),  # type: ignore[typeddict-unknown-key]
        (lambda: embed_request([1, "a"], {}), "texts"),  # type: ignore[arg-type]
        (lambda: embed_request(5, {}), "texts"),  # type: ignore[arg-type]
        (lambda: embed_request("a", {"dimension": 3}), "dimension"),  # type: ignore[typeddict-unknown-key]
        (lambda: score_request("\ud800", "a", {}), "first"),
        (lambda: score_request("a", [5], {}), "second"),  # type: ignore[list-item]
        (lambda: rerank_request("a", "b", 0, {}), "documents"),
        (lambda: rerank_request("a", ["b"], -1, {}), "top_n"),
    ],
)
def test_faulty_arguments_of_the_other_calls_are_named(
    make: Callable[[], object], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make()
    assert caught.value.param == param
