"""How busy a worker is and how fast, as a message: written by the worker, read by routers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pagemesh.engine.interface import EngineLoad
from pagemesh.engine.prefill_rate import PrefillRate
from pagemesh.v1 import types_pb2

MOST: Final = 1e15
"""Of any measured quantity, in tokens, pairs, seconds or bytes per second; products of a few are still numbers."""


def load_to_proto(load: EngineLoad, links: Sequence[types_pb2.LinkRate]) -> types_pb2.WorkerLoad:
    """What a worker reports; without a rate until one was measured."""
    return types_pb2.WorkerLoad(
        running_request_count=load.num_running,
        waiting_request_count=load.num_waiting,
        queued_request_count=load.num_queued,
        free_block_count=load.num_free_blocks,
        preemption_count=load.num_preemptions,
        swap_block_count=load.swap.num_blocks,
        used_swap_block_count=load.swap.num_used_blocks,
        pending_prefill_token_count=load.num_pending_prefill_tokens,
        prefill_rate=_rate_to_proto(load.prefill_rate) if load.prefill_rate.is_known else None,
        links=links,
    )


def _rate_to_proto(rate: PrefillRate) -> types_pb2.PrefillRate:
    return types_pb2.PrefillRate(
        seconds_per_token=rate.seconds_per_token,
        seconds_per_pair=rate.seconds_per_pair,
        seconds_per_step=rate.seconds_per_step,
        step_token_count=rate.num_tokens_per_step,
        mean_pair_count=rate.num_pairs_per_token,
    )


def rate_from_proto(message: types_pb2.PrefillRate) -> PrefillRate:
    """What a worker reported; all zeros for numbers that cannot have been measured."""
    rate = PrefillRate(
        message.seconds_per_token,
        message.seconds_per_pair,
        message.seconds_per_step,
        message.step_token_count,
        message.mean_pair_count,
    )
    seconds = (rate.seconds_per_token, rate.seconds_per_pair, rate.seconds_per_step)
    # With all of them 0, prompts of any length would take no time.
    return rate if any(seconds) and is_possible(rate) else PrefillRate()


def is_possible(measured: Iterable[float]) -> bool:
    """Whether these may have been measured: one worker's nonsense must not decide about all requests."""
    return all(0 <= number <= MOST for number in measured)
