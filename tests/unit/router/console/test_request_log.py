"""What the log of requests keeps, and how it is shown."""

from __future__ import annotations

import json

from pagemesh.router.console.request_log import (
    MAX_ENDED,
    MAX_PLACES,
    MAX_RUNNING,
    Delivery,
    RequestLog,
    RequestRecord,
)
from pagemesh.router.console.rows import request_row
from pagemesh.router.generation.request import Usage
from pagemesh.router.prefix_metrics import Lookup
from pagemesh.router.route_header import Explanation
from pagemesh.router.routing.decision import Considered, Decision, Reasons
from pagemesh.router.routing.prefill_plan import PrefillPlan
from pagemesh.router.routing.route import Route
from pagemesh.router.routing.ways import Path
from tests.unit.router.routing_builders import make_candidate, make_prefill_worker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_log(clock: Clock) -> RequestLog:
    return RequestLog(lambda: 1_700_000_000 + clock.now, clock)


def begin(log: RequestLog, **given: object) -> RequestRecord:
    usage = Usage(40, 7, 16)
    return log.begin(
        "generate", "demo", "r-1", num_prompts=1, num_choices=1, usage_so_far=lambda: usage
    )


def explanation() -> Explanation:
    plan = PrefillPlan(
        Path.REMOTE, (make_prefill_worker("prefill-0"),), None, predicted_seconds=0.05
    )
    considered = (
        Considered("decode-0", 32, 32, 1, 0.05, {"predicted_ttft": 1.0}, 1.0),
        Considered("decode-1", 0, 0, 0, 0.25, {"predicted_ttft": 0.2}, 0.2),
    )
    decision = Decision(
        Route(make_candidate("decode-0"), plan),
        Reasons("kv_aware", considered, 2, {"decode-9": "draining"}),
        num_available_tokens=32,
        num_captured_tokens=16,
    )
    return Explanation(decision, Lookup.ANSWERED)


def test_a_running_request_shows_what_it_has_so_far() -> None:
    clock = Clock()
    log = make_log(clock)
    record = begin(log)
    clock.now += 2
    row = request_row(record, log.seconds(record))
    assert (row["end"], row["seconds"], row["output_tokens"]) == (None, 2.0, 7)
    assert (row["began_at"], row["places"], log.num_running) == (1_700_000_100.0, [], 1)


def test_a_request_that_is_over_stays_as_it_ended() -> None:
    clock = Clock()
    log = make_log(clock)
    record = begin(log)
    clock.now += 3
    log.end(record, "error", Usage(40, 2, 16), "WORKER_LOST", 0.5)
    clock.now += 60
    row = request_row(record, log.seconds(record))
    assert row == row | {
        "end": "error", "error": "WORKER_LOST", "seconds": 3.0, "time_to_first_token": 0.5,
        "prompt_tokens": 40, "cached_tokens": 16, "output_tokens": 2,
    }  # fmt: skip
    assert log.num_running == 0


def test_a_row_says_where_a_request_went_and_why() -> None:
    log = make_log(Clock())
    record = begin(log)
    record.place(explanation(), is_retry=False)
    (planned,) = request_row(record, 0.0)["places"]
    assert (planned["way"], planned["taken_way"]) == ("remote", None)
    # Another decision's news is none of this one's.
    record.deliver(explanation(), Delivery(Path.PULL, 0, 9.0))
    record.deliver(record.places[0].explanation, Delivery(Path.LOCAL, 16, 0.125))
    # The second answer to the prompt shares the decision, and has nothing new.
    record.deliver(record.places[0].explanation, Delivery(Path.REMOTE, 0, 7.0))
    (place,) = request_row(record, 0.0)["places"]
    assert place == {
        "policy": "kv_aware", "worker": "decode-0", "way": "remote", "prefill": "prefill-0",
        "predicted_seconds": 0.05, "lookup": "answered", "available_tokens": 32,
        "captured_tokens": 16, "fit_workers": 2, "refused_workers": 1, "retry": False,
        "taken_way": "local", "delivered_tokens": 16, "ready_seconds": 0.125,
        "considered": [
            {"worker": "decode-0", "held_tokens": 32, "coming_tokens": 32, "requests": 1,
             "predicted_seconds": 0.05, "scores": {"predicted_ttft": 1.0}, "total": 1.0},
            {"worker": "decode-1", "held_tokens": 0, "coming_tokens": 0, "requests": 0,
             "predicted_seconds": 0.25, "scores": {"predicted_ttft": 0.2}, "total": 0.2},
        ],
        "refused": {"decode-9": "draining"},
    }  # fmt: skip
    json.dumps(place)


def test_only_a_few_decisions_of_a_request_are_kept_but_all_are_counted() -> None:
    record = begin(make_log(Clock()))
    for _ in range(MAX_PLACES + 3):
        record.place(explanation(), is_retry=False)
    row = request_row(record, 0.0)
    assert (len(row["places"]), row["decisions"]) == (MAX_PLACES, MAX_PLACES + 3)


def test_the_log_forgets_the_oldest() -> None:
    log = make_log(Clock())
    for _ in range(MAX_ENDED + 5):
        log.end(begin(log), "stop", Usage(1, 1, 0))
    assert [record.number for record in log.changed(0)] == list(range(6, MAX_ENDED + 6))


def test_of_many_running_requests_the_latest_are_shown_and_all_counted() -> None:
    log = make_log(Clock())
    for _ in range(MAX_RUNNING + 5):
        begin(log)
    shown = [record.number for record in log.changed(0)]
    assert shown == list(range(6, MAX_RUNNING + 6))
    assert log.num_running == MAX_RUNNING + 5


def test_what_was_seen_before_is_not_told_again() -> None:
    log = make_log(Clock())
    first, second, third = (begin(log) for _ in range(3))
    log.end(second, "stop", Usage(1, 1, 0))
    seen = log.revision
    log.end(first, "abort", Usage(1, 1, 0))
    # The one that ended since, and the one that still runs.
    assert log.changed(seen) == [first, third]
    assert log.changed(0) == [first, second, third]


def test_whoever_waits_for_ends_is_told() -> None:
    ends: list[int] = []
    log = RequestLog(on_end=lambda: ends.append(log.revision))
    log.end(begin(log), "stop", Usage(1, 1, 0))
    assert ends == [1]
