"""What stands around the workers: routers, gateways, kvstores and their index, and room for the model.

Sums over figures of benchmarks/results, which are of one core of an AMD EPYC; a test compares them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pagemesh.sim.trace import Trace

ROUTER_SECONDS_PER_REQUEST: Final = 4.0e-3
ROUTER_SECONDS_PER_PROMPT_TOKEN: Final = 1.5e-6
ROUTER_SECONDS_PER_WORKER: Final = 29e-6
"""CPU of a router: of each request, of each token of its prompt, of each worker that is looked at for it
(routing_router_cpu.json)."""

ROUTER_SECONDS_PER_TOKEN: Final = 150e-6
GATEWAY_SECONDS_PER_TOKEN: Final = 54e-6
GATEWAY_SECONDS_PER_REQUEST: Final = 0.51e-3
"""CPU of a router and of Envoy for each streamed token, with 64 streams, and of Envoy for each request
(gateway.json)."""

LOOKUPS_PER_SECOND: Final = 2200.0
"""That a kvstore answers from its memory through gRPC (index_grpc.json); routers ask once for each request."""

INDEX_BYTES_PER_BLOCK: Final = 124
VALKEY_BYTES_PER_BLOCK: Final = 35
"""Of a block in the memory of a kvstore and in a Valkey, by what the process takes (docs/block-index.md)."""

KVSTORE_BYTES: Final = 64 * 2**20
"""Of a kvstore without blocks (memory.json)."""

BUSY_SHARE: Final = 0.7
"""Of a core that is planned for: what autoscaling by CPU keeps to, too."""


class Traffic(NamedTuple):
    """What comes, in the mean."""

    request_rate: float
    """Requests per second, from the first arrival to the last."""
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Without workers."""

    router_cores: float
    routers: int
    gateway_cores: float
    gateways: int
    lookups_per_second: float
    kvstores: int
    index_blocks: int
    """Of all workers, if no two hold the same."""
    index_bytes: int
    valkey_bytes: int
    """In place of the former, where several kvstores share an index."""
    model_bytes: int
    """Of the model's files."""


def traffic_of(trace: Trace) -> Traffic:
    """Of requests at their times; turns of a conversation count as coming with its beginning."""
    arrivals = [request.arrival for request in trace if request.after is None]
    seconds = max(arrivals) - min(arrivals)
    rate = (len(arrivals) - 1) / seconds if seconds else float(len(trace))
    return Traffic(
        rate * len(trace) / len(arrivals),
        _mean([request.num_prompt_tokens for request in trace]),
        _mean([request.num_output_tokens for request in trace]),
    )


def router_cores(traffic: Traffic, num_workers: int) -> float:
    """Busy cores of all routers."""
    per_request = (
        ROUTER_SECONDS_PER_REQUEST
        + traffic.prompt_tokens * ROUTER_SECONDS_PER_PROMPT_TOKEN
        + num_workers * ROUTER_SECONDS_PER_WORKER
        + traffic.output_tokens * ROUTER_SECONDS_PER_TOKEN
    )
    return traffic.request_rate * per_request


def num_routers(traffic: Traffic, num_workers: int) -> int:
    """Without spare; each is one process on one core."""
    return _replicas(router_cores(traffic, num_workers))


def surround(
    traffic: Traffic, num_workers: int, num_blocks: int, model_bytes: int, spare: int
) -> Surroundings:
    """Around so many workers, each with so many blocks; routers and gateways get as many spare ones."""
    gateway_cores = traffic.request_rate * (
        GATEWAY_SECONDS_PER_REQUEST + traffic.output_tokens * GATEWAY_SECONDS_PER_TOKEN
    )
    index_blocks = num_workers * num_blocks
    return Surroundings(
        router_cores=router_cores(traffic, num_workers),
        routers=num_routers(traffic, num_workers) + spare,
        gateway_cores=gateway_cores,
        gateways=_replicas(gateway_cores) + spare,
        lookups_per_second=traffic.request_rate,
        # A mesh goes on without them, by load, and a new one knows all within seconds: none is spare.
        kvstores=_replicas(traffic.request_rate / LOOKUPS_PER_SECOND),
        index_blocks=index_blocks,
        index_bytes=index_blocks * INDEX_BYTES_PER_BLOCK,
        valkey_bytes=index_blocks * VALKEY_BYTES_PER_BLOCK,
        model_bytes=model_bytes,
    )


def _replicas(cores: float) -> int:
    return max(1, math.ceil(cores / BUSY_SHARE))


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers)
