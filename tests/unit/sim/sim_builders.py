"""Traces, models and runs for the tests of the simulator."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from pagemesh.sim.model import DecodeModel, LinkModel, MeshModel, PrefillModel, WorkerModel
from pagemesh.sim.records import Record
from pagemesh.sim.run import routing_of
from pagemesh.sim.settings import PolicyName, SimConfig
from pagemesh.sim.simulation import MeshSize, Simulation
from pagemesh.sim.trace import Span, TraceRequest


def make_request(
    arrival: float,
    num_prompt_tokens: int,
    num_output_tokens: int = 2,
    *,
    text: int,
    prefix: Span | None = None,
    after: int | None = None,
) -> TraceRequest:
    """A request with a text of its own, behind a prefix that others may have."""
    spans: tuple[Span, ...] = (Span(text, num_prompt_tokens),)
    if prefix is not None:
        spans = (prefix, *spans)
    return TraceRequest(arrival, spans, num_output_tokens, text, after)


def make_model(**changes: Any) -> MeshModel:
    """Round figures: a prompt's token takes 1 ms, a step with prompts 10 ms more, one of decodes 20 ms."""
    worker = WorkerModel(
        kv_tokens=4000,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=2000,
        prefill=PrefillModel(0.001, 0.0, 0.01),
        decode=DecodeModel(0.0, 0.0, 0.02),
    )
    defaults: dict[str, Any] = {
        "block_size": 10,
        "num_layers": 10,
        "kv_bytes_per_token": 1000,
        "router_seconds": 0.1,
        "network_seconds": 0.05,
        "decode": worker,
        "link": LinkModel(bytes_per_second=1e6, latency_seconds=0.25),
    }
    return MeshModel(**(defaults | changes))


def simulate(
    trace: Sequence[TraceRequest],
    policy: PolicyName = "kv_aware",
    model: MeshModel | None = None,
    is_decided: Callable[[Record], bool] = lambda record: False,
    **size: Any,
) -> Simulation:
    """A simulation that is yet to run."""
    config = SimConfig(remote_prefill_min_tokens=size.pop("remote_prefill_min_tokens", None))
    routing = routing_of(config, policy)
    mesh = MeshSize(**size)
    return Simulation(trace, model or make_model(), mesh, routing, seed=1, is_decided=is_decided)


def mixed_trace(seed: int, num_requests: int, rate: float) -> list[TraceRequest]:
    """Single requests and conversations, behind three prefixes."""
    draws = random.Random(seed)
    trace: list[TraceRequest] = []
    now = 0.0
    while len(trace) < num_requests:
        now += draws.expovariate(rate)
        text = 10 + len(trace)
        prefix = Span(draws.randrange(3), 200)
        length, after = 200, None
        for _ in range(draws.choice((1, 1, 3))):
            length += draws.randint(1, 150)
            num_output = draws.randint(1, 60)
            arrival = now if after is None else draws.uniform(0, 2)
            request = make_request(
                arrival, length, num_output, text=text, prefix=prefix, after=after
            )
            trace.append(request)
            after = len(trace) - 1
            length += num_output
    return trace
