"""The mesh as one server of vLLM's: sums over decode workers that come, go and begin anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pagemesh.router.mesh_metrics import MeshReadings, Preemptions
from pagemesh.router.routing.candidate import WorkerFacts
from pagemesh.router.workers import Workers
from pagemesh.telemetry.metrics import Metrics
from tests.unit.router.routing_builders import make_candidate


class Told:
    """What the workers of a model said last."""

    model_name = "demo"

    def __init__(self) -> None:
        self.facts: Sequence[WorkerFacts] = ()

    def decoders(self) -> Sequence[WorkerFacts]:
        return self.facts

    def say(self, **workers: tuple[int, int]) -> None:
        """Epoch and preemptions of each worker."""
        self.facts = [
            make_candidate(name, epoch=epoch, num_preemptions=number).facts
            for name, (epoch, number) in workers.items()
        ]

    def as_workers(self) -> Workers:
        return cast(Workers, self)


def test_preemptions_are_counted_from_when_a_worker_is_known() -> None:
    told = Told()
    told.say(a=(1, 50))
    preemptions = Preemptions(told.as_workers())
    assert preemptions.total() == 0
    told.say(a=(1, 53), b=(1, 7))
    assert preemptions.total() == 3
    told.say(a=(1, 54), b=(1, 9))
    assert preemptions.total() == 6


def test_a_worker_that_was_started_again_counts_from_nothing() -> None:
    told = Told()
    told.say(a=(1, 50))
    preemptions = Preemptions(told.as_workers())
    preemptions.total()
    told.say(a=(2, 4))
    assert preemptions.total() == 4


def test_a_worker_that_leaves_takes_nothing_with_it() -> None:
    told = Told()
    told.say(a=(1, 0), b=(1, 0))
    preemptions = Preemptions(told.as_workers())
    preemptions.total()
    told.say(a=(1, 5), b=(1, 5))
    assert preemptions.total() == 10
    told.say(a=(1, 6))
    assert preemptions.total() == 11


def caches(metrics: Metrics) -> list[dict[str, Any]]:
    return [
        sample.labels
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    ]


def test_the_cache_is_that_of_all_decode_workers_together() -> None:
    told, metrics = Told(), Metrics()
    readings = MeshReadings(metrics, [told.as_workers()])
    assert readings and caches(metrics) == []
    told.facts = [make_candidate(name, num_blocks=100, max_model_len=1000).facts for name in "abc"]
    assert caches(metrics) == [
        {
            "model_name": "demo",
            "engine": "0",
            "block_size": "16",
            "cache_dtype": "float32",
            "num_gpu_blocks": "300",
            "kv_cache_size_tokens": "4800",
            "kv_cache_max_concurrency": "4.80",
        }
    ]
