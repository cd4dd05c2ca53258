"""The mesh as one server of vLLM's would show itself: read from what workers reported, whenever somebody scrapes.

Here or on the router's own metrics port, which is the same page.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pagemesh.cache.swap_space import SwapTotals
from pagemesh.router.model_crew import ModelCrew
from pagemesh.router.parity import Difference, Parity
from pagemesh.router.routing.candidate import Role
from pagemesh.router.workers import Workers
from pagemesh.telemetry.cache_size import CacheSize
from pagemesh.telemetry.metrics import Metrics
from pagemesh.telemetry.metrics import engine as declared
from pagemesh.telemetry.metrics.labels import ENGINE
from pagemesh.telemetry.metrics.registry import ModelMetrics, Reading
from pagemesh.telemetry.metrics.routing import WORKERS, WORKERS_DEGRADED


def measure_mesh(metrics: Metrics, crew: ModelCrew, parity: Parity) -> None:
    """Show the workers of a model."""
    workers, dispatch = crew.workers, crew.dispatch
    name = workers.model_name
    for role in Role:
        number = metrics.gauge(WORKERS).labels(name, role.value)
        number.set_function(partial(_num_reachable, workers, role))
        for difference in Difference:
            number = metrics.gauge(WORKERS_DEGRADED).labels(name, role.value, difference.value)
            number.set_function(partial(_num_degraded, parity, name, role, difference))
    of_model = ModelMetrics(metrics, name)
    for spec, value in (
        (declared.NUM_REQUESTS_RUNNING, lambda: workers.reported_load().num_running),
        (
            declared.NUM_REQUESTS_WAITING,
            lambda: workers.reported_load().num_waiting + dispatch.num_waiting,
        ),
        (declared.KV_CACHE_USAGE, partial(_kv_usage, workers)),
        (declared.SWAP_SPACE_USAGE, partial(_swap_usage, workers)),
    ):
        of_model.gauge(spec).set_function(value)
    by_reason = of_model.gauges(declared.NUM_WAITING_BY_REASON)
    by_reason["capacity",].set_function(
        lambda: workers.reported_load().num_queued + dispatch.num_waiting
    )
    by_reason["deferred",].set_function(lambda: workers.reported_load().num_deferred)


class MeshReadings:
    """What several models' workers reported, in series that come and go with them."""

    def __init__(self, metrics: Metrics, crews: list[Workers]) -> None:
        self._preemptions = {workers.model_name: Preemptions(workers) for workers in crews}
        self._crews = crews
        metrics.read_at_scrape(declared.NUM_PREEMPTIONS, self._num_preemptions)
        metrics.read_at_scrape(declared.CACHE_CONFIG_INFO, self._caches)

    def _num_preemptions(self) -> Iterator[Reading]:
        for model_name, preemptions in self._preemptions.items():
            yield (model_name, ENGINE), preemptions.total()

    def _caches(self) -> Iterator[Reading]:
        for workers in self._crews:
            caches: dict[tuple[int, str], CacheSize] = {}
            for each in workers.decoders():
                cache = CacheSize.of(each.layout, each.num_blocks, each.max_model_len)
                kind = cache.block_size, cache.dtype
                caches[kind] = caches[kind].plus(cache) if kind in caches else cache
            for cache in caches.values():
                yield (workers.model_name, ENGINE, *cache.labels), 1.0


class Preemptions:
    """A count over workers that come, go and begin anew. What happened before they were known is not in it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._total = 0
        self._seen: dict[str, tuple[int, int]] = {}

    def total(self) -> int:
        """Until their last reports."""
        decoders = self._workers.decoders()
        for each in decoders:
            now = each.num_preemptions
            epoch, before = self._seen.get(each.worker_id, (each.epoch, now))
            self._total += max(0, now - before) if epoch == each.epoch else now
        self._seen = {each.worker_id: (each.epoch, each.num_preemptions) for each in decoders}
        return self._total


def _kv_usage(workers: Workers) -> float:
    decoders = workers.decoders()
    num_blocks = sum(each.num_blocks for each in decoders)
    num_free = sum(min(each.num_free_blocks, each.num_blocks) for each in decoders)
    return 1 - num_free / num_blocks if num_blocks else 0.0


def _swap_usage(workers: Workers) -> float:
    decoders = workers.decoders()
    num_used = sum(min(each.num_used_swap_blocks, each.num_swap_blocks) for each in decoders)
    return SwapTotals(sum(each.num_swap_blocks for each in decoders), num_used).usage


def _num_reachable(workers: Workers, role: Role) -> int:
    return len(workers.reachable(role))


def _num_degraded(parity: Parity, model_name: str, role: Role, difference: Difference) -> int:
    return sum(
        (found.model_name, found.role, found.difference) == (model_name, role, difference)
        for found in parity.degraded()
    )
