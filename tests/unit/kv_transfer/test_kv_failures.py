"""What a worker remembers of those that did not deliver."""

from __future__ import annotations

from pagemesh.kv_transfer.links import MAX_SENDERS, KvFailure, KvFailures
from tests.fakes.clock import FakeClock


def test_the_last_failure_of_each_sender_is_kept_with_their_number() -> None:
    clock = FakeClock()
    failures = KvFailures(clock)
    first = clock()
    failures.note("prefill-0", "it broke")
    failures.note("prefill-1", "it hung")
    clock.advance(2)
    failures.note("prefill-0", "it was wrong")
    assert failures.all() == [
        KvFailure("prefill-1", 1, "it hung", first),
        KvFailure("prefill-0", 2, "it was wrong", first + 2),
    ]


def test_who_failed_longest_ago_is_forgotten_first() -> None:
    failures = KvFailures(FakeClock())
    for number in range(MAX_SENDERS + 1):
        failures.note(f"prefill-{number}", "")
    assert len(failures.all()) == MAX_SENDERS
    assert failures.all()[0].worker_id == "prefill-1"
