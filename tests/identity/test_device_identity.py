"""The same answers from a device that computes beside the host: graphs, steps in flight, KV that moves.

The device is the CPU, which lets nothing arrive before somebody waits for it; `tests/gpu` has the real one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from pagemesh.core.request import EngineRequest
from pagemesh.engine import runner
from pagemesh.kernels.dispatch import using
from pagemesh.models.loader import LoadedModel
from tests.identity.answers import (
    Answers,
    answers_alone,
    answers_of,
    answers_together,
    assert_same,
    tokens_of,
)
from tests.identity.courier import Courier
from tests.identity.engines import Peer
from tests.identity.subjects import MAX_TOKENS, NUM_ANSWERS, make_material, make_requests
from tests.support.device_machine import DeviceMachine
from tests.support.host_accelerator import HostAccelerator
from tests.unit.scheduler.builders import FixedWay

pytestmark = pytest.mark.costly


class Case(NamedTuple):
    model: LoadedModel
    requests: Sequence[EngineRequest]
    expected: Answers


@pytest.fixture(scope="module")
def case(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    material = make_material("Mistral", demo_model, tmp_path_factory.mktemp("model"))
    model = material.load()
    # Each way of sampling, with two prompts.
    requests = make_requests([material.prompts[index] for index in (0, 5)])[::NUM_ANSWERS]
    return Case(model, requests, answers_alone(model, requests))


@pytest.fixture(params=[False, True], ids=["eager", "graphs"])
def machine(request: pytest.FixtureRequest) -> Iterator[DeviceMachine]:
    # The CPU's way of writing KV knows no padding.
    with using("reference", "write_kv") if request.param else nullcontext():
        yield DeviceMachine(HostAccelerator(), graphs=request.param, chunk_sizes=(48,))


def test_steps_in_flight_do_not_matter(case: Case, machine: DeviceMachine) -> None:
    peer = Peer(case.model, max_num_batched_tokens=48, overlaps=True, make_runner=machine)
    answers = answers_together(peer, case.requests)
    assert_same(answers, case.expected)
    assert len(answers) == len(case.requests)


def test_tokens_that_the_device_samples_are_the_same(case: Case) -> None:
    machine = DeviceMachine(HostAccelerator(), chunk_sizes=(16,))
    requests = case.requests[::2]
    with using("cuda", "sampling", "logprobs"), using("reference", "write_kv"):
        peer = Peer(case.model, overlaps=True, make_runner=machine)
        assert_same(answers_together(peer, requests), case.expected)


def test_preemptions_of_either_kind_do_not_matter(case: Case, machine: DeviceMachine) -> None:
    longest = max(len(request.prompt_token_ids) for request in case.requests) + MAX_TOKENS
    peer = Peer(
        case.model,
        block_size=8,
        num_blocks=-(-longest // 8) * 2,
        max_num_batched_tokens=48,
        preempt_at=range(2, 10_000, 3),
        preemption=FixedWay(True, False, True),
        num_swap_blocks=100,
        overlaps=True,
        make_runner=machine,
    )
    assert_same(answers_together(peer, case.requests), case.expected)
    assert peer.scheduler.load().num_preemptions > 5


def test_kv_from_another_engine_does_not_matter(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Layer by layer, as soon as the device has written them.
    monkeypatch.setattr(runner, "MIN_GROUP_BYTES", 1)
    # Without graphs, whose padding needs Triton: its interpreter is for one thread.
    prefill, decode = (
        Peer(
            case.model,
            max_num_batched_tokens=num_tokens,
            overlaps=True,
            make_runner=DeviceMachine(HostAccelerator(), graphs=False),
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
    assert courier.num_received_tokens > 100
    assert courier.num_early > 10
