"""Aggregated and disaggregated meshes give the same token ids for the same request."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from pagemesh.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tests.mesh.harness import DEADLINE_S, MODEL, Mesh
from tests.support.mappings import num_read_only_mappings

DEMO = Path(__file__).resolve().parents[2] / "models/demo"
STORY = "Once there was a mesh of four parts that answered every question it was asked. "


class Answer(NamedTuple):
    num_prompt_tokens: int
    token_ids: list[int]
    text: str
    finish_reason: int
    logprobs: list[float]


def prompts() -> list[str]:
    """40 different prompts, from one token to many chunks of 512."""
    lines = (DEMO / "questions.jsonl").read_text().splitlines()
    questions = [json.loads(line)["question"] for line in lines]
    long = [f"{number}. {STORY * (number * 2)}" for number in range(1, 16)]
    return ["a", "The", *questions[:23], *long]


def generate(mesh: Mesh, prompt: str, sampling: types_pb2.SamplingParams) -> Answer:
    request = inference_pb2.GenerateRequest(
        model=MODEL, text=prompt, sampling=sampling, use_seed=True
    )
    token_ids, text, last = list[int](), "", inference_pb2.GenerateResponse()
    logprobs = list[float]()
    with grpc.insecure_channel(mesh.address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for response in stub.Generate(request, timeout=DEADLINE_S):
            token_ids += response.token_ids
            text += response.text
            logprobs += [score.logprob for score in response.logprobs]
            last = response
    return Answer(last.usage.prompt_token_count, token_ids, text, last.finish_reason, logprobs)


def generate_all(
    mesh: Mesh, prompts: list[str], sampling: types_pb2.SamplingParams
) -> list[Answer]:
    """Several at once, so that batches differ too."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda prompt: generate(mesh, prompt, sampling), prompts))


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(types_pb2.SamplingParams(max_tokens=24, ignore_eos=True), id="greedy"),
        pytest.param(
            types_pb2.SamplingParams(
                max_tokens=24, temperature=1.2, top_p=0.95, top_k=50, seed=1234, ignore_eos=True
            ),
            id="seeded",
        ),
        pytest.param(
            types_pb2.SamplingParams(
                max_tokens=24,
                temperature=0.7,
                min_p=0.02,
                seed=99,
                repetition_penalty=1.1,
                frequency_penalty=0.3,
                logit_bias={300: 1.5},
                bad_words_token_ids=[types_pb2.TokenSequence(token_ids=[266])],
                logprobs=1,
                ignore_eos=True,
            ),
            id="seeded with penalties",
        ),
    ],
)
def test_40_prompts_give_the_same_tokens_on_both_paths(
    aggregated_mesh: Mesh,
    disaggregated_mesh: Mesh,
    sampling: types_pb2.SamplingParams,
    shares_memory: bool,
) -> None:
    asked = prompts()
    assert len(set(asked)) == 40
    before = num_remote_prefills(disaggregated_mesh)
    aggregated = generate_all(aggregated_mesh, asked, sampling)
    disaggregated = generate_all(disaggregated_mesh, asked, sampling)
    assert without_logprobs(disaggregated) == without_logprobs(aggregated)
    for ours, theirs in zip(disaggregated, aggregated, strict=True):
        # Of the demo model in float32, in batches of other sizes.
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-4)
        assert len(ours.logprobs) == (len(ours.token_ids) if sampling.HasField("logprobs") else 0)
    assert all(answer.token_ids for answer in aggregated)
    remote = [answer for answer in aggregated if answer.num_prompt_tokens >= 4]
    assert len(remote) >= 35
    assert num_remote_prefills(disaggregated_mesh) - before == len(remote)
    decode = disaggregated_mesh.parts()["decode-0"]
    assert num_read_only_mappings(decode.pid) == (1 if shares_memory else 0)
    aggregated_mesh.wait_until_idle()
    disaggregated_mesh.wait_until_idle()


def without_logprobs(answers: list[Answer]) -> list[Answer]:
    return [answer._replace(logprobs=[]) for answer in answers]


def num_remote_prefills(mesh: Mesh) -> float:
    return mesh.metric("decode-0", "pagemesh:remote_prefills_total", outcome="complete")
