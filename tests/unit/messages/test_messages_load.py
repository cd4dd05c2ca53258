"""What routers are told of a worker's load is what its engine said, as far as that can be."""

from __future__ import annotations

import math

import pytest

from pagemesh.cache.swap_space import SwapTotals
from pagemesh.core.load import EngineLoad, PrefillRate
from pagemesh.messages import load_to_proto, rate_from_proto
from pagemesh.v1 import types_pb2

RATE = PrefillRate(0.5, 0.25, 0.125, 512, 100.0)


def test_a_load_is_told_with_the_links_to_the_worker() -> None:
    load = EngineLoad(
        num_running=1,
        num_waiting=2,
        num_queued=5,
        num_free_blocks=3,
        num_pending_prefill_tokens=4,
        num_preemptions=6,
        swap=SwapTotals(8, 7, 2),
    )
    link = types_pb2.LinkRate(worker_id="p", bytes_per_second=5.0, latency_seconds=6.0)
    assert load_to_proto(load, [link]) == types_pb2.WorkerLoad(
        running_request_count=1,
        waiting_request_count=2,
        queued_request_count=5,
        free_block_count=3,
        preemption_count=6,
        swap_block_count=8,
        used_swap_block_count=7,
        pending_prefill_token_count=4,
        links=[link],
    )


def test_a_rate_keeps_all_its_fields() -> None:
    message = load_to_proto(EngineLoad(prefill_rate=RATE), []).prefill_rate
    assert message == types_pb2.PrefillRate(
        seconds_per_token=0.5,
        seconds_per_pair=0.25,
        seconds_per_step=0.125,
        step_token_count=512,
        mean_pair_count=100.0,
    )
    assert rate_from_proto(message) == RATE


def test_a_rate_that_was_not_measured_is_not_told() -> None:
    message = load_to_proto(EngineLoad(), [])
    assert not message.HasField("prefill_rate")
    assert rate_from_proto(message.prefill_rate) == PrefillRate()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 1e300])
def test_a_rate_that_cannot_be_is_as_good_as_none(wrong: float) -> None:
    message = load_to_proto(EngineLoad(prefill_rate=RATE), []).prefill_rate
    message.seconds_per_pair = wrong
    assert rate_from_proto(message) == PrefillRate()


def test_an_engine_that_takes_no_time_was_not_measured() -> None:
    message = types_pb2.PrefillRate(step_token_count=512, mean_pair_count=100.0)
    assert rate_from_proto(message) == PrefillRate()
    message.seconds_per_step = 0.125
    assert rate_from_proto(message).is_known
