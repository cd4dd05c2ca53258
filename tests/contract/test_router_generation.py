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
