"""When requests are due."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest

from pagemesh.workload.arrivals import due_times


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise([0.0, *times])]


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert due_times(3, math.inf, 1.0, seed=0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_last_request_comes_when_the_rate_says(seed: int) -> None:
    times = due_times(40, 8.0, 1.0, seed)
    assert times[-1] == pytest.approx(5.0)
    assert times == sorted(times)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 16.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float) -> None:
    found = gaps(due_times(20_000, 10.0, burstiness, seed=5))
    assert statistics.mean(found) == pytest.approx(0.1)
    spread = statistics.stdev(found) / statistics.mean(found)
    assert spread == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_equal_seeds_give_equal_times() -> None:
    assert due_times(9, 2.0, 1.0, seed=1) == due_times(9, 2.0, 1.0, seed=1)
    assert due_times(9, 2.0, 1.0, seed=1) != due_times(9, 2.0, 1.0, seed=2)
