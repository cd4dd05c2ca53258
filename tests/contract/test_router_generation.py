"""What operators set for all requests of how tokens are generated."""

from __future__ import annotations

from pagemesh.config import GenerationConfig
from pagemesh.v1 import inference_pb2, types_pb2
from tests.contract.router_harness import running_mesh

MESSAGES = [{"role": "user", "content": "hi"}]


async def test_no_request_exceeds_the_operators_limit_whatever_it_asks_for() -> None:
    limit = GenerationConfig(override_generation_config='{"max_new_tokens": 5}')
    async with running_mesh(num_blocks=256, generation=limit) as mesh:
        for asked, given in (({}, 5), ({"max_tokens": 9}, 5), ({"max_tokens": 3}, 3)):
            answers = [
                await mesh.chat({"messages": MESSAGES, "ignore_eos": True, **asked}),
                await mesh.completions({"prompt": [300, 301], "ignore_eos": True, **asked}),
            ]
            for answer in answers:
                assert answer.json()["usage"]["completion_tokens"] == given
                assert answer.json()["choices"][0]["finish_reason"] == "length"
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=[300, 301]),
            sampling=types_pb2.SamplingParams(ignore_eos=True),
        )
        *_, last = [response async for response in mesh.inference.Generate(request)]
        assert last.usage.completion_token_count == 5


async def test_seeds_of_requests_that_bring_none_come_from_one() -> None:
    async def answers(seed: int | None) -> list[object]:
        async with running_mesh(num_blocks=256, generation=GenerationConfig(seed=seed)) as mesh:
            body = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
            completion = await mesh.completions(body | {"prompt": [300, 301], "n": 2})
            own = await mesh.chat(body | {"messages": MESSAGES, "seed": 5})
            last = await mesh.chat(body | {"messages": MESSAGES})
            request = inference_pb2.GenerateRequest(
                token_ids=inference_pb2.TokenIds(ids=[300, 301]),
                sampling=types_pb2.SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True),
            )
            ids = [each async for r in mesh.inference.Generate(request) for each in r.token_ids]
        texts = [each["text"] for each in completion.json()["choices"]]
        texts += [each.json()["choices"][0]["message"]["content"] for each in (own, last)]
        return [*texts, ids]

    first, again, other = [await answers(seed) for seed in (7, 7, 8)]
    assert first == again
    assert first[2] == other[2], "a request's own seed"
    assert all(first[index] != other[index] for index in (0, 1, 3, 4))
