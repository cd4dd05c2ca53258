"""Aggregated and disaggregated meshes give the same token ids for the same request, turn by turn."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from pagemesh.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from tests.mesh.harness import DEADLINE_S, MODEL, Mesh, until
from tests.support.mappings import num_read_only_mappings

DEMO = Path(__file__).resolve().parents[2] / "models/demo"
STORY = "Once there was a mesh of four parts that answered every question it was asked. "


class Answer(NamedTuple):
    num_prompt_tokens: int
    token_ids: list[int]
    text: str
    finish_reason: int
    logprobs: list[float]


Answers = Callable[[types_pb2.SamplingParams], list[Answer]]


def prompts() -> list[str]:
    """40 different prompts, from one token to many chunks of 512."""
    lines = (DEMO / "questions.jsonl").read_text().splitlines()
    questions = [json.loads(line)["question"] for line in lines]
    long = [f"{number}. {STORY * (number * 2)}" for number in range(1, 16)]
    return ["a", "The", *questions[:23], *long]


def generate(mesh: Mesh, prompt: str | Sequence[int], sampling: types_pb2.SamplingParams) -> Answer:
    request = inference_pb2.GenerateRequest(model=MODEL, sampling=sampling, use_seed=True)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
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


@pytest.fixture(scope="module")
def answers_of_one_worker(aggregated_mesh: Mesh) -> Answers:
    """To all prompts, each asked once; that worker is idle then."""
    known: dict[bytes, list[Answer]] = {}

    def answers(sampling: types_pb2.SamplingParams) -> list[Answer]:
        key = sampling.SerializeToString(deterministic=True)
        if key not in known:
            known[key] = generate_all(aggregated_mesh, prompts(), sampling)
            aggregated_mesh.wait_until_idle()
        return known[key]

    return answers


@pytest.mark.product(most=1)
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
    answers_of_one_worker: Answers,
    disaggregated_mesh: Mesh,
    sampling: types_pb2.SamplingParams,
    shares_memory: bool,
) -> None:
    asked = prompts()
    assert len(set(asked)) == 40
    before = num_remote_prefills(disaggregated_mesh)
    aggregated = answers_of_one_worker(sampling)
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
    disaggregated_mesh.wait_until_idle()


def test_what_a_decode_worker_generated_is_found_and_pulled_for_the_next_turn(
    aggregated_mesh: Mesh, remembering_mesh: Mesh
) -> None:
    mesh = remembering_mesh
    numbers = itertools.count()

    def predicts() -> bool:
        # Too short to leave anything in a cache.
        generate(mesh, [20 + next(numbers)] * 8, types_pb2.SamplingParams(max_tokens=1))
        return mesh.metric("router", "pagemesh:kv_path_predicted_seconds_count") > 0

    until(predicts, "the router knows what prompts take")
    question = [20 + 7 * i for i in range(12)]
    sampling = types_pb2.SamplingParams(max_tokens=300, temperature=0.8, seed=5, ignore_eos=True)
    answer = generate(mesh, question, sampling).token_ids
    assert answer == generate(aggregated_mesh, question, sampling).token_ids
    # Nobody needed the KV of the last token: 311 have KV.
    until(
        lambda: mesh.metric("kvstore", "pagemesh:index_blocks") == 19, "the answer is in the index"
    )

    next_turn = [*question, *answer, *(30 + 11 * i for i in range(60))]
    sampling.max_tokens = 24
    given = generate(mesh, next_turn, sampling)
    assert given == generate(aggregated_mesh, next_turn, sampling)
    assert mesh.metric("router", "pagemesh:kv_path_plans_total", path="remote_pull") == 1
    assert mesh.metric("router", "pagemesh:kv_path_seconds_count", path="remote_pull") == 1
    assert mesh.metric("prefill-0", "pagemesh:kv_pulls_total", outcome="complete") == 1
    assert mesh.metric("prefill-0", "pagemesh:kv_tokens_received_total") == 304
    mesh.wait_until_idle()


def without_logprobs(answers: list[Answer]) -> list[Answer]:
    return [answer._replace(logprobs=[]) for answer in answers]


def num_remote_prefills(mesh: Mesh) -> float:
    return mesh.metric("decode-0", "pagemesh:remote_prefills_total", outcome="complete")
