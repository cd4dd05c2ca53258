"""On a GPU: the same answers from graphs and kernels one by one, in any company, whatever is done with KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from pagemesh.core.request import EngineRequest
from pagemesh.engine.cuda.accelerator import CudaAccelerator
from pagemesh.loading.cuda_weights import DeviceWeightWriter
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.models.parameters import ModelTarget
from tests.identity.answers import (
    Answers,
    answers_alone,
    answers_of,
    answers_together,
    answers_twice,
    assert_same,
    tokens_of,
)
from tests.identity.courier import Courier
from tests.identity.engines import Peer
from tests.identity.subjects import MAX_TOKENS, NUM_ANSWERS, Material, make_material, make_requests
from tests.support.device_machine import DeviceMachine
from tests.unit.scheduler.builders import FixedWay

# Of everything that a layer can have something, in both types, a model that transformers runs, and packed weights.
SUBJECTS = (
    ("demo", "float32"),
    ("demo", "bfloat16"),
    ("GPT-OSS", "float32"),
    ("Gemma 2", "bfloat16"),
    ("Falcon RW", "float32"),
    ("Qwen 3 MoE", "bfloat16"),
    ("Cohere 2", "float32"),
    ("Mistral in 4 bits", "bfloat16"),
    ("Mistral in W8A8", "bfloat16"),
)


class Case(NamedTuple):
    accelerator: CudaAccelerator
    material: Material
    model: LoadedModel
    requests: Sequence[EngineRequest]
    """Every way of sampling with every prompt."""
    expected: Answers
    """Each request alone, its prompt in one piece, its kernels started one by one."""

    @property
    def machine(self) -> DeviceMachine:
        return DeviceMachine(self.accelerator)


@pytest.fixture(scope="module", params=SUBJECTS, ids=" ".join)
def case(
    request: pytest.FixtureRequest,
    accelerator: CudaAccelerator,
    demo_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Case:
    name, dtype = request.param
    material = make_material(name, demo_model, tmp_path_factory.mktemp("model"))
    load = partial(load_model, target=ModelTarget(DeviceWeightWriter(accelerator), "auto"))
    model = material.load(load, dtype=dtype)
    requests = make_requests(material.prompts)[::NUM_ANSWERS]
    eager = DeviceMachine(accelerator, graphs=False)
    expected = answers_alone(model, requests, eager)
    assert len({answer.token_ids for answer in expected.values()}) > len(requests) / 3
    return Case(accelerator, material, model, requests, expected)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_company_and_steps_in_flight_do_not_matter(case: Case, graphs: bool) -> None:
    machine = DeviceMachine(case.accelerator, graphs=graphs)
    peer = Peer(case.model, overlaps=True, make_runner=machine)
    assert_same(answers_together(peer, case.requests), case.expected)


@pytest.mark.parametrize("num_tokens", [16, 48])
def test_chunk_size_does_not_matter(case: Case, num_tokens: int) -> None:
    peer = Peer(
        case.model,
        block_size=8,
        max_num_batched_tokens=num_tokens,
        enable_prefix_caching=False,
        overlaps=True,
        make_runner=case.machine,
    )
    assert_same(answers_together(peer, case.requests), case.expected)


def test_a_warm_cache_does_not_matter(case: Case) -> None:
    peer = Peer(case.model, overlaps=True, make_runner=case.machine)
    for answers in answers_twice(peer, case.requests):
        assert_same(answers, case.expected)
    assert sum(end.num_cached_tokens for end in peer.ends.values()) > 300


def test_preemptions_of_either_kind_do_not_matter(case: Case) -> None:
    longest = max(len(request.prompt_token_ids) for request in case.requests) + MAX_TOKENS
    peer = Peer(
        case.model,
        block_size=8,
        num_blocks=-(-longest // 8) * 2,
        preempt_at=range(2, 10_000, 4),
        preemption=FixedWay(True, False, True),
        num_swap_blocks=100,
        overlaps=True,
        make_runner=case.machine,
    )
    assert_same(answers_together(peer, case.requests), case.expected)
    assert peer.scheduler.load().num_preemptions > 10


def test_kv_from_another_engine_does_not_matter(case: Case) -> None:
    # Each engine on a stream of its own.
    prefill, decode = (
        Peer(
            case.model,
            max_num_batched_tokens=num_tokens,
            overlaps=True,
            make_runner=DeviceMachine(case.accelerator.beside()),
        )
        for num_tokens in (16, 512)
    )
    requests = [
        replace(request, sampling=replace(request.sampling, prompt_logprobs=None))
        for request in case.requests
    ]
    courier = Courier(prefill, decode, requests)
    courier.run()
    assert tokens_of(answers_of(courier.decode)) == tokens_of(case.expected)


def test_likeliest_tokens_in_float32_are_those_of_the_cpu(case: Case) -> None:
    if str(case.model.dtype) != "torch.float32":
        pytest.skip("16 bits round differently on every machine")
    greedy = [request for request in case.requests if request.sampling.greedy]
    on_cpu = answers_alone(case.material.load(dtype="float32"), greedy)
    expected = {name: case.expected[name].token_ids for name in on_cpu}
    assert tokens_of(on_cpu) == expected
    assert len(expected) == len(case.material.prompts)
