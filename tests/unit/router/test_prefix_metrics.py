"""What is counted of each prompt: what caches held of it, what the plan reached, what came of it."""

from __future__ import annotations

import pytest

from pagemesh.router.prefix_metrics import Lookup, PrefixMetrics, PrefixQuery
from pagemesh.router.routing.decision import Decision, Reasons
from pagemesh.router.routing.route import Route
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2
from tests.unit.router.routing_builders import make_candidate

PATHS = {
    types_pb2.KV_PATH_LOCAL: "local",
    types_pb2.KV_PATH_REMOTE: "remote",
    types_pb2.KV_PATH_PULL: "pull",
    types_pb2.KV_PATH_REMOTE_PULL: "remote_pull",
}


class Watched:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.prefixes = PrefixMetrics(self.metrics, "demo")

    def prompt(
        self,
        lookup: Lookup = Lookup.ANSWERED,
        *,
        available: int = 96,
        captured: int = 64,
        delivered: int = 48,
        path: types_pb2.KvPath.ValueType = types_pb2.KV_PATH_LOCAL,
    ) -> None:
        reasons = Reasons("kv_aware", (), 1, {})
        decision = Decision(Route(make_candidate()), reasons, available, captured)
        outcome = types_pb2.KvOutcome(path=path, cached_token_count=delivered)
        self.prefixes.on_kv(PrefixQuery(100, lookup), decision, outcome)

    def sample(self, name: str, path: str = "local", **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            f"pagemesh:prefix_tokens_{name}_total", {"model_name": "demo", "path": path, **labels}
        )

    def total(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"model_name": "demo", "engine": "0"})


def test_a_prompt_counts_in_all_four_numbers() -> None:
    watched = Watched()
    watched.prompt()
    watched.prompt(available=0, captured=0, delivered=0)
    assert watched.sample("queried", lookup="answered") == 200
    assert watched.sample("available") == 96
    assert watched.sample("captured") == 64
    assert watched.sample("delivered", lookup="answered") == 48


@pytest.mark.parametrize("lookup", [Lookup.FAILED, Lookup.SKIPPED])
def test_where_the_index_did_not_answer_nothing_is_said_of_what_was_available(
    lookup: Lookup,
) -> None:
    watched = Watched()
    watched.prompt(lookup)
    assert watched.sample("queried", lookup=lookup.value) == 100
    assert watched.sample("delivered", lookup=lookup.value) == 48
    assert watched.sample("queried", lookup="answered") == 0
    assert watched.sample("available") == 0
    assert watched.sample("captured") == 0


@pytest.mark.parametrize(("path", "label"), PATHS.items(), ids=PATHS.values())
def test_prompts_count_under_the_way_that_was_taken(
    path: types_pb2.KvPath.ValueType, label: str
) -> None:
    watched = Watched()
    watched.prompt(path=path)
    for name in ("available", "captured"):
        assert watched.sample(name, label)
    for name in ("queried", "delivered"):
        assert watched.sample(name, label, lookup="answered")


def test_a_worker_that_does_not_say_which_way_it_took_counts_nowhere() -> None:
    watched = Watched()
    watched.prompt(path=types_pb2.KV_PATH_UNSPECIFIED)
    assert watched.sample("queried", lookup="answered") == 0
    assert watched.total("vllm:prefix_cache_queries_total") == 0


def test_vllms_numbers_are_the_same_whatever_the_index_said() -> None:
    watched = Watched()
    watched.prompt(Lookup.SKIPPED)
    watched.prompt(Lookup.ANSWERED, path=types_pb2.KV_PATH_REMOTE)
    assert watched.total("vllm:prefix_cache_queries_total") == 200
    assert watched.total("vllm:prefix_cache_hits_total") == 96
