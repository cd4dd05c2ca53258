"""Prediction, outcome and regret of the ways that prompts' KV took."""

from __future__ import annotations

import pytest
from google.protobuf import duration_pb2

from pagemesh.router.path_metrics import PathMetrics
from pagemesh.router.routing.prefill_plan import PrefillPlan
from pagemesh.router.routing.ways import Path
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import types_pb2

PLAN = PrefillPlan(
    Path.REMOTE,
    predicted_seconds=0.5,
    predictions={Path.LOCAL: 0.7, Path.REMOTE: 0.5, Path.PULL: 0.9},
)


class Watched:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.paths = PathMetrics(self.metrics)

    def prompt(self, plan: PrefillPlan, path: types_pb2.KvPath.ValueType, seconds: float) -> None:
        took = duration_pb2.Duration()
        took.FromNanoseconds(round(seconds * 1e9))
        self.paths.on_kv(plan, types_pb2.KvOutcome(path=path, time_to_ready=took))

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"pagemesh:{name}", labels) or 0.0


def test_plans_are_counted_with_what_is_predicted() -> None:
    watched = Watched()
    watched.paths.on_plan(PLAN)
    watched.paths.on_plan(PrefillPlan(Path.LOCAL))
    assert watched.sample("kv_path_plans_total", path="remote") == 1
    assert watched.sample("kv_path_plans_total", path="local") == 1
    assert watched.sample("kv_path_predicted_seconds_sum", path="remote") == 0.5
    # Nothing was predicted of the other one.
    assert watched.sample("kv_path_predicted_seconds_count", path="local") == 0


@pytest.mark.parametrize(("seconds", "regret"), [(0.6, 0.0), (0.7, 0.0), (1.0, 0.3), (10.0, 9.3)])
def test_regret_is_what_the_best_other_way_would_have_saved(seconds: float, regret: float) -> None:
    watched = Watched()
    watched.prompt(PLAN, types_pb2.KV_PATH_REMOTE, seconds)
    assert watched.sample("kv_path_seconds_sum", path="remote") == seconds
    assert watched.sample("kv_path_regret_seconds_count") == 1
    assert watched.sample("kv_path_regret_seconds_sum") == pytest.approx(regret)
    assert watched.sample("kv_path_overruled_total", planned="remote", path="remote") == 0


def test_a_way_that_was_not_planned_counts_under_its_own_name() -> None:
    watched = Watched()
    watched.prompt(PLAN, types_pb2.KV_PATH_LOCAL, 1.0)
    assert watched.sample("kv_path_overruled_total", planned="remote", path="local") == 1
    assert watched.sample("kv_path_seconds_count", path="local") == 1
    assert watched.sample("kv_path_seconds_count", path="remote") == 0
    # The planned way would have been the best other one.
    assert watched.sample("kv_path_regret_seconds_sum") == pytest.approx(0.5)


def test_where_there_was_no_other_way_there_is_nothing_to_regret() -> None:
    watched = Watched()
    plan = PrefillPlan(Path.LOCAL, predicted_seconds=0.1, predictions={Path.LOCAL: 0.1})
    watched.prompt(plan, types_pb2.KV_PATH_LOCAL, 1.0)
    assert watched.sample("kv_path_seconds_count", path="local") == 1
    assert watched.sample("kv_path_regret_seconds_count") == 0


def test_a_worker_that_does_not_say_how_counts_nowhere() -> None:
    watched = Watched()
    watched.prompt(PLAN, types_pb2.KV_PATH_UNSPECIFIED, 1.0)
    assert watched.sample("kv_path_regret_seconds_count") == 0
