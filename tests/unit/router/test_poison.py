"""What is remembered of requests that killed workers, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.errors import PoisonRequestError
from pagemesh.router.poison import _MAX_REFUSED, REFUSED_S, Suspects
from pagemesh.telemetry.metrics import Metrics
from pagemesh.v1 import decode_pb2, types_pb2


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def submit(*prompt: int, embed: bool = False, **sampling: Any) -> decode_pb2.Submit:
    return decode_pb2.Submit(
        prompt_token_ids=prompt, embed=embed, sampling=types_pb2.SamplingParams(**sampling)
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def suspects(clock: Clock) -> Suspects:
    return Suspects(2, Metrics(), clock)


def is_refused(suspects: Suspects, asked: decode_pb2.Submit) -> bool:
    try:
        suspects.check(asked)
    except PoisonRequestError:
        return True
    return False


def test_a_request_is_refused_until_its_time_is_over(suspects: Suspects, clock: Clock) -> None:
    suspects.refuse(submit(1, 2), 2)
    clock.now = REFUSED_S - 10
    with pytest.raises(PoisonRequestError, match="it is refused for 10 s more"):
        suspects.check(submit(1, 2))
    # It came again, and counts anew.
    suspects.refuse(submit(1, 2), 2)
    clock.now = REFUSED_S + 10
    assert is_refused(suspects, submit(1, 2))
    clock.now = 2 * REFUSED_S
    assert not is_refused(suspects, submit(1, 2))


def test_the_same_is_what_workers_compute(suspects: Suspects) -> None:
    refused = submit(1, 2, temperature=0.5, seed=1)
    refused.request_id = "a"
    suspects.refuse(refused, 2)
    assert refused.sampling.seed == 1
    again = submit(1, 2, temperature=0.5, seed=2)
    again.request_id, again.traceparent, again.priority = "b", "c", 3
    assert is_refused(suspects, again)
    for other in (submit(1, 3, temperature=0.5), submit(1, 2), submit(1, 2, embed=True)):
        assert not is_refused(suspects, other)


def test_the_oldest_are_forgotten_first(suspects: Suspects) -> None:
    for number in range(_MAX_REFUSED + 1):
        suspects.refuse(submit(number), 2)
    assert not is_refused(suspects, submit(0))
    assert is_refused(suspects, submit(1))


def test_a_worker_has_a_suspect_until_all_have_left(suspects: Suspects) -> None:
    first, second = suspects.admit("a"), suspects.admit("a")
    suspects.admit("b")()
    assert suspects.busy() == {"a"}
    first()
    assert suspects.busy() == {"a"}
    second()
    assert suspects.busy() == set()


@pytest.mark.parametrize(
    ("limit", "num_fruitless", "expected"),
    [(2, 1, False), (2, 2, True), (3, 2, False), (0, 5, False)],
)
def test_the_limit_says_what_is_poison(limit: int, num_fruitless: int, expected: bool) -> None:
    assert Suspects(limit, Metrics()).is_poison(num_fruitless) is expected
