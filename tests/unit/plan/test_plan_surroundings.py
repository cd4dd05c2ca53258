"""What stands around workers: the sums, and whether their figures are those that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagemesh.plan import surroundings
from pagemesh.plan.surroundings import Traffic, num_routers, surround, traffic_of
from pagemesh.sim.trace import Span, TraceRequest

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks/results"


def measured(file: str) -> dict[str, float]:
    figures = json.loads((RESULTS / f"{file}.json").read_text())["figures"]
    return {each["name"]: each["value"] for each in figures}


@pytest.mark.parametrize("num_workers", [8, 64, 512])
@pytest.mark.parametrize("num_tokens", [1000, 10_000])
def test_routers_take_what_was_measured(num_workers: int, num_tokens: int) -> None:
    figures = measured("routing_router_cpu")
    name = f"{num_workers} workers: CPU per request of {num_tokens} tokens as text"
    cores = surroundings.router_cores(Traffic(1.0, num_tokens, 0), num_workers)
    assert cores == pytest.approx(figures[name], rel=0.15)


def test_streams_and_lookups_take_what_was_measured() -> None:
    gateway, index = measured("gateway"), measured("index_grpc")
    assert pytest.approx(
        {
            "router": gateway["64 streams: pagemesh, CPU of the router per token"],
            "gateway": gateway["64 streams: pagemesh, CPU of the gateway per token"],
            "request": gateway["requests: pagemesh, CPU of the gateway per request"],
            "lookups": index["memory: lookups, 32 at once"],
        },
        rel=0.05,
    ) == {
        "router": surroundings.ROUTER_SECONDS_PER_TOKEN * 1e6,
        "gateway": surroundings.GATEWAY_SECONDS_PER_TOKEN * 1e6,
        "request": surroundings.GATEWAY_SECONDS_PER_REQUEST * 1e6,
        "lookups": surroundings.LOOKUPS_PER_SECOND,
    }


def test_an_index_takes_what_was_measured() -> None:
    memory = measured("index_memory_1M")
    redis = measured("index_redis_1M")
    name = "64 workers: memory per block, by the process"
    assert pytest.approx(memory[name], rel=0.1) == surroundings.INDEX_BYTES_PER_BLOCK
    assert pytest.approx(redis[name], rel=0.1) == surroundings.VALKEY_BYTES_PER_BLOCK
    assert measured("memory")["kvstore"] < surroundings.KVSTORE_BYTES / 1e6


def test_replicas_are_busy_to_seven_tenths() -> None:
    # 100 requests/s of (4 + 1.5 + 10 * 0.029 + 200 * 0.15) ms: 3.58 cores.
    traffic = Traffic(100.0, 1000.0, 200.0)
    assert surroundings.router_cores(traffic, 10) == pytest.approx(3.579)
    assert num_routers(traffic, 10) == 6
    around = surround(traffic, 10, 5000, 123, spare=2)
    assert (around.routers, around.gateways, around.kvstores) == (8, 4, 1)
    assert around.gateway_cores == pytest.approx(100 * (0.51e-3 + 200 * 54e-6))


def test_the_index_has_the_blocks_of_all_workers() -> None:
    around = surround(Traffic(1.0, 1.0, 1.0), 10, 5000, 123, spare=0)
    assert (around.routers, around.gateways, around.kvstores) == (1, 1, 1)
    assert (around.index_blocks, around.index_bytes) == (50_000, 50_000 * 124)
    assert around.valkey_bytes == 50_000 * 35
    assert around.model_bytes == 123


def test_many_requests_need_several_kvstores() -> None:
    assert surround(Traffic(4000.0, 1.0, 1.0), 1, 1, 1, spare=0).kvstores == 3


def test_traffic_counts_all_turns() -> None:
    def request(arrival: float, length: int, after: int | None = None) -> TraceRequest:
        return TraceRequest(arrival, (Span(0, length),), 10 * length, 0, after)

    trace = [request(0, 1), request(0.5, 2, after=0), request(2, 3), request(4, 6)]
    # Three beginnings in 4 s are one every 2 s; each has 4/3 turns.
    assert traffic_of(trace) == pytest.approx((0.5 * 4 / 3, 3.0, 30.0))


def test_requests_that_all_come_at_once_are_that_many_a_second() -> None:
    requests = [TraceRequest(1.0, (Span(n, 5),), 7, n) for n in range(3)]
    assert traffic_of(requests) == (3.0, 5.0, 7.0)
