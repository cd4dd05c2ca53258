"""The OpenAI service of a router whose workers run the real scheduler over a fake model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.api.httpbody_pb2 import HttpBody

from pagemesh.decode.service import DECODE_ROLE
from pagemesh.router.openai.sse import KEEPALIVE
from pagemesh.tokenizer import Tokenizer
from pagemesh.v1 import console_pb2, openai_pb2
from tests.contract.http_answers import http_body, read
from tests.contract.router_harness import MODEL, Mesh, eventually, running_mesh
from tests.fakes.engine import expected_tokens

TOKENIZER = Tokenizer(MODEL)
PROMPT = list(range(10, 50))
MESSAGES = [{"role": "user", "content": "hi hi hi"}]


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with running_mesh(num_blocks=256) as mesh:
        yield mesh


def text_of(prompt: list[int], num_tokens: int, seed: int = 0) -> str:
    return TOKENIZER.decode(expected_tokens(prompt, num_tokens, seed))


async def test_a_completion_has_the_models_tokens_as_text(mesh: Mesh) -> None:
    answer = await mesh.completions({"model": "demo", "prompt": PROMPT, "max_tokens": 8, "seed": 5})
    assert (answer.status, answer.content_type) == (200, "application/json")
    body = answer.json()
    assert body["model"] == "demo"
    assert body["choices"] == [
        {
            "index": 0,
            "text": text_of(PROMPT, 8, seed=5),
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": None,
            "prompt_token_ids": None,
            "prompt_logprobs": None,
        }
    ]
    assert body["usage"]["prompt_tokens"] == 40
    assert body["usage"]["completion_tokens"] == 8


async def test_completions_generate_sixteen_tokens_by_default(mesh: Mesh) -> None:
    body = (await mesh.completions({"prompt": PROMPT})).json()
    assert body["usage"]["completion_tokens"] == 16


async def test_a_chat_may_fill_the_context_by_default(mesh: Mesh) -> None:
    body = (await mesh.chat({"messages": MESSAGES, "seed": 1})).json()
    assert body["usage"]["total_tokens"] == 512
    assert body["choices"][0]["finish_reason"] == "length"


async def test_a_chat_prompt_is_rendered_with_the_template(mesh: Mesh) -> None:
    ids = await TOKENIZER.encode_chat(MESSAGES)
    body = (await mesh.chat({"messages": MESSAGES, "seed": 1, "max_tokens": 6})).json()
    assert body["choices"][0]["message"]["content"] == text_of(ids, 6, seed=1)
    assert body["usage"]["prompt_tokens"] == len(ids)


async def test_a_stream_carries_the_same_text_in_pieces(mesh: Mesh) -> None:
    request = {"messages": MESSAGES, "seed": 1, "max_tokens": 12}
    whole = (await mesh.chat(request)).json()["choices"][0]["message"]["content"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, done = (await mesh.chat({**request, **options})).events()
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == whole
    assert [c["choices"][0]["finish_reason"] for c in chunks[-2:]] == [None, "length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 12
    assert done == "[DONE]"


async def test_a_completion_streams_too(mesh: Mesh) -> None:
    request = {"prompt": PROMPT, "seed": 1, "max_tokens": 12, "stream": True}
    *chunks, done = (await mesh.completions(request)).events()
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == text_of(PROMPT, 12, seed=1)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert done == "[DONE]"


async def test_several_answers_draw_with_seeds_that_follow_each_other(mesh: Mesh) -> None:
    other = list(range(60, 90))
    request = {"prompt": [PROMPT, other], "n": 2, "seed": 3, "max_tokens": 5}
    body = (await mesh.completions(request)).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, text_of(PROMPT, 5, seed=3)),
        (1, text_of(PROMPT, 5, seed=4)),
        (2, text_of(other, 5, seed=3)),
        (3, text_of(other, 5, seed=4)),
    ]
    assert body["usage"]["prompt_tokens"] == 70
    assert body["usage"]["completion_tokens"] == 20


async def test_log_probabilities_come_with_whole_answers_and_with_streams(mesh: Mesh) -> None:
    request = {"prompt": PROMPT, "seed": 1, "max_tokens": 5, "logprobs": 2}
    tokens = expected_tokens(PROMPT, 5, 1)
    (choice,) = (await mesh.completions(request)).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-token_id / 1024 for token_id in tokens]
    assert [len(rivals) for rivals in choice["logprobs"]["top_logprobs"]] == [3] * 5
    *chunks, _ = (await mesh.completions({**request, "stream": True})).events()
    streamed = [each for c in chunks for each in c["choices"][0]["logprobs"]["token_logprobs"]]
    assert streamed == choice["logprobs"]["token_logprobs"]
    chat = {"messages": MESSAGES, "seed": 1, "max_tokens": 5, "logprobs": True, "top_logprobs": 1}
    (choice,) = (await mesh.chat(chat)).json()["choices"]
    ids = await TOKENIZER.encode_chat(MESSAGES)
    assert [
        (each["logprob"], len(each["top_logprobs"])) for each in choice["logprobs"]["content"]
    ] == [(-token_id / 1024, 1) for token_id in expected_tokens(ids, 5, 1)]


async def test_the_log_probabilities_of_a_prompt_come_with_all_its_answers(mesh: Mesh) -> None:
    request = {"prompt": PROMPT[:3], "n": 2, "max_tokens": 2, "prompt_logprobs": 0}
    body = (await mesh.completions(request)).json()
    scores = [
        None,
        *(
            {
                str(token_id): {
                    "logprob": -token_id / 1024,
                    "rank": 1,
                    "decoded_token": TOKENIZER.decode([token_id], skip_special_tokens=False),
                }
            }
            for token_id in PROMPT[1:3]
        ),
    ]
    assert [choice["prompt_logprobs"] for choice in body["choices"]] == [scores, scores]


async def test_the_best_of_several_answers_are_given(mesh: Mesh) -> None:
    request = {"prompt": PROMPT, "n": 2, "best_of": 5, "seed": 3, "max_tokens": 6}
    body = (await mesh.completions(request)).json()
    # The fake's log probability of a token is its id, negative.
    seeds = sorted(range(3, 8), key=lambda seed: sum(expected_tokens(PROMPT, 6, seed)))
    assert seeds[:2] != [3, 4]
    assert [
        (choice["index"], choice["text"], choice["logprobs"]) for choice in body["choices"]
    ] == [
        (0, text_of(PROMPT, 6, seeds[0]), None),
        (1, text_of(PROMPT, 6, seeds[1]), None),
    ]
    assert body["usage"]["completion_tokens"] == 30


async def test_streams_of_several_answers_are_told_apart(mesh: Mesh) -> None:
    request = {"prompt": PROMPT, "n": 3, "seed": 3, "max_tokens": 5, "stream": True}
    texts = {0: "", 1: "", 2: ""}
    for event in (await mesh.completions(request)).events()[:-1]:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == {i: text_of(PROMPT, 5, seed=3 + i) for i in range(3)}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_and_the_work(mesh: Mesh, stream: bool) -> None:
    text = text_of(PROMPT, 200)
    stop = text[40:44]
    expected = text[: text.index(stop)]
    request = {"prompt": PROMPT, "max_tokens": 400, "seed": 0, "stop": [stop], "stream": stream}
    answer = await mesh.completions(request)
    if stream:
        events = answer.events()[:-1]
        assert "".join(event["choices"][0]["text"] for event in events) == expected
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        assert answer.json()["choices"][0]["text"] == expected
        assert answer.json()["choices"][0]["finish_reason"] == "stop"
        assert answer.json()["usage"]["completion_tokens"] < 200
    await eventually(lambda: mesh.workers["decode-0"].engine.num_free_blocks == 256)


async def test_a_stop_token_ends_the_answer_without_text(mesh: Mesh) -> None:
    tokens = expected_tokens(PROMPT, 20)
    position = next(i for i in range(3, 20) if tokens[i] not in tokens[:i])
    request = {"prompt": PROMPT, "seed": 0, "stop_token_ids": [tokens[position]]}
    body = (await mesh.completions({**request, "max_tokens": 20})).json()
    assert body["choices"][0]["text"] == TOKENIZER.decode(tokens[:position])
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == position + 1


async def test_cached_tokens_are_reported(mesh: Mesh) -> None:
    for cached in (0, 32):
        body = (await mesh.completions({"prompt": PROMPT, "max_tokens": 2})).json()
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}


async def test_the_clients_request_id_names_the_answer(mesh: Mesh) -> None:
    answer = await mesh.completions({"prompt": PROMPT}, x_request_id="client-7")
    assert answer.json()["id"] == "cmpl-client-7"
    answer = await mesh.completions({"prompt": PROMPT}, x_request_id="bad id")
    assert len(answer.json()["id"]) == len("cmpl-") + 32


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "nope"}, 404, "model", "model_not_found"),
        ({"prompt": ""}, 400, "prompt", None),
        ({"prompt": [5000]}, 400, "prompt", None),
        ({"prompt": [10] * 512}, 400, "prompt", "context_length_exceeded"),
        ({"max_tokens": 473}, 400, "max_tokens", "context_length_exceeded"),
        ({"max_tokens": -1}, 400, "max_tokens", None),
        ({"suffix": "end"}, 400, "suffix", "unsupported"),
        ({"max_tokens": 0}, 400, "max_tokens", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_openais_with_a_status(
    mesh: Mesh, fields: dict[str, Any], status: int, param: str, code: str | None, stream: bool
) -> None:
    answer = await mesh.completions({"prompt": PROMPT, "stream": stream, **fields})
    assert (answer.status, answer.content_type) == (status, "application/json")
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert error["message"]


async def test_megabytes_that_fit_into_no_context_are_refused_unread(mesh: Mesh) -> None:
    text = "What is 3 + 9? " * 2_000_000
    messages = [{"role": "user", "content": text}]
    for answer, param in [
        (await mesh.completions({"prompt": text}), "prompt"),
        (await mesh.chat({"messages": messages}), "messages"),
    ]:
        error = answer.json()["error"]
        assert (answer.status, error["param"]) == (400, param)
        assert error["code"] == "context_length_exceeded"
        assert "30000" in error["message"] and "512 tokens" in error["message"]


async def test_only_json_is_read(mesh: Mesh) -> None:
    form = HttpBody(content_type="application/x-www-form-urlencoded", data=b"prompt=x")
    answer = await read(mesh.openai.Completions(form))
    assert answer.status == 400
    assert "x-www-form-urlencoded" in answer.json()["error"]["message"]
    bare = HttpBody(data=http_body({"prompt": PROMPT}).data)
    assert (await read(mesh.openai.Completions(bare))).status == 200
    typed = HttpBody(content_type="application/json; charset=utf-8", data=bare.data)
    assert (await read(mesh.openai.Completions(typed))).status == 200


async def test_models_are_listed(mesh: Mesh) -> None:
    listed = await read(mesh.openai.ListModels(openai_pb2.OpenAIListModelsRequest()))
    (model,) = listed.json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("demo", "model", 512)
    request = openai_pb2.OpenAIGetModelRequest(model="demo")
    assert (await read(mesh.openai.GetModel(request))).json() == model
    request = openai_pb2.OpenAIGetModelRequest(model="org/nope")
    answer = await read(mesh.openai.GetModel(request))
    assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_health_says_what_is_missing() -> None:
    async with running_mesh(decode=0) as mesh:
        answer = await read(mesh.console.Health(console_pb2.ConsoleHealthRequest()))
        assert answer.status == 503
        assert answer.json()["missing"] == "a decode worker that serves the model 'demo'"
        refused = await mesh.completions({"prompt": PROMPT})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "no_worker"
        models = await read(mesh.openai.ListModels(openai_pb2.OpenAIListModelsRequest()))
        assert (models.status, models.json()["error"]["code"]) == (503, "no_worker")
        model = await read(mesh.openai.GetModel(openai_pb2.OpenAIGetModelRequest(model="demo")))
        assert (model.status, model.json()["error"]["code"]) == (503, "no_worker")
        await mesh.add(DECODE_ROLE, "decode-0")
        answer = await read(mesh.console.Health(console_pb2.ConsoleHealthRequest()))
        assert (answer.status, answer.json()["status"]) == (200, "ok")
        assert (await mesh.completions({"prompt": PROMPT})).status == 200


async def test_metrics_have_vllms_names(mesh: Mesh) -> None:
    await mesh.completions({"prompt": PROMPT, "max_tokens": 4})
    label = 'model_name="demo"'
    assert await mesh.metric(f"vllm:prompt_tokens_total{{{label}}}") == 40
    assert await mesh.metric(f"vllm:generation_tokens_total{{{label}}}") == 4
    assert await mesh.metric(f"vllm:time_to_first_token_seconds_count{{{label}}}") == 1
    assert await mesh.metric(f"vllm:inter_token_latency_seconds_count{{{label}}}") == 3
    reason = f'vllm:request_success_total{{finished_reason="length",{label}}}'
    assert await mesh.metric(reason) == 1
    assert await mesh.metric(f'pagemesh:workers{{{label},role="decode"}}') == 1
    assert await mesh.metric("pagemesh:requests_in_progress") == 0


async def test_many_requests_at_once_are_all_answered(mesh: Mesh) -> None:
    requests = [{"prompt": [10 + i] * 20, "max_tokens": 10, "seed": i} for i in range(32)]
    answers = await asyncio.gather(*(mesh.completions(request) for request in requests))
    for i, answer in enumerate(answers):
        assert answer.json()["choices"][0]["text"] == text_of([10 + i] * 20, 10, seed=i)
    await eventually(lambda: mesh.workers["decode-0"].engine.num_free_blocks == 256)


async def test_a_silent_stream_is_kept_alive() -> None:
    async with running_mesh(seconds_per_token=1.3) as mesh:
        request = {"prompt": PROMPT, "max_tokens": 1, "stream": True}
        bodies = [body async for body in mesh.openai.Completions(http_body(request))]
    assert bodies[0].data == KEEPALIVE
    assert bodies[0].content_type == "text/event-stream; charset=utf-8"
    assert bodies[-1].data == b"data: [DONE]\n\n"
